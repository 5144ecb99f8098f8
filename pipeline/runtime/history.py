"""Keep the last minutes of a job's metrics, as evidence to show with its verdicts.

The evidence is the suspect's series next to its peers' median, 5th and 95th percentile, from five minutes before the
onset. Memory is bounded: one value per rank (or host), metric and second, and a fixed sample of the peers in large
jobs.
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
"""Names of the step metrics, in the order in which ``JobHistory.take_steps`` reads them."""


@dataclass(frozen=True, slots=True)
class HistoryConfig:
    """Settings of the history.

    Attributes:
        kept_seconds: length of the history.
        before_onset_seconds: how much of the time before the onset is written with a verdict.
        max_component_count: number of ranks (or hosts) up to which all are kept; above it, a sample by hash is added.
            512 peers give the 5th and 95th percentile to within one percent.
    """

    kept_seconds: int = 600
    before_onset_seconds: int = 300
    max_component_count: int = 512


class JobHistory:
    """Recent values of one job, by metric, second and component."""

    def __init__(self, config: HistoryConfig) -> None:
        """Start without values."""
        self._config = config
        self._values: dict[str, dict[int, dict[str, float]]] = {}
        self._hosts: dict[str, str] = {}
        """Rank (as text) -> host."""

    def take_steps(self, batches: Sequence[StepBatch]) -> None:
        """Add the step times of these batches; of several values in one second the highest is kept."""
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
        """Add the host metrics of one metric slice."""
        for entry in health:
            if entry.table_id != BUILTIN_TABLE_ID:
                continue
            for metric, value in zip(HOST_METRICS, entry.host_metrics, strict=False):
                if math.isfinite(value):
                    self._keep(metric.name, (entry.end_ns - 1) // NS_PER_SECOND, entry.host, value)

    def _keep(self, metric: str, second: int, name: str, value: float) -> None:
        """Store one value, unless the sample is full, and drop the oldest seconds."""
        series = self._values.setdefault(metric, {})
        at = series.setdefault(second, {})
        if name not in at and len(at) >= self._config.max_component_count and zlib.crc32(name.encode()) % 8:
            return
        at[name] = max(value, at.get(name, -math.inf))
        if len(series) > self._config.kept_seconds:
            for old in sorted(series)[: len(series) - self._config.kept_seconds]:
                del series[old]

    def evidence(self, verdict: Verdict, until_ns: int) -> list[EvidencePoint]:
        """Return the series behind a verdict up to ``until_ns``.

        They cover each cited metric that has a series, CPU use, and the self time of steps where a machine is
        suspected.
        """
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
        """Return the evidence points of one metric and second, one per suspect."""
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
        """Return each suspect with its values {rank or host: value} of one second.

        Without suspects the job with no values.
        """
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
