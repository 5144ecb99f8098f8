"""The operators of all attempts of an engine's jobs."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Collection, Mapping

from tocsin.pipeline.runtime.embedded.engine_parts import parts_by_job
from tocsin.pipeline.runtime.job_pipeline import JobPipeline
from tocsin.schemas.records import JobKey
from tocsin.schemas.verdicts import Verdict


class JobAttempts:
    """The operators of each attempt, and which attempts a job has.

    Attributes:
        pipelines: attempt -> its operators, in the order of their appearance.
        by_job: cluster and job id -> the job's attempts, ascending.
    """

    def __init__(self, make: Callable[[JobKey], JobPipeline]) -> None:
        """Start without jobs.

        Args:
            make: makes the operators of an attempt.
        """
        self._make = make
        self.pipelines: dict[JobKey, JobPipeline] = {}
        self.by_job: dict[tuple[str, str], list[JobKey]] = {}

    def begin(self, job: JobKey) -> JobPipeline:
        """Make and keep the operators of an attempt that appears; they follow those of the attempt before it.

        When making them raises, nothing is kept.
        """
        pipeline = self._make(job)
        attempts = self.by_job.get((job.cluster, job.job_id), [])
        if at := bisect.bisect_left(attempts, job):
            pipeline.diagnose.follow(self.pipelines[attempts[at - 1]].diagnose)
        self.pipelines[job] = pipeline
        self.by_job[job.cluster, job.job_id] = [*attempts[:at], job, *attempts[at:]]
        return pipeline

    def leave_older(self, job: JobKey, now_ns: int) -> list[Verdict]:
        """Take the hosts that an attempt heard from the older attempts of its job.

        Args:
            job: the newer attempt.
            now_ns: the slice's end.

        Returns:
            The verdict lines that this changes in older attempts.
        """
        attempts = self.by_job[job.cluster, job.job_id]
        olders = [self.pipelines[older] for older in attempts[: bisect.bisect_left(attempts, job)]]
        if all(older.rests for older in olders):
            return []
        heard_ns = self.pipelines[job].heard_ns
        return [verdict for older in olders for verdict in older.on_new_attempt(now_ns, heard_ns)]

    def forget(self, known: Collection[JobKey]) -> None:
        """Forget all attempts but these."""
        for job in [job for job in self.pipelines if job not in known]:
            del self.pipelines[job]
            attempts = self.by_job[job.cluster, job.job_id]
            attempts.remove(job)
            if not attempts:
                del self.by_job[job.cluster, job.job_id]

    def clear(self) -> None:
        """Forget all attempts."""
        self.pipelines, self.by_job = {}, {}

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Replace all attempts by those of a snapshot.

        Args:
            parts: the engine's snapshot; parts that belong to no job are left out.
        """
        self.clear()
        for job, own in sorted(parts_by_job(parts).items()):
            self.pipelines[job] = self._make(job)
            self.pipelines[job].restore(own)
            self.by_job.setdefault((job.cluster, job.job_id), []).append(job)
