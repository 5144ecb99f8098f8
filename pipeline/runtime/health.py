"""Collect each host's monitoring quality minute by minute, for the rows of ``host_health``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tocsin.pipeline.core.operator import shallow
from tocsin.pipeline.detect.align import AlignedHealth
from tocsin.pipeline.stores.base import HostHealth
from tocsin.schemas.records import NS_PER_SECOND, JobKey
from tocsin.schemas.verdicts import Anomaly, ComponentKind

_MINUTE_NS = 60 * NS_PER_SECOND
_GRACE_NS = 2 * NS_PER_SECOND


@dataclass(slots=True)
class _Minute:
    """Counts and worst score of one host in one minute."""

    sample_count: int = 0
    gap_count: int = 0
    worst_score: float = 0.0
    worst_metric: str = ""


class HealthMinutes:
    """Accumulates metric slices and anomaly scores until their minute is complete."""

    def __init__(self) -> None:
        """Start without minutes."""
        self._minutes: dict[tuple[JobKey, str, int], _Minute] = defaultdict(_Minute)
        self._late_before: dict[tuple[JobKey, str], int] = {}

    def count(self, job: JobKey, entry: AlignedHealth) -> None:
        """Add one host's metric slice."""
        minute = self._minutes[job, entry.host, (entry.end_ns - 1) // _MINUTE_NS * _MINUTE_NS]
        minute.sample_count += entry.sample_count
        minute.gap_count += int(entry.sample_count == 0)

    def score(self, anomaly: Anomaly) -> None:
        """Keep an anomaly's score if it is the highest of its host in its minute."""
        if anomaly.component.kind is not ComponentKind.HOST:
            return
        begin_ns = (anomaly.slice_end_ns - 1) // _MINUTE_NS * _MINUTE_NS
        minute = self._minutes[anomaly.job, anomaly.component.name, begin_ns]
        if anomaly.score > minute.worst_score:
            minute.worst_score, minute.worst_metric = anomaly.score, anomaly.metric

    def finish(self, now_ns: int, late_by_host: Mapping[tuple[JobKey, str], int]) -> Iterator[HostHealth]:
        """Yield and remove the minutes that can get no more slices.

        Args:
            now_ns: the current tick.
            late_by_host: late records since the start, by job and host.
        """
        yield from self._give([key for key in self._minutes if now_ns - key[2] >= _MINUTE_NS + _GRACE_NS], late_by_host)

    def finish_all(self, late_by_host: Mapping[tuple[JobKey, str], int]) -> Iterator[HostHealth]:
        """Yield and remove all minutes, including the unfinished one, because the engine stops."""
        yield from self._give(list(self._minutes), late_by_host)

    def late_before(self) -> list[list[Any]]:
        """Return the counts of late records that rows have told already, as JSON-able values."""
        return [
            [[job.cluster, job.job_id, job.attempt], host, count]
            for (job, host), count in sorted(self._late_before.items())
        ]

    def load_late_before(self, state: Sequence[Sequence[Any]]) -> None:
        """Replace the counts of late records by what ``late_before`` returned."""
        self._late_before = {(JobKey(*job), host): count for job, host, count in state}

    def to_state(self) -> dict[str, Any]:
        """Return the state as JSON-able values, without the counts of late records, which restart with the engine."""
        return {
            "minutes": [
                [[job.cluster, job.job_id, job.attempt], host, begin_ns, list(shallow(minute).values())]
                for (job, host, begin_ns), minute in self._minutes.items()
            ]
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Replace the state by what ``to_state`` returned."""
        self._minutes.clear()
        for job, host, begin_ns, fields in state["minutes"]:
            self._minutes[JobKey(*job), host, begin_ns] = _Minute(*fields)

    def _give(
        self, keys: list[tuple[JobKey, str, int]], late_by_host: Mapping[tuple[JobKey, str], int]
    ) -> Iterator[HostHealth]:
        """Yield and remove the rows of these minutes, with the late records that each host had since its last row."""
        for gone in [host for host in self._late_before if keys and host not in late_by_host]:
            del self._late_before[gone]
        for key in keys:
            minute = self._minutes.pop(key)
            job, host, begin_ns = key
            late = late_by_host.get((job, host), 0)
            yield HostHealth(
                job,
                host,
                begin_ns,
                minute.sample_count,
                max(0, late - self._late_before.get((job, host), 0)),
                minute.gap_count,
                minute.worst_score,
                minute.worst_metric,
            )
            if late:
                self._late_before[job, host] = late
