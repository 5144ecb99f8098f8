"""The last minutes of a job's numbers, kept by the runtime for the evidence of its verdicts.

What a human needs to believe a verdict: the suspect's series beside its peers' median
and their 5 and 95 %, from five minutes before the onset. Bounded: one value per rank
(or host), metric and second; for very large jobs a fixed sample of the peers.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tocsin.pipeline.detect.align import AlignedHealth
from tocsin.pipeline.stores.base import EvidencePoint
from tocsin.schemas.metrics import BUILTIN_TABLE_ID, HOST_METRICS
from tocsin.schemas.records import NS_PER_SECOND, StepBatch
from tocsin.schemas.verdicts import Component, ComponentKind, Verdict

STEP_METRICS = (
    "own_seconds",
    "step_seconds",
    "data_seconds",
    "forward_seconds",
    "backward_seconds",
    "optimizer_seconds",
    "communication_seconds",
)


@dataclass(frozen=True, slots=True)
class HistoryConfig:
    """Settings.

    Attributes:
        kept_seconds: length of the history.
        before_onset_seconds: how much of it goes with a verdict.
        max_component_count: ranks (or hosts) kept; above, a sample by hash. 512 peers give the
            5 and 95 % to within a percent.
    """

    kept_seconds: int = 600
    before_onset_seconds: int = 300
    max_component_count: int = 512


class JobHistory:
    """Second by second: metric -> component -> value."""

    def __init__(self, config: HistoryConfig) -> None:
        """Start empty."""
        self._config = config
        self._values: dict[str, dict[int, dict[str, float]]] = {}
        self._hosts: dict[str, str] = {}
        """rank -> host."""

    def take_steps(self, batches: Sequence[StepBatch]) -> None:
        """Keep the longest value of each second."""
        for batch in batches:
            for row in batch.rows:
                rank = str(row.rank)
                self._hosts[rank] = batch.host
                own = None if row.communication_seconds is None else row.duration_seconds - row.communication_seconds
                values = (
                    own,
                    row.duration_seconds,
                    row.data_seconds,
                    row.forward_seconds,
                    row.backward_seconds,
                    row.optimizer_seconds,
                    row.communication_seconds,
                )
                for metric, value in zip(STEP_METRICS, values, strict=True):
                    if value is not None and math.isfinite(value):
                        self._keep(metric, row.ts_ns // NS_PER_SECOND, rank, value)

    def take_health(self, health: Sequence[AlignedHealth]) -> None:
        """Keep the hosts' metrics of one metric slice."""
        for entry in health:
            if entry.table_id != BUILTIN_TABLE_ID:
                continue
            for metric, value in zip(HOST_METRICS, entry.host_metrics, strict=False):
                if math.isfinite(value):
                    self._keep(metric.name, (entry.end_ns - 1) // NS_PER_SECOND, entry.host, value)

    def _keep(self, metric: str, second: int, name: str, value: float) -> None:
        series = self._values.setdefault(metric, {})
        at = series.setdefault(second, {})
        if name not in at and len(at) >= self._config.max_component_count and zlib.crc32(name.encode()) % 8:
            return
        at[name] = max(value, at.get(name, -math.inf))
        if len(series) > self._config.kept_seconds:
            for old in sorted(series)[: len(series) - self._config.kept_seconds]:
                del series[old]

    def evidence(self, verdict: Verdict, until_ns: int) -> list[EvidencePoint]:
        """The series behind a verdict: each cited metric that has one, and own/step time for slowness."""
        cited = {entry.metric for entry in verdict.evidence}
        metrics = [name for name in (*STEP_METRICS, *(m.name for m in HOST_METRICS)) if name in cited]
        if verdict.suspects and "own_seconds" not in metrics:
            metrics.append("own_seconds")
        if "cpu_util_ratio" not in metrics:
            metrics.append("cpu_util_ratio")
        first = verdict.onset_ns // NS_PER_SECOND - self._config.before_onset_seconds
        last = until_ns // NS_PER_SECOND
        points: list[EvidencePoint] = []
        for metric in metrics:
            for second in sorted(self._values.get(metric, {})):
                if first <= second <= last:
                    points.extend(self._points(verdict, metric, second))
        return points

    def _points(self, verdict: Verdict, metric: str, second: int) -> list[EvidencePoint]:
        at = self._values[metric][second]
        suspects = self._suspect_values(verdict, at, by_rank=metric in STEP_METRICS)
        names = {name for _, values in suspects for name in values}
        peers = np.array([value for name, value in at.items() if name not in names])
        if peers.size == 0:
            middle = low = high = math.nan
        else:
            low, middle, high = (float(value) for value in np.percentile(peers, (5, 50, 95)))
        return [
            EvidencePoint(
                verdict.verdict_id,
                metric,
                component,
                second * NS_PER_SECOND,
                max(values.values(), default=math.nan),
                middle,
                low,
                high,
                int(peers.size),
            )
            for component, values in suspects
        ]

    def _suspect_values(
        self, verdict: Verdict, at: Mapping[str, float], *, by_rank: bool
    ) -> list[tuple[Component, dict[str, float]]]:
        """Each suspect with its values of this second; the job itself where nobody is accused."""
        if not verdict.suspects:
            return [(Component(ComponentKind.JOB, verdict.job.job_id), {})]
        found = []
        for suspect in verdict.suspects:
            if by_rank and suspect.ranks:
                wanted = {str(rank) for rank in suspect.ranks}
            elif by_rank:
                wanted = {rank for rank, host in self._hosts.items() if host == suspect.component.name}
            else:
                wanted = {suspect.component.name}
            found.append((suspect.component, {name: at[name] for name in wanted if name in at}))
        return found
