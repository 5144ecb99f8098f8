"""Share of lookups that caches answered in each stage of this process's start. Standard library only.

Torch counts itself what ``torch.compile`` found in its caches of compiled graphs, Inductor's and AOTAutograd's. These
numbers are read when a stage begins or ends, never in between. A lookup that a cache refused (bypass) was not answered.
What the program says of its other caches (``hook.cache_hits``) counts together with them.
"""

import math
from collections.abc import Mapping

from tocsin.collectors.hook._torch import module

COUNTERS = "torch._dynamo.utils"
GRAPH_CACHES = (("inductor", "fxgraph_cache"), ("aot_autograd", "autograd_cache"))
"""Torch's counters of each cache: their group, and the begin of their names."""
NOT_ANSWERED = ("miss", "bypass")
FIRST_STAGE = "env_setup"
"""Stage in which a process is before it tells one."""


class CacheCount:
    """Counts cache lookups of one process, each for the stage that began last and has not ended."""

    __slots__ = ("_open", "_seen")

    def __init__(self) -> None:
        """Start in the first stage."""
        self._open: dict[str, list[float]] = {FIRST_STAGE: [0.0, 0.0]}
        """Stage -> its hits and lookups, in the order of their begins."""
        self._seen: tuple[float, float] | None = (0.0, 0.0)
        """What torch had counted when it was read last."""

    def skip(self) -> None:
        """Leave out what torch has counted so far: it is a parent's."""
        self._seen = graph_lookups()

    def begin(self, stage: str) -> None:
        """Note that a stage begins."""
        self._read()
        self._open.pop(stage, None)
        self._open[stage] = [0.0, 0.0]

    def end(self, stage: str) -> float | None:
        """Note that a stage ends; return the share of its lookups that were answered, None if there was none."""
        self._read()
        hits, lookups = self._open.pop(stage, (0.0, 0.0))
        return round(hits / lookups, 4) if lookups > 0 else None

    def add(self, hits: float, lookups: float) -> None:
        """Add lookups to the stage that began last; nothing outside of stages."""
        counts = list(self._open.values())
        if counts:
            counts[-1][0] += hits
            counts[-1][1] += lookups

    def _read(self) -> None:
        """Add what torch has counted since it was read last; nothing where its counters were set back meanwhile."""
        before, self._seen = self._seen, graph_lookups()
        if before is not None and self._seen is not None:
            hits, lookups = self._seen[0] - before[0], self._seen[1] - before[1]
            if 0 <= hits <= lookups:
                self.add(hits, lookups)


def graph_lookups() -> tuple[float, float] | None:
    """Return hits and lookups in torch's caches of compiled graphs; None: its counters are of an unknown form."""
    counters = getattr(module(COUNTERS), "counters", {})
    hits = lookups = 0.0
    for group, cache in GRAPH_CACHES:
        found = counters.get(group, {}) if isinstance(counters, Mapping) else None
        if not isinstance(found, Mapping):
            return None
        own, *others = (found.get(f"{cache}_{what}", 0) for what in ("hit", *NOT_ANSWERED))
        if not all(isinstance(one, int | float) and one >= 0 for one in (own, *others)):
            return None
        hits, lookups = hits + own, lookups + own + sum(others)
    return hits, lookups


def checked(hits: float, lookups: float) -> tuple[float, float]:
    """Return a number of hits and of lookups.

    Raises:
        TypeError: one is no number.
        ValueError: one is negative or not finite, or there are more hits than lookups.
    """
    for name, value in (("hits", hits), ("lookups", lookups)):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise TypeError(f"{name} is {value!r}: a number is wanted")
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name} is {value!r}: a finite number from 0 on is wanted")
    if hits > lookups:
        raise ValueError(f"hits is {hits!r}: at most lookups ({lookups!r}) is wanted")
    return float(hits), float(lookups)
