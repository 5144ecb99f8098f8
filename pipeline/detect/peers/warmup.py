"""When a job, or one kind of its work, has begun in earnest: what was learned before that is how its machines wait."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tocsin.pipeline.core.state_maps import pairs_from, pairs_state
from tocsin.pipeline.detect.peers.activity import WORK, work_row
from tocsin.schemas.records import NS_PER_SECOND

ALL = ""
"""The work as a whole."""
_BURSTING = frozenset({"pcie_bytes_per_second", "rdma_bytes_per_second"})
"""Storage goes over them, too: they are learned anew only together with something that a checkpoint does not raise."""
_POWER, _DRAWS_RATIO = "gpu_power_watts", 1.3
_KINDS = (*WORK, "rdma_bytes_per_second")


@dataclass(frozen=True, slots=True)
class BeginConfig:
    """Settings.

    Attributes:
        risen_ratio: where a job works so many times more than usual ...
        lasting_ns: ... for so long (and for one and a half steps), it did not work when the usual was learned: it
            loaded, compiled, or was not all there when the first windows came.
        young_factor: a single metric is believed to have begun within so many warm-ups; later a burst is a burst.
    """

    risen_ratio: float = 2.0
    lasting_ns: int = 30 * NS_PER_SECOND
    young_factor: float = 2.0


def _of_all(shares: Mapping[str, float]) -> float:
    """How many times more than usual the job works; 0: nobody can say."""
    row = np.array(work_row(shares)[0])
    known = row[np.isfinite(row)]
    work = float(np.median(known)) if len(known) else 0.0
    power = shares.get(_POWER)
    if power is None:
        return work if len(known) > 1 else 0.0
    # GPUs that begin to work draw more. PCIe alone is ten times as busy while a checkpoint is written, or loaded.
    return max(power, work if power >= _DRAWS_RATIO else 0.0)


class BeginTracker:
    """Follows since when each metric of one job's work is far above what was learned."""

    def __init__(self, config: BeginConfig) -> None:
        """All is as usual."""
        self._config = config
        self._since_ns: dict[str, int] = {}

    def take(self, span_ns: tuple[int, int], shares: Mapping[str, float], step_ns: int) -> set[str]:
        """Take one window; return what has begun since: metrics, or ``ALL``.

        Args:
            span_ns: begin and end of the window.
            shares: metric -> its level among all machines over the usual one.
            step_ns: the job's step time, 0: not known.
        """
        now = {name: shares[name] for name in _KINDS if name in shares}
        now[ALL] = _of_all(shares)
        start_ns, end_ns = span_ns
        risen = {name for name, share in now.items() if share >= self._config.risen_ratio}
        self._since_ns = {name: self._since_ns.get(name, start_ns) for name in sorted(risen)}
        lasting_ns = max(self._config.lasting_ns, 1.5 * step_ns)
        begun = {name for name, since_ns in self._since_ns.items() if end_ns - since_ns >= lasting_ns}
        return begun if begun - _BURSTING else set()

    def forget(self, names: set[str]) -> None:
        """These are learned anew."""
        self._since_ns = {name: since_ns for name, since_ns in self._since_ns.items() if name not in names}

    def to_state(self) -> list[tuple[str, int]]:
        """JSON-able state."""
        return pairs_state(self._since_ns)

    def load_state(self, state: Iterable[Iterable[Any]]) -> None:
        """Take back what ``to_state`` gave."""
        self._since_ns = pairs_from(state)
