"""Detection of a job's real start: levels learned before, while machines only waited, must be learned anew."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tocsin.pipeline.core.state_maps import pairs_from, pairs_state
from tocsin.pipeline.detect.peers.activity import WORK, work_row
from tocsin.schemas.records import NS_PER_SECOND

ALL = ""
"""Key for the work as a whole; other keys are names of single metrics."""
_BURSTING = frozenset({"pcie_bytes_per_second", "rdma_bytes_per_second"})
"""Metrics that storage traffic raises as well; they are learned anew only together with another metric."""
_POWER, _DRAWS_RATIO = "gpu_power_watts", 1.3
"""Power metric, and the ratio to its usual level that confirms that GPUs began to work."""
_KINDS = (*WORK, "rdma_bytes_per_second")
"""Metrics whose rise is followed."""


@dataclass(frozen=True, slots=True)
class BeginConfig:
    """Settings.

    Attributes:
        risen_ratio: ratio to the usual level that shows that the job did not work while that level was learned ...
        lasting_ns: ... if it lasts so long, and for one and a half steps.
        young_factor: a single metric may begin only within so many warm-up times; later rises are bursts.
    """

    risen_ratio: float = 2.0
    lasting_ns: int = 30 * NS_PER_SECOND
    young_factor: float = 2.0


def _total_ratio(shares: Mapping[str, float]) -> float:
    """Return the ratio of the job's work to its usual work; 0.0 if unknown.

    Args:
        shares: metric -> ratio of its level over all machines to the usual one.
    """
    row = np.array(work_row(shares)[0])
    known = row[np.isfinite(row)]
    work = float(np.median(known)) if len(known) else 0.0
    power = shares.get(_POWER)
    if power is None:
        return work if len(known) > 1 else 0.0
    # GPUs that begin to work draw more. PCIe alone is ten times as busy while a checkpoint is written, or loaded.
    return max(power, work if power >= _DRAWS_RATIO else 0.0)


class BeginTracker:
    """Follows since when each work metric of one job is far above its learned level."""

    def __init__(self, config: BeginConfig) -> None:
        """Start with all metrics at their usual level."""
        self._config = config
        self._since_ns: dict[str, int] = {}
        """Metric -> time in nanoseconds since when it is far above its learned level."""

    def take(self, span_ns: tuple[int, int], shares: Mapping[str, float], step_ns: int) -> set[str]:
        """Take one window and return the metrics whose work has just begun, or ``ALL`` for the job as a whole.

        Args:
            span_ns: start and end of the window.
            shares: metric -> ratio of its level over all machines to the usual one.
            step_ns: the job's step time; 0: unknown.
        """
        now = {name: shares[name] for name in _KINDS if name in shares}
        now[ALL] = _total_ratio(shares)
        start_ns, end_ns = span_ns
        risen = {name for name, share in now.items() if share >= self._config.risen_ratio}
        self._since_ns = {name: self._since_ns.get(name, start_ns) for name in sorted(risen)}
        lasting_ns = max(self._config.lasting_ns, 1.5 * step_ns)
        begun = {name for name, since_ns in self._since_ns.items() if end_ns - since_ns >= lasting_ns}
        return begun if begun - _BURSTING else set()

    def forget(self, names: set[str]) -> None:
        """Stop following these metrics, as they are learned anew."""
        self._since_ns = {name: since_ns for name, since_ns in self._since_ns.items() if name not in names}

    def to_state(self) -> list[tuple[str, int]]:
        """Return the state as JSON-serialisable values, for a snapshot."""
        return pairs_state(self._since_ns)

    def load_state(self, state: Iterable[Iterable[Any]]) -> None:
        """Restore the state from values that ``to_state`` returned."""
        self._since_ns = pairs_from(state)
