"""What the peer detector says of a machine that differs: an anomaly with the metrics that show it."""

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
_FEWEST_NEIGHBOURS = 2
_FEWEST_GPUS = 2
_LONE_SIGMAS, _ALONE_RATIO = 3.0, 3.0
"""One GPU is named when it is out of the usual scatter, three times as far as any other one of the machine, and further
than their mean: of eight that differ alike, by chance one differs a little more."""


@dataclass(frozen=True, slots=True)
class AnomalyBuilder:
    """Puts sums into words.

    Attributes:
        hosts: row keys, ascending.
        metrics: columns of the sums: the hosts' own, the means of their GPUs, the share of samples.
        host_metric_count: so many of them are the hosts' own.
        blocks: levels by ``host``, ``mean`` and ``gpu``.
        model_version: of the numbers that judged.
        neighbours_of: the other hosts behind a host's switch.
    """

    hosts: Sequence[str]
    metrics: Sequence[Metric]
    host_metric_count: int
    blocks: Mapping[str, Block]
    model_version: str
    neighbours_of: Callable[[str], Collection[str]]

    def anomaly(self, data: Slice, row: int, sums: Cusum, seen: Seen) -> Anomaly:
        """What has added up against the host of one row."""
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
        """Which of the host's GPUs differs alone, and how: an operator replaces one card. Nothing where none does."""
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
        """How jammed the hosts behind the same switch are (their median) as a share of how jammed this one is."""
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
        """A host's value of one metric, and what was expected."""
        if self.metrics[column] is GPU_SAMPLES:
            return float(seen.sample_shares[row]), 1.0
        of_host = self.host_metric_count
        name, column = ("host", column) if column < of_host else ("mean", column - of_host)
        expected = seen.windows[name].expected[row, column]
        return float(seen.values[name][row, column]), float(plain(expected, self.blocks[name].scales[column]))


def joined(first: Anomaly, second: Anomaly) -> Anomaly:
    """Two anomalies of one host: the metrics of both, each as the first tells it."""
    told = {(metric["metric"], metric["direction"]) for metric in first.detail["metrics"]}
    more = [m for m in second.detail["metrics"] if (m["metric"], m["direction"]) not in told]
    return replace(
        first,
        start_ns=min(first.start_ns, second.start_ns),
        end_ns=max(first.end_ns, second.end_ns),
        score=max(first.score, second.score),
        detail={**first.detail, "metrics": [*first.detail["metrics"], *more]},
    )
