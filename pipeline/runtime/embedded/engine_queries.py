"""Read-only queries on a running engine."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

from tocsin.pipeline.core.slices import SliceBuffer
from tocsin.pipeline.runtime.embedded.engine_status import expected_hosts, status_of
from tocsin.pipeline.runtime.embedded.observers import Observers
from tocsin.pipeline.runtime.history import JobHistory
from tocsin.pipeline.runtime.job_pipeline import JobPipeline
from tocsin.pipeline.runtime.model_schedule import ModelSchedule
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import IDLE_JOB_ID, JobKey
from tocsin.schemas.verdicts import FaultKind, VerdictState


class EngineQueries:
    """Read-only queries on the engine's state; the state itself belongs to the derived class.

    Attributes:
        models: the announced models.
        counters: counts of accepted and refused records, and more.
        late_by_host: number of late records by job and host.
    """

    models: ModelSchedule
    counters: Counter[str]
    late_by_host: Counter[tuple[JobKey, str]]
    _buffer: SliceBuffer
    _pipelines: dict[JobKey, JobPipeline]
    _observers: Observers
    _lock: threading.Lock
    _now_ns: int | None

    def known_jobs(self) -> frozenset[JobKey]:
        """Return the jobs that get a slice bundle each second, including those that have had none yet."""
        with self._lock:
            return frozenset(self._buffer.jobs)

    def has_open_verdict(self, job: JobKey) -> bool:
        """Return whether a job has an open verdict now."""
        pipeline = self._pipelines.get(job)
        return pipeline is not None and bool(pipeline.decide.live)

    def open_incidents(self) -> Counter[tuple[FaultKind, VerdictState]]:
        """Return the number of open incidents of all jobs, by fault and state."""
        with self._lock:
            return Counter(
                (one.fault, one.state) for pipeline in self._pipelines.values() for one in pipeline.decide.live
            )

    def pipeline(self, job: JobKey) -> JobPipeline | None:
        """Return a job's pipeline for reading only, None if the job is unknown."""
        return self._pipelines.get(job)

    def changes_of(self, job: JobKey, host: str) -> list[tuple[int, Reason]]:
        """Return the recent changes of a job and host as (time in ns, reason): moved ranks, or a new model."""
        pipeline = self._pipelines.get(job)
        if pipeline is None:
            return []
        moved_ns = pipeline.graph.places_changed_ns.get(host, 0)
        changed = ((moved_ns, Reason.PLACES_CHANGED), (pipeline.model_changed_ns, Reason.MODEL_CHANGED))
        return [(at_ns, reason) for at_ns, reason in changed if at_ns]

    def history(self, job: JobKey) -> JobHistory | None:
        """Return the recent metrics of a job, None if none are kept."""
        return self._observers.history(job)

    @property
    def watermark_ns(self) -> int | None:
        """All slices that end at or before this time are processed; None = no tick yet."""
        return self._buffer.watermark_ns

    @property
    def now_ns(self) -> int | None:
        """The newest tick, None = no tick yet."""
        return self._now_ns

    def jobs(self) -> tuple[JobKey, ...]:
        """Return the jobs that have a pipeline, sorted."""
        with self._lock:
            return tuple(sorted(self._pipelines))

    def running_jobs(self) -> tuple[JobKey, ...]:
        """Return the jobs that have not ended, sorted, without the idle hosts' job."""
        with self._lock:
            return tuple(
                sorted(
                    job
                    for job, pipeline in self._pipelines.items()
                    if job.job_id != IDLE_JOB_ID and not pipeline.graph.ended()
                )
            )

    def expected_hosts(self, within_ns: int) -> frozenset[str]:
        """Return the hosts of running jobs that were heard within ``within_ns`` before the newest tick."""
        with self._lock:
            return expected_hosts(self._pipelines.values(), (self._now_ns or 0) - within_ns)

    def status(self, job_id: str | None = None) -> dict[str, Any]:
        """Return all facts that explain why there is, or is not, a verdict.

        Hosts, ranks, groups, lateness, abstentions.

        Args:
            job_id: only this job, None = all.
        """
        with self._lock:
            jobs = [
                status_of(job, pipeline, self._now_ns or 0, self.late_by_host)
                for job, pipeline in sorted(self._pipelines.items())
                if job_id is None or job.job_id == job_id
            ]
            return {
                "now_ns": self._now_ns,
                "counters": dict(self.counters),
                "jobs": jobs,
                "models": self.models.status(self._now_ns or 0),
            }
