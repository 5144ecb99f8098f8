"""Construction of anomalies about machines that deviate from their peers, with the metrics that show it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tocsin.models.peer_scales import plain
from tocsin.pipeline.detect.peers.cusum import LOW, Cusum, MetricDeviation
from tocsin.pipeline.detect.peers.rows import GPU_SAMPLES, Block
from tocsin.pipeline.detect.peers.standstill import Seen
from tocsin.schemas.metrics import Metric
from tocsin.schemas.records import Slice
from tocsin.schemas.verdicts import Anomaly, Component, ComponentKind

DETECTOR = "peers"
CONGESTION_METRICS = frozenset({"pfc_tx_packets_per_second", "ecn_packets_per_second", "cnp_packets_per_second"})
"""Metrics of network congestion: PFC pause frames, ECN marks and CNP packets per second."""
_FEWEST_NEIGHBOURS = 2
"""Fewest known neighbours behind a switch whose congestion is compared."""
_FEWEST_GPUS = 2
"""Fewest GPUs of a host among which a single one can be named."""
_LONE_SIGMAS, _ALONE_RATIO = 3.0, 3.0
"""Least deviation in standard deviations of a single GPU that is named, and its least ratio to every other GPU of the
host. It must also deviate more than the host's mean; of eight similar GPUs one deviates a little more by chance."""


@dataclass(frozen=True, slots=True)
class AnomalyBuilder:
    """Builder of anomalies from accumulated deviations.

    Attributes:
        hosts: host names, ascending; the rows.
        metrics: columns of the sums: host metrics, means of GPU metrics, share of GPU samples.
        host_metric_count: number of leading columns that are host metrics.
        blocks: learned levels by kind of row: ``host``, ``mean`` and ``gpu``.
        model_version: version of the thresholds in use.
        neighbours_of: host -> other hosts behind the same switch.
    """

    hosts: Sequence[str]
    metrics: Sequence[Metric]
    host_metric_count: int
    blocks: Mapping[str, Block]
    model_version: str
    neighbours_of: Callable[[str], Collection[str]]

    def anomaly(self, data: Slice, row: int, sums: Cusum, seen: Seen) -> Anomaly:
        """Return the anomaly of one host, with all metrics that deviate.

        Args:
            data: current slice.
            row: row of the host.
            sums: accumulated deviations.
            seen: current window.
        """
        entries = sums.of_host(row)
        alarmed = [entry for entry in entries if entry.score >= 1.0] or entries[:1]
        return Anomaly(
            job=data.job,
            slice_end_ns=data.end_ns,
            component=Component(ComponentKind.HOST, self.hosts[row]),
            metric=self.metrics[entries[0].column].name,
            start_ns=min(entry.since_ns for entry in alarmed),
            end_ns=max(entry.last_ns for entry in entries),
            score=entries[0].score,
            detector=DETECTOR,
            model_version=self.model_version,
            detail={"metrics": [self._described(entry, row, seen) for entry in entries]},
        )

    def _described(self, entry: MetricDeviation, row: int, seen: Seen) -> dict[str, Any]:
        """Return one deviating metric as a dictionary for the anomaly's ``detail``.

        Keys: ``metric``, ``direction``, ``score``, ``since_ns``, ``present_ratio``. Where known also ``sigmas``,
        ``value``, ``expected``, ``neighbours_ratio`` and ``gpu``.
        """
        value, expected = self._value_of(entry.column, row, seen)
        numbers = {
            "sigmas": float(seen.sigmas[entry.side, row, entry.column]),
            "value": value,
            "expected": expected,
            "neighbours_ratio": self._neighbours_ratio(entry, row, seen),
        }
        return {
            "metric": self.metrics[entry.column].name,
            "direction": "low" if entry.side == LOW else "high",
            "score": round(entry.score, 4),
            "since_ns": entry.since_ns,
            "present_ratio": round(entry.present_ratio, 4),
            **{key: float(f"{value:.5g}") for key, value in numbers.items() if np.isfinite(value)},
            **self._lone_gpu(entry, row, seen),
        }

    def _lone_gpu(self, entry: MetricDeviation, row: int, seen: Seen) -> dict[str, Any]:
        """Return {"gpu": name, value and expected value} if a single GPU of the host deviates; {} otherwise."""
        column = entry.column - self.host_metric_count
        block, window = self.blocks["gpu"], seen.windows["gpu"]
        if not 0 <= column < len(block.metrics):
            return {}
        first, last = np.searchsorted(seen.of_host, [row, row + 1])
        side = -1 if entry.side == LOW else 1
        sigmas = np.nan_to_num(side * window.sigmas[first:last, column], nan=0.0)
        if len(sigmas) < _FEWEST_GPUS:
            return {}
        own = int(sigmas.argmax())
        others = float(np.delete(sigmas, own).max())
        of_mean = side * float(seen.windows["mean"].sigmas[row, column])
        if not sigmas[own] > max(_LONE_SIGMAS, _ALONE_RATIO * others, np.nan_to_num(of_mean)):
            return {}
        gpu = first + own
        expected = float(plain(window.expected[gpu, column], block.scales[column]))
        value = float(seen.values["gpu"][gpu, column])
        return {
            "gpu": {"name": block.names[gpu][1], "value": float(f"{value:.5g}"), "expected": float(f"{expected:.5g}")}
        }

    def _neighbours_ratio(self, entry: MetricDeviation, row: int, seen: Seen) -> float:
        """Return the median excess congestion of the hosts behind the same switch, divided by this host's own excess.

        NaN for other metrics and low values, with fewer than two known neighbours, or without own excess.
        """
        if self.metrics[entry.column].name not in CONGESTION_METRICS or entry.side == LOW:
            return float("nan")
        behind = ((bisect_left(self.hosts, host), host) for host in self.neighbours_of(self.hosts[row]))
        known = (index for index, host in behind if index < len(self.hosts) and self.hosts[index] == host)
        pairs = (self._value_of(entry.column, index, seen) for index in known)
        excess = [value - expected for value, expected in pairs if np.isfinite(value - expected)]
        value, expected = self._value_of(entry.column, row, seen)
        if len(excess) < _FEWEST_NEIGHBOURS or not value > expected:
            return float("nan")
        return float(np.median(excess)) / (value - expected)

    def _value_of(self, column: int, row: int, seen: Seen) -> tuple[float, float]:
        """Return (value, expected value) of one metric of a host, in the metric's unit."""
        if self.metrics[column] is GPU_SAMPLES:
            return float(seen.sample_shares[row]), 1.0
        of_host = self.host_metric_count
        name, column = ("host", column) if column < of_host else ("mean", column - of_host)
        expected = seen.windows[name].expected[row, column]
        return float(seen.values[name][row, column]), float(plain(expected, self.blocks[name].scales[column]))


def joined(first: Anomaly, second: Anomaly) -> Anomaly:
    """Return one anomaly from two of the same host, with the metrics of both; the first one's take precedence."""
    known = {(metric["metric"], metric["direction"]) for metric in first.detail["metrics"]}
    added = [m for m in second.detail["metrics"] if (m["metric"], m["direction"]) not in known]
    return replace(
        first,
        start_ns=min(first.start_ns, second.start_ns),
        end_ns=max(first.end_ns, second.end_ns),
        score=max(first.score, second.score),
        detail={**first.detail, "metrics": [*first.detail["metrics"], *added]},
    )
