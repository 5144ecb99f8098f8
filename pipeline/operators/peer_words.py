"""What the peer detector says of a machine that differs: an anomaly with the metrics that show it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tocsin.models.peer_scales import plain
from tocsin.pipeline.operators.peer_rows import GPU_SAMPLES, Block
from tocsin.pipeline.operators.peer_standing import Seen
from tocsin.pipeline.operators.peer_sums import LOW, Entry, Sums
from tocsin.schemas.metrics import Metric
from tocsin.schemas.records import Slice
from tocsin.schemas.verdicts import Anomaly, Component, ComponentKind

DETECTOR = "peers"
JAM_METRICS = frozenset({"pfc_tx_packets_per_second", "ecn_packets_per_second", "cnp_packets_per_second"})
_FEWEST_NEIGHBOURS = 2


@dataclass(frozen=True, slots=True)
class Words:
    """Puts sums into words.

    Attributes:
        hosts: row keys, ascending.
        metrics: columns of the sums: the hosts' own, the means of their GPUs, the share of samples.
        host_metric_count: so many of them are the hosts' own.
        blocks: levels by ``host`` and ``mean``.
        model_version: of the numbers that judged.
        neighbours_of: the other hosts behind a host's switch.
    """

    hosts: Sequence[str]
    metrics: Sequence[Metric]
    host_metric_count: int
    blocks: Mapping[str, Block]
    model_version: str
    neighbours_of: Callable[[str], Collection[str]]

    def anomaly(self, data: Slice, row: int, sums: Sums, seen: Seen) -> Anomaly:
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

    def _described(self, entry: Entry, row: int, seen: Seen) -> dict[str, Any]:
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
        }

    def _neighbours_ratio(self, entry: Entry, row: int, seen: Seen) -> float:
        """How jammed the hosts behind the same switch are (their median) as a share of how jammed this one is."""
        if self.metrics[entry.column].name not in JAM_METRICS or entry.side == LOW:
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
