"""Cumulative sums (CUSUM) of deviations: strong ones alarm soon, weak ones late, jitter never."""

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
"""Index of the side on which a value deviates."""


@dataclass(frozen=True, slots=True)
class SumConfig:
    """Settings of a CUSUM.

    Attributes:
        max_sigmas: most standard deviations that one window contributes.
        drift_sigmas: amount subtracted per window; smaller deviations are no evidence.
        alarm_sum: alarm threshold.
        limit_ratio: upper limit of a sum as a multiple of the threshold, so that the end of a fault shows.
        keep_ratio: share of the threshold above which an existing alarm continues.
        decays: whether sums fall again.
        window_seconds: window length of these settings; a longer window has a higher weight ...
        max_window_factor: ... up to this factor.
        crowd_ratio: share of hosts that deviate alike in a window, above which the metric is ignored there. A change of
            the whole job shows in some hosts' windows earlier, and would alarm some by chance ...
        crowd_count: ... unless it is at most this many hosts: two faults are no crowd.
        shared_ratio: the same share for metrics that a network marks on many machines at once.
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
"""Congestion marks, which a congested switch sets on the packets of all machines behind it; pause frames are a host's
own."""


def shared_columns(metrics: Sequence[Metric]) -> list[int]:
    """Return the indices of metrics that a network marks on many machines at once."""
    return [column for column, metric in enumerate(metrics) if metric.name in _MARKS]


class Cusum:
    """Cumulative sums for hosts and metrics, separately for high and low values."""

    def __init__(self, config: SumConfig, metric_count: int, host_count: int = 0, shared: Collection[int] = ()) -> None:
        """Start with all sums at zero.

        Args:
            config: settings.
            metric_count: number of columns.
            host_count: number of rows.
            shared: columns of metrics that a network marks on many machines at once.
        """
        self._config = config
        self._shared: NDArray[np.bool_] = np.isin(np.arange(metric_count), list(shared))
        """Columns that a network marks on many machines at once, shape (metrics,)."""
        self._total: FloatArray = np.zeros((2, host_count, metric_count), np.float32)
        """Sums, shape (2: high, low; hosts, metrics)."""
        self._since_ns: NDArray[np.int64] = np.zeros((2, host_count, metric_count), np.int64)
        """Start of each deviation's first window, same shape."""
        self._last_ns: NDArray[np.int64] = np.zeros((2, host_count, metric_count), np.int64)
        """End of the last window that added to each sum, same shape."""
        self._hit_ns: NDArray[np.int64] = np.zeros((2, host_count, metric_count), np.int64)
        """Total duration of windows in which each deviation was present, same shape."""
        self._begun_ns: NDArray[np.int64] = np.zeros((2, host_count, metric_count), np.int64)
        """Value of ``_judged_ns`` at the start of each deviation, so that time without judgement does not count as
        absence."""
        self._judged_ns = 0
        """Total duration of judged windows in nanoseconds."""
        self._alarmed: NDArray[np.bool_] = np.zeros(host_count, bool)
        """Hosts with an alarm at the last call of ``alarms``, shape (hosts,)."""

    def configure(self, config: SumConfig) -> None:
        """Replace the settings; the sums stay."""
        self._config = config

    def grow(self, rows: Sequence[int], host_count: int) -> None:
        """Move host i to row ``rows[i]`` of a table with ``host_count`` rows."""
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
        """Keep only the hosts of these rows, in this order."""
        for name in ("_total", "_since_ns", "_last_ns", "_hit_ns", "_begun_ns"):
            setattr(self, name, getattr(self, name)[:, list(rows)])
        self._alarmed = self._alarmed[list(rows)]

    def clear(self) -> None:
        """Reset all sums and alarms."""
        self._total[:] = 0
        self._alarmed[:] = False

    def forget(self, rows: Sequence[int]) -> None:
        """Reset the sums and alarms of these rows."""
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
        """Add one window's deviations to the sums, weighted by its length.

        Args:
            sigmas: deviations >= 0 in standard deviations, shape (2: high, low; hosts, metrics), NaN = no sample.
            start_ns: start of the window.
            end_ns: end of the window.
            among: metrics to update, shape (metrics,); None: all.
            judges_rest: whether the other metrics count as observed without deviation; False: not observed.
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
        """Return which metrics deviate on too many hosts to tell any apart, shape (2: high, low; metrics)."""
        config = self._config
        count = (sigmas > config.drift_sigmas).sum(axis=1)
        ratio = np.where(self._shared, config.shared_ratio, config.crowd_ratio)
        crowd: NDArray[np.bool_] = count > np.maximum(config.crowd_count, ratio * sigmas.shape[1])
        return crowd

    def skip(self, start_ns: int, end_ns: int) -> None:
        """Count a window's duration as judged although single hosts were not compared in it."""
        self._judged_ns += end_ns - start_ns

    @property
    def alarmed(self) -> NDArray[np.bool_]:
        """Mask of hosts (rows) that had an alarm at the last call of ``alarms``."""
        return self._alarmed

    def alarms(self) -> list[int]:
        """Return the rows with an alarm, new or continuing, and remember them."""
        best = self._total.max(axis=(0, 2), initial=0) / self._config.alarm_sum
        self._alarmed = best >= np.where(self._alarmed, self._config.keep_ratio, 1.0)
        return [int(row) for row in np.flatnonzero(self._alarmed)]

    def early_dips(self, ratio: float, metric_count: int) -> list[int]:
        """Return rows without an alarm where at least ``metric_count`` sums reach ``ratio`` of the alarm threshold."""
        counts = (self._total >= ratio * self._config.alarm_sum).sum(axis=(0, 2))
        return [int(row) for row in np.flatnonzero((counts >= metric_count) & ~self._alarmed)]

    def of_host(self, row: int) -> list[MetricDeviation]:
        """Return a row's deviations, strongest first: all that reach half of the alarm threshold, at least one."""
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
        """Return the share of the judged time since its start in which a deviation was present."""
        judged_ns = self._judged_ns - int(self._begun_ns[side, row, column])
        return min(1.0, int(self._hit_ns[side, row, column]) / max(1, judged_ns))

    def to_state(self) -> dict[str, Any]:
        """Return the state as JSON-serialisable values, for a snapshot."""
        return {**arrays_state(self, _ARRAYS, "_"), "judged_ns": self._judged_ns}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the state from values that ``to_state`` returned."""
        arrays_from(self, state, _ARRAYS, "_")
        self._judged_ns = state["judged_ns"]


_ARRAYS: Final = ("total", "since_ns", "last_ns", "hit_ns", "begun_ns", "alarmed")
"""The arrays of a ``Cusum``'s state."""


@dataclass(frozen=True, slots=True)
class MetricDeviation:
    """Accumulated deviation of one metric of one host.

    Attributes:
        column: index of the metric.
        side: ``HIGH`` or ``LOW``.
        score: sum divided by the alarm threshold.
        since_ns: start of its first window.
        last_ns: end of the last window that added to it.
        present_ratio: share of the judged time since then in which it deviated.
    """

    column: int
    side: int
    score: float
    since_ns: int
    last_ns: int
    present_ratio: float
