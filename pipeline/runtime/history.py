"""Keep the last minutes of a job's metrics, as evidence to show with its verdicts.

The evidence is the suspect's series next to its peers' median, 5th and 95th percentile, from five minutes before the
onset. Memory is bounded: one value per rank (or host), metric and second, and a fixed sample of the peers in large
jobs.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from tocsin.pipeline.core.operator import pack_state, unpack_state
from tocsin.pipeline.core.state_maps import pairs_from, pairs_state
from tocsin.pipeline.detect.align import AlignedHealth
from tocsin.pipeline.runtime.value_table import ValueTable
from tocsin.pipeline.stores.base import EvidencePoint
from tocsin.schemas.metrics import BUILTIN_TABLE_ID, HOST_METRICS
from tocsin.schemas.records import NS_PER_SECOND, StepBatch
from tocsin.schemas.verdicts import Component, ComponentKind, Suspect, Verdict

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
_HOST_NAMES: Final = tuple(metric.name for metric in HOST_METRICS)
_STEPS, _HEALTH, _HOSTS = "steps/", "health/", "hosts"
"""Names of snapshot parts: prefixes of the two tables, and the part with the ranks' hosts."""


@dataclass(frozen=True, slots=True)
class HistoryConfig:
    """Settings of the history.

    Attributes:
        kept_seconds: length of the history.
        before_onset_seconds: how much of the time before the onset is written with a verdict.
        max_component_count: number of ranks (or hosts) up to which all are kept; above it, a sample by hash of as many
            again is added. 512 peers give the 5th and 95th percentile to within one percent.
        max_suspect_count: number of suspects whose series are written with a verdict, the first ones.
    """

    kept_seconds: int = 600
    before_onset_seconds: int = 300
    max_component_count: int = 512
    max_suspect_count: int = 32


class JobHistory:
    """Recent values of one job, by metric, second and component."""

    def __init__(self, config: HistoryConfig) -> None:
        """Start without values."""
        self._config = config
        bounds = (config.kept_seconds, config.max_component_count)
        self._steps = ValueTable(len(STEP_METRICS), *bounds)
        self._health = ValueTable(len(HOST_METRICS), *bounds)
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
                reported = tuple(math.nan if value is None else value for value in values)
                self._steps.keep(row.ts_ns // NS_PER_SECOND, rank, reported)

    def take_health(self, health: Sequence[AlignedHealth]) -> None:
        """Add the host metrics of one metric slice."""
        for entry in health:
            if entry.table_id == BUILTIN_TABLE_ID and len(entry.host_metrics) == len(HOST_METRICS):
                self._health.keep((entry.end_ns - 1) // NS_PER_SECOND, entry.host, entry.host_metrics)

    def snapshot(self, known: Collection[str] = ()) -> dict[str, bytes]:
        """Return the state as named parts; unchanged ones named in ``known`` are given as ``UNCHANGED``."""
        parts = {_HOSTS: pack_state(pairs_state(self._hosts))}
        for prefix, table in ((_STEPS, self._steps), (_HEALTH, self._health)):
            own = frozenset(name.removeprefix(prefix) for name in known if name.startswith(prefix))
            parts.update({f"{prefix}{name}": data for name, data in table.snapshot(own).items()})
        return parts

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Replace the state by the parts that ``snapshot`` returned.

        Raises:
            SnapshotError: a part is missing, damaged or of another version.
        """
        self._hosts = pairs_from(unpack_state(parts, _HOSTS))
        for prefix, table in ((_STEPS, self._steps), (_HEALTH, self._health)):
            own = {name.removeprefix(prefix): data for name, data in parts.items() if name.startswith(prefix)}
            table.restore(own)

    def evidence(self, verdict: Verdict, until_ns: int) -> list[EvidencePoint]:
        """Return the series behind a verdict up to ``until_ns``.

        They cover each cited metric that has a series, CPU use, and the self time of steps where a machine is
        suspected.
        """
        cited = {entry.metric for entry in verdict.evidence}
        metrics = [name for name in (*STEP_METRICS, *_HOST_NAMES) if name in cited]
        if verdict.suspects and "own_seconds" not in metrics:
            metrics.append("own_seconds")
        if "cpu_util_ratio" not in metrics:
            metrics.append("cpu_util_ratio")
        first = verdict.onset_ns // NS_PER_SECOND - self._config.before_onset_seconds
        last = until_ns // NS_PER_SECOND
        points: list[EvidencePoint] = []
        for metric in metrics:
            by_rank = metric in STEP_METRICS
            table, names = (self._steps, STEP_METRICS) if by_rank else (self._health, _HOST_NAMES)
            index = names.index(metric)
            wanted = [(one.component, self._names_of(one, by_rank=by_rank)) for one in verdict.suspects]
            accused = frozenset[str]().union(*(of_one for _, of_one in wanted))
            shown = wanted[: self._config.max_suspect_count] or [(_job_of(verdict), set())]
            for second in table.seconds(first, last):
                if at := table.column(second, index):
                    points.extend(_points(verdict.verdict_id, metric, second, _Values(at, accused, shown)))
        return points

    def _names_of(self, suspect: Suspect, *, by_rank: bool) -> set[str]:
        """Return the names under which a suspect's values are kept."""
        if not by_rank:
            return {suspect.component.name}
        if suspect.ranks:
            return {str(rank) for rank in suspect.ranks}
        return {rank for rank, host in self._hosts.items() if host == suspect.component.name}


class _Values(NamedTuple):
    """Values of one metric in one second.

    Attributes:
        at: name of a rank or host -> its value.
        accused: names that are no peers.
        shown: each suspect whose series is wanted, with the names of its values.
    """

    at: Mapping[str, float]
    accused: frozenset[str]
    shown: Sequence[tuple[Component, set[str]]]


def _job_of(verdict: Verdict) -> Component:
    """Return the component that evidence without suspects is written for."""
    return Component(ComponentKind.JOB, verdict.job.job_id)


def _points(verdict_id: str, metric: str, second: int, values: _Values) -> list[EvidencePoint]:
    """Return the evidence points of one metric and second, one per suspect."""
    at = values.at
    peers = np.array([value for name, value in at.items() if name not in values.accused])
    if peers.size == 0:
        middle = low = high = math.nan
    else:
        low, middle, high = (float(value) for value in np.percentile(peers, (5, 50, 95)))
    return [
        EvidencePoint(
            verdict_id,
            metric,
            component,
            second * NS_PER_SECOND,
            max((at[name] for name in wanted if name in at), default=math.nan),
            middle,
            low,
            high,
            int(peers.size),
        )
        for component, wanted in values.shown
    ]
