"""What is asked of a running engine; nothing here changes it."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

from tocsin.pipeline.core.slices import SliceBuffer
from tocsin.pipeline.runtime.embedded.engine_status import expected_hosts, status_of
from tocsin.pipeline.runtime.embedded.observers import Onlookers
from tocsin.pipeline.runtime.history import JobHistory
from tocsin.pipeline.runtime.job_pipeline import JobPipeline
from tocsin.pipeline.runtime.model_schedule import ModelSchedule
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import IDLE_JOB_ID, JobKey
from tocsin.schemas.verdicts import FaultKind, Verdict, VerdictState


class EngineQueries:
    """The questions; whoever derives from it has the state.

    Attributes:
        models: what was announced.
        counters: what became of records, and more.
        late_by_host: late records by job and host.
    """

    models: ModelSchedule
    counters: Counter[str]
    late_by_host: Counter[tuple[JobKey, str]]
    _buffer: SliceBuffer
    _pipelines: dict[JobKey, JobPipeline]
    _onlookers: Onlookers
    _lock: threading.Lock
    _now_ns: int | None

    def known_jobs(self) -> frozenset[JobKey]:
        """Attempts that have a turn each second; what no turn came for yet, too."""
        with self._lock:
            return frozenset(self._buffer.jobs)

    def has_open_verdict(self, job: JobKey) -> bool:
        """Whether something is said to be wrong with an attempt now."""
        pipeline = self._pipelines.get(job)
        return pipeline is not None and bool(pipeline.decide.live)

    def live_verdicts(self) -> list[Verdict]:
        """The open and confirmed verdicts of all jobs."""
        with self._lock:
            return [one for pipeline in self._pipelines.values() for one in pipeline.decide.live]

    def open_incidents(self) -> Counter[tuple[FaultKind, VerdictState]]:
        """How many incidents of all jobs stand now, by fault and state."""
        with self._lock:
            return Counter(
                (one.fault, one.state) for pipeline in self._pipelines.values() for one in pipeline.decide.live
            )

    def pipeline(self, job: JobKey) -> JobPipeline | None:
        """A job's operators, None: not known; for taps, to look at."""
        return self._pipelines.get(job)

    def changes_of(self, job: JobKey, host: str) -> list[tuple[int, Reason]]:
        """When ranks were last moved to or from a job's machine, or its detectors given another model; and which."""
        pipeline = self._pipelines.get(job)
        if pipeline is None:
            return []
        moved_ns = pipeline.graph.places_changed_ns.get(host, 0)
        changed = ((moved_ns, Reason.PLACES_CHANGED), (pipeline.model_changed_ns, Reason.MODEL_CHANGED))
        return [(at_ns, reason) for at_ns, reason in changed if at_ns]

    def history(self, job: JobKey) -> JobHistory | None:
        """The numbers behind a job's verdicts."""
        return self._onlookers.history(job)

    @property
    def watermark_ns(self) -> int | None:
        """What ended by then is worked off; None: nothing yet."""
        return self._buffer.watermark_ns

    @property
    def now_ns(self) -> int | None:
        """The newest tick, None: none yet."""
        return self._now_ns

    def jobs(self) -> tuple[JobKey, ...]:
        """Jobs that are known, by name."""
        with self._lock:
            return tuple(sorted(self._pipelines))

    def running_jobs(self) -> tuple[JobKey, ...]:
        """Jobs that have not ended, by name."""
        with self._lock:
            return tuple(
                sorted(
                    job
                    for job, pipeline in self._pipelines.items()
                    if job.job_id != IDLE_JOB_ID and not pipeline.graph.ended()
                )
            )

    def expected_hosts(self, within_ns: int) -> frozenset[str]:
        """The hosts that were heard so shortly before the newest tick, in jobs that have not ended."""
        with self._lock:
            return expected_hosts(self._pipelines.values(), (self._now_ns or 0) - within_ns)

    def status(self, job_id: str | None = None) -> dict[str, Any]:
        """Why there is (no) verdict: hosts, ranks, groups, lateness, clocks, abstentions."""
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
