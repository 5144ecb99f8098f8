"""Cumulative sums of distances: strong evidence soon, weak evidence late, a jitter never."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tocsin.pipeline.core.arrays import arrays_from, arrays_state
from tocsin.schemas.metrics import Metric

FloatArray = NDArray[np.float32]
HIGH, LOW = 0, 1


@dataclass(frozen=True, slots=True)
class SumConfig:
    """Settings.

    Attributes:
        max_sigmas: more in one window counts as this much.
        drift_sigmas: what each window subtracts: less than this is no evidence.
        alarm_sum: the alarm line.
        limit_ratio: the sum stops growing at this multiple of the alarm line: a fault that ends is
            seen to end.
        keep_ratio: an alarm goes on while its sum is above this share of the alarm line.
        decays: whether evidence fades again.
        window_seconds: of these settings; a longer window counts for as many as fit in ...
        max_window_factor: ... up to so many.
        crowd_ratio: where more hosts than this share deviate alike in a window, the metric tells nobody apart in it: a
            change of all shows in some hosts' windows before the others'. A few are alarmed by chance then ...
        crowd_count: ... or by two faults: so many are no crowd.
        shared_ratio: the same of what a network marks on many machines at once (``shared``).
    """

    max_sigmas: float = 9.0
    drift_sigmas: float = 3.0
    alarm_sum: float = 10.0
    limit_ratio: float = 1.4
    keep_ratio: float = 0.4
    decays: bool = True
    window_seconds: float = 5.0
    max_window_factor: float = 2.5
    crowd_ratio: float = 0.125
    crowd_count: int = 2
    shared_ratio: float = 0.05


_MARKS = frozenset({"ecn_packets_per_second", "cnp_packets_per_second"})
"""A congested switch marks the packets of all machines behind it. (Pause frames of one machine are its own.)"""


def shared_columns(metrics: Sequence[Metric]) -> list[int]:
    """Which of these a network marks on many machines at once."""
    return [column for column, metric in enumerate(metrics) if metric.name in _MARKS]


class Cusum:
    """Sums of hosts x metrics, for values that are too high and too low."""

    def __init__(self, config: SumConfig, metric_count: int, host_count: int = 0, shared: Collection[int] = ()) -> None:
        """Nothing deviates yet; ``shared``: columns of what a network marks on many machines at once."""
        self._config = config
        self._shared: NDArray[np.bool_] = np.isin(np.arange(metric_count), list(shared))
        self._total: FloatArray = np.zeros((2, host_count, metric_count), np.float32)
        self._since_ns: NDArray[np.int64] = np.zeros((2, host_count, metric_count), np.int64)
        self._last_ns: NDArray[np.int64] = np.zeros((2, host_count, metric_count), np.int64)
        self._hit_ns: NDArray[np.int64] = np.zeros((2, host_count, metric_count), np.int64)
        self._begun_ns: NDArray[np.int64] = np.zeros((2, host_count, metric_count), np.int64)
        """What ``_judged_ns`` was when a deviation began: time in which nobody was judged counts as no absence."""
        self._judged_ns = 0
        """All windows together."""
        self._alarmed: NDArray[np.bool_] = np.zeros(host_count, bool)

    def configure(self, config: SumConfig) -> None:
        """Go on with other settings; what has added up stays."""
        self._config = config

    def grow(self, rows: Sequence[int], host_count: int) -> None:
        """Host i has moved to ``rows[i]`` of ``host_count``."""
        metric_count = self._total.shape[2]
        for name in ("_total", "_since_ns", "_last_ns", "_hit_ns", "_begun_ns"):
            old = getattr(self, name)
            new = np.zeros((2, host_count, metric_count), old.dtype)
            new[:, list(rows)] = old
            setattr(self, name, new)
        alarmed = np.zeros(host_count, bool)
        alarmed[list(rows)] = self._alarmed
        self._alarmed = alarmed

    def keep(self, rows: Sequence[int]) -> None:
        """Only these hosts are left, in this order."""
        for name in ("_total", "_since_ns", "_last_ns", "_hit_ns", "_begun_ns"):
            setattr(self, name, getattr(self, name)[:, list(rows)])
        self._alarmed = self._alarmed[list(rows)]

    def clear(self) -> None:
        """Forget all evidence."""
        self._total[:] = 0
        self._alarmed[:] = False

    def forget(self, rows: Sequence[int]) -> None:
        """Forget the evidence about these hosts."""
        self._total[:, list(rows)] = 0
        self._alarmed[list(rows)] = False

    def add(
        self,
        sigmas: FloatArray,
        start_ns: int,
        end_ns: int,
        among: NDArray[np.bool_] | None = None,
        *,
        judges_rest: bool = True,
    ) -> None:
        """Add one window.

        Args:
            sigmas: distances >= 0, shape (2: high, low; hosts, metrics), NaN = no sample.
            start_ns: begin of the window.
            end_ns: its end.
            among: metrics that it shows, shape (metrics,); None: all. Of the others nothing changes ...
            judges_rest: ... but that they were not seen to deviate. False: nobody looked.
        """
        config = self._config
        seconds = (end_ns - start_ns) / 1e9
        weight = min(config.max_window_factor, max(1.0, seconds / config.window_seconds))
        gain = weight * (np.minimum(sigmas, config.max_sigmas) - config.drift_sigmas)
        gain = np.where(np.isfinite(gain), gain, -1.0)
        gain = np.where(self.crowded(sigmas)[:, None], np.minimum(gain, 0.0), gain)
        if not config.decays:
            gain = np.maximum(gain, 0.0)
        if among is not None:
            gain = np.where(among, gain, 0.0)
        begins, hits = (self._total <= 0) & (gain > 0), gain > 0
        self._since_ns[begins] = start_ns
        self._hit_ns[begins], self._begun_ns[begins] = 0, self._judged_ns
        self._last_ns[hits] = end_ns
        self._hit_ns[hits] += end_ns - start_ns
        self._judged_ns += end_ns - start_ns
        if among is not None and not judges_rest:
            self._begun_ns[:, :, ~among] += end_ns - start_ns
        limit = config.limit_ratio * config.alarm_sum
        self._total = np.clip(self._total + gain, 0, limit).astype(np.float32)

    def crowded(self, sigmas: FloatArray) -> NDArray[np.bool_]:
        """Which metrics tell nobody apart in a window, shape (2: high, low; metrics): too many deviate alike."""
        config = self._config
        count = (sigmas > config.drift_sigmas).sum(axis=1)
        ratio = np.where(self._shared, config.shared_ratio, config.crowd_ratio)
        crowd: NDArray[np.bool_] = count > np.maximum(config.crowd_count, ratio * sigmas.shape[1])
        return crowd

    def skip(self, start_ns: int, end_ns: int) -> None:
        """A window that shows nothing of single hosts: it counts as judged."""
        self._judged_ns += end_ns - start_ns

    @property
    def alarmed(self) -> NDArray[np.bool_]:
        """Which hosts (rows) had an alarm when they were asked last."""
        return self._alarmed

    def alarms(self) -> list[int]:
        """Hosts (rows) with an alarm, one that goes on included."""
        best = self._total.max(axis=(0, 2), initial=0) / self._config.alarm_sum
        self._alarmed = best >= np.where(self._alarmed, self._config.keep_ratio, 1.0)
        return [int(row) for row in np.flatnonzero(self._alarmed)]

    def early_dips(self, ratio: float, metric_count: int) -> list[int]:
        """Hosts (rows) without an alarm where so many metrics have at least this share of one."""
        counts = (self._total >= ratio * self._config.alarm_sum).sum(axis=(0, 2))
        return [int(row) for row in np.flatnonzero((counts >= metric_count) & ~self._alarmed)]

    def of_host(self, row: int) -> list[MetricDeviation]:
        """What deviates on one host, strongest first: all that counts at least half of an alarm."""
        scores = self._total[:, row] / self._config.alarm_sum
        hot = np.argwhere(scores >= min(0.5, float(scores.max())))
        entries = [
            MetricDeviation(
                int(column),
                int(side),
                float(scores[side, column]),
                int(self._since_ns[side, row, column]),
                int(self._last_ns[side, row, column]),
                self._present_ratio(side, row, column),
            )
            for side, column in hot
        ]
        return sorted(entries, key=lambda entry: (-entry.score, entry.column, entry.side))

    def _present_ratio(self, side: int, row: int, column: int) -> float:
        judged_ns = self._judged_ns - int(self._begun_ns[side, row, column])
        return min(1.0, int(self._hit_ns[side, row, column]) / max(1, judged_ns))

    def to_state(self) -> dict[str, Any]:
        """JSON-able state."""
        return {**arrays_state(self, _ARRAYS, "_"), "judged_ns": self._judged_ns}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take back what ``to_state`` gave."""
        arrays_from(self, state, _ARRAYS, "_")
        self._judged_ns = state["judged_ns"]


_ARRAYS: Final = ("total", "since_ns", "last_ns", "hit_ns", "begun_ns", "alarmed")
"""The arrays of a ``Cusum``'s state."""


@dataclass(frozen=True, slots=True)
class MetricDeviation:
    """One metric that deviates.

    Attributes:
        column: which metric.
        side: ``HIGH`` or ``LOW``.
        score: sum over the alarm line.
        since_ns: begin of its first window.
        last_ns: end of the last window that added to it.
        present_ratio: share of the time judged since then in which it deviated.
    """

    column: int
    side: int
    score: float
    since_ns: int
    last_ns: int
    present_ratio: float
