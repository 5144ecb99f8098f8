"""Questions to a running engine; no answer changes it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tocsin.pipeline.core.slices import SliceBuffer
from tocsin.pipeline.runtime.embedded.engine_status import expected_hosts, status_of
from tocsin.pipeline.runtime.embedded.job_attempts import JobAttempts
from tocsin.pipeline.runtime.embedded.observers import Observers
from tocsin.pipeline.runtime.history import JobHistory
from tocsin.pipeline.runtime.job_pipeline import JobPipeline
from tocsin.pipeline.runtime.model_schedule import ModelSchedule
from tocsin.schemas.kinds import GroupKind
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import IDLE_JOB_ID, CommGroup, JobKey, RankPlace
from tocsin.schemas.verdicts import FaultKind, Verdict, VerdictState


class EngineQueries:
    """Questions about the jobs of an engine; the subclass has the state.

    Attributes:
        models: announced models.
        counters: numbers of records by their outcome, and of other occurrences.
        late_by_host: numbers of late records by job and host.
        more_live: each returns verdicts that stand and that no job's operators hold.
    """

    models: ModelSchedule
    counters: Counter[str]
    late_by_host: Counter[tuple[JobKey, str]]
    more_live: list[Callable[[], Sequence[Verdict]]]
    _buffer: SliceBuffer
    _jobs: JobAttempts
    _observers: Observers
    _lock: threading.Lock
    _now_ns: int | None

    def known_jobs(self) -> frozenset[JobKey]:
        """Return the attempts that have a turn each second, also those that had none yet."""
        with self._lock:
            return frozenset(self._buffer.jobs)

    def has_open_verdict(self, job: JobKey) -> bool:
        """Return whether an attempt has an open or confirmed verdict."""
        pipeline = self._jobs.pipelines.get(job)
        return pipeline is not None and bool(pipeline.decide.live)

    def live_verdicts(self) -> list[Verdict]:
        """Return the verdicts of all jobs, and of the fleet, that are open or confirmed."""
        with self._lock:
            of_jobs = [one for pipeline in self._jobs.pipelines.values() for one in pipeline.decide.live]
        return [*of_jobs, *(one for more in self.more_live for one in more())]

    def open_incidents(self) -> Counter[tuple[FaultKind, VerdictState]]:
        """Return how many incidents of all jobs are open, by fault and state."""
        with self._lock:
            return Counter(
                (one.fault, one.state) for pipeline in self._jobs.pipelines.values() for one in pipeline.decide.live
            )

    def mfu_ratios(self) -> dict[JobKey, float]:
        """Return the model FLOPs utilization of the newest steps of each running attempt that has one."""
        with self._lock:
            found = {
                job: pipeline.by_steps.mfu.utilization(self._now_ns or 0)
                for job, pipeline in self._jobs.pipelines.items()
                if not pipeline.is_superseded and not pipeline.graph.ended()
            }
            return {job: one.mfu_ratio for job, one in found.items() if one is not None and one.mfu_ratio is not None}

    def most_pods(self) -> dict[JobKey, Mapping[GroupKind, int]]:
        """Return the most minipods that a group of a kind touches, of each running attempt of which it is known."""
        with self._lock:
            found = {
                job: pipeline.graph.placement.most_pods()
                for job, pipeline in self._jobs.pipelines.items()
                if not pipeline.is_superseded and not pipeline.graph.ended()
            }
        return {job: pods for job, pods in found.items() if pods}

    def pipeline(self, job: JobKey) -> JobPipeline | None:
        """Return an attempt's operators, for taps to look at; None: the attempt is not known."""
        return self._jobs.pipelines.get(job)

    def changes_of(self, job: JobKey, host: str) -> list[tuple[int, Reason]]:
        """Return the last changes of a job that may explain a deviation of a host, each with its time in ns.

        Args:
            job: the attempt.
            host: the host; ranks that moved to or from it are a change, and so is another model of the detectors.
        """
        pipeline = self._jobs.pipelines.get(job)
        if pipeline is None:
            return []
        moved_ns = pipeline.graph.placement.changed_ns.get(host, 0)
        changed = ((moved_ns, Reason.PLACES_CHANGED), (pipeline.models.changed_ns, Reason.MODEL_CHANGED))
        return [(at_ns, reason) for at_ns, reason in changed if at_ns]

    def history(self, job: JobKey) -> JobHistory | None:
        """Return the series behind a job's verdicts; None: none are kept."""
        return self._observers.history(job)

    @property
    def watermark_ns(self) -> int | None:
        """Time up to which all slices are worked off; None: none yet."""
        return self._buffer.watermark_ns

    @property
    def held_bytes(self) -> int:
        """Bytes of the records that wait for the end of their slice."""
        return self._buffer.held_bytes

    @property
    def now_ns(self) -> int | None:
        """Time of the newest tick; None: none yet."""
        return self._now_ns

    def jobs(self) -> tuple[JobKey, ...]:
        """Return the known attempts, sorted."""
        with self._lock:
            return tuple(sorted(self._jobs.pipelines))

    def running_jobs(self) -> tuple[JobKey, ...]:
        """Return the attempts that have not ended, sorted."""
        with self._lock:
            return tuple(
                sorted(
                    job
                    for job, pipeline in self._jobs.pipelines.items()
                    if job.job_id != IDLE_JOB_ID and not pipeline.graph.ended()
                )
            )

    def expected_hosts(self, within_ns: int) -> frozenset[str]:
        """Return the hosts of running jobs that were heard within this time before the newest tick."""
        with self._lock:
            return expected_hosts(self._jobs.pipelines.values(), (self._now_ns or 0) - within_ns)

    def places(self, job_id: str) -> tuple[JobKey, tuple[RankPlace, ...], tuple[CommGroup, ...]] | None:
        """Return the newest attempt of a job, the places of its ranks, ascending, and its groups; None: not known."""
        with self._lock:
            attempts = [job for job in self._jobs.pipelines if job.job_id == job_id]
            if not attempts:
                return None
            newest = max(attempts, key=lambda job: job.attempt)
            graph = self._jobs.pipelines[newest].graph
            return newest, tuple(graph.places[rank] for rank in sorted(graph.places)), tuple(graph.groups.values())

    def status(self, job_id: str | None = None) -> dict[str, Any]:
        """Return the state of the engine and its jobs as a JSON-able object.

        Args:
            job_id: only attempts of this job; None: of all jobs.
        """
        with self._lock:
            jobs = [
                status_of(job, pipeline, self._now_ns or 0, self.late_by_host)
                for job, pipeline in sorted(self._jobs.pipelines.items())
                if job_id is None or job.job_id == job_id
            ]
            return {
                "now_ns": self._now_ns,
                "counters": dict(self.counters),
                "jobs": jobs,
                "models": self.models.status(self._now_ns or 0),
            }
