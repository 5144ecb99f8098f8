"""Which source of data, or which rank's loader, is slow.

Loaders are compared with the loaders of other ranks that read the same source; sources with each other. Fewer than
three ranks of a source are not compared, because the median of two cannot say which one moved: then a rank's own past
tells, which accuses nobody.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

LEAST_PEER_COUNT = 3
"""Fewest ranks of a source whose loaders are compared."""
LEAST_RATIO = 0.1
"""Least excess of a slow fetch, as a share of the step: a job straggles from a tenth on (What-if, OSDI'25)."""
_SPREADS = 5.0
"""Least distance of a slow fetch from its peers' in robust spreads, as in ``SlowConfig.spread_factor``."""


@dataclass(frozen=True, slots=True)
class Fetch:
    """How long a rank lately waited for a batch.

    Attributes:
        rank: global rank.
        source: name of the source that it reads, "" = unknown.
        seconds: time a step.
        past_seconds: the same before, None = not known.
    """

    rank: int
    source: str
    seconds: float
    past_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class SlowSource:
    """A source whose readers wait longer than those of the others.

    Attributes:
        source: its name.
        ranks: its readers.
        seconds: median time of a fetch from it.
        other_seconds: the same of all other sources.
    """

    source: str
    ranks: tuple[int, ...]
    seconds: float
    other_seconds: float


@dataclass(frozen=True, slots=True)
class SlowLoader:
    """A rank whose loader is slow while its source is not.

    Attributes:
        rank: global rank.
        source: name of the source.
        seconds: time of a fetch.
        usual_seconds: the median of the source's other readers; without them, the rank's own past.
        by_past: whether only the rank's own past shows it: then the source may be slow as well.
    """

    rank: int
    source: str
    seconds: float
    usual_seconds: float
    by_past: bool = False


def find_slow_sources(fetches: Sequence[Fetch], step_seconds: float) -> list[SlowSource]:
    """Return the sources whose readers wait longer than those of the other sources, the slowest first.

    A source is slow only if more than half of its readers are: one slow reader of many is a loader's matter.

    Args:
        fetches: one for each rank.
        step_seconds: the job's step time.
    """
    by_source = _by_source(fetches)
    found = []
    for source, members in by_source.items():
        others = [one.seconds for one in fetches if one.source != source]
        if not source or not others:
            continue
        usual = float(np.median(others))
        line = _line(others, step_seconds)
        level = float(np.median([one.seconds for one in members]))
        slow = sum(one.seconds - usual >= line for one in members)
        if 2 * slow > len(members) and level - usual >= line:
            found.append(SlowSource(source, tuple(sorted(one.rank for one in members)), level, usual))
    return sorted(found, key=lambda one: (-one.seconds, one.source))


def find_slow_loaders(fetches: Sequence[Fetch], step_seconds: float) -> list[SlowLoader]:
    """Return the ranks whose loaders are slow beside other readers of the same source, the slowest first.

    Args:
        fetches: one for each rank.
        step_seconds: the job's step time.
    """
    found = []
    for source, members in _by_source(fetches).items():
        for one in members:
            others = [other.seconds for other in members if other.rank != one.rank]
            if len(members) >= LEAST_PEER_COUNT:
                usual = float(np.median(others))
                if one.seconds - usual >= _line(others, step_seconds):
                    found.append(SlowLoader(one.rank, source, one.seconds, usual))
            elif one.past_seconds is not None and one.seconds - one.past_seconds >= LEAST_RATIO * step_seconds:
                found.append(SlowLoader(one.rank, source, one.seconds, one.past_seconds, by_past=True))
    return sorted(found, key=lambda one: (-one.seconds, one.rank))


def _by_source(fetches: Sequence[Fetch]) -> dict[str, list[Fetch]]:
    """Return source -> its readers."""
    found: dict[str, list[Fetch]] = defaultdict(list)
    for one in fetches:
        found[one.source].append(one)
    return found


def _line(others: Sequence[float], step_seconds: float) -> float:
    """Return by how many seconds a fetch must exceed the median of others to be slow."""
    middle = np.median(others)
    spread_seconds = 1.4826 * float(np.median(np.abs(np.asarray(others) - middle)))
    return max(LEAST_RATIO * step_seconds, _SPREADS * spread_seconds)
