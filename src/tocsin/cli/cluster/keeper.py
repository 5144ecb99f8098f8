"""Brings Flink's jobs back after the JobManager died: it keeps none of them over its own end."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from tocsin.cli.cluster.submit import Submission, origin_of, submit, wait_running
from tocsin.pipeline.runtime.flink.rest import FlinkJob, FlinkRest
from tocsin.schemas.errors import EngineError

_LOG = logging.getLogger("tocsin.cluster")
LOOK_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class Kept:
    """A job that must not be lost.

    Attributes:
        job_id: Flink's number of it.
        name: the job's.
        shown: its options (``FlinkRest.options``).
        restored: what it was restored from, "" = nothing.
    """

    job_id: str
    name: str
    shown: str
    restored: str = ""


class JobKeeper:
    """Looks which of our jobs run; submits again, from its newest checkpoint, one that the JobManager forgot.

    A job that was cancelled or stopped is one that somebody ended: it does not come back.
    """

    def __init__(
        self, rest: Callable[[], FlinkRest], checkpoints: Path, submit_job: Callable[[Submission], str] = submit
    ) -> None:
        """Know of no job yet.

        Args:
            rest: a client of the JobManager, which may be another one each time.
            checkpoints: the folder that they lie in, one folder a job.
            submit_job: hands a job over.
        """
        self._rest = rest
        self._checkpoints = checkpoints
        self._submit = submit_job
        self._kept: dict[str, Kept] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="job-keeper", daemon=True)

    @property
    def kept(self) -> tuple[Kept, ...]:
        """Return the jobs that would come back."""
        return tuple(self._kept.values())

    def start(self) -> None:
        """Look from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more; a submission under way is not waited for."""
        self._stop.set()

    def look(self) -> None:
        """Look once.

        Raises:
            EngineError: the JobManager does not answer, or does not take the job; the next look tries again.
        """
        rest = self._rest()
        jobs = {job.job_id: job for job in rest.jobs()}
        for job_id in [job_id for job_id, job in jobs.items() if job.is_over]:
            if self._kept.pop(job_id, None) is not None and jobs[job_id].state == "FAILED":
                _LOG.error("job failed for good", extra={"job": job_id, "why": (rest.failures(job_id) or [""])[0]})
        for job in jobs.values():
            if not job.is_over and (job.job_id not in self._kept or not self._kept[job.job_id].restored):
                self._keep(rest, job)
        for kept in [kept for kept in self._kept.values() if kept.job_id not in jobs]:
            self._bring_back(rest, kept, jobs)

    def _run(self) -> None:
        said = ""
        while not self._stop.wait(LOOK_SECONDS):
            try:
                self.look()
                said = ""
            except EngineError as error:  # it starts, or is away: the supervisor sees to that
                if str(error) != said and not self._stop.is_set():
                    said = str(error)
                    _LOG.warning("jobs cannot be looked after", extra={"error": said})

    def _keep(self, rest: FlinkRest, job: FlinkJob) -> None:
        shown = rest.options(job.job_id)
        if shown:
            self._kept[job.job_id] = Kept(job.job_id, job.name, shown, rest.checkpoints(job.job_id).restored_path)

    def _bring_back(self, rest: FlinkRest, kept: Kept, jobs: dict[str, FlinkJob]) -> None:
        namesake = next((job for job in jobs.values() if job.name == kept.name and not job.is_over), None)
        if namesake is not None:
            del self._kept[kept.job_id]  # it came back, or somebody else brought it
            return
        path = self.newest(kept)
        begins = path or f"where its options say ({json.loads(kept.shown)['stream']['start']})"
        _LOG.warning("the JobManager forgot a job: submitting it again", extra={"job": kept.name, "from": begins})
        # its own checkpoint is its successor's to delete; a savepoint is a person's
        is_own = str(self._checkpoints) in path
        job_id = self._submit(Submission(kept.shown, rest.url, origin_of(kept.shown), path, is_claimed=is_own))
        del self._kept[kept.job_id]
        self._kept[job_id] = replace(kept, job_id=job_id, restored=path)
        wait_running(rest, job_id)
        _LOG.info("job runs again", extra={"job": kept.name, "id": job_id})

    def newest(self, kept: Kept) -> str:
        """Return its newest checkpoint that is whole, else what it was restored from, "" = neither."""
        found = [
            (metadata.stat().st_mtime_ns, metadata.parent)
            for metadata in (self._checkpoints / kept.job_id).glob("chk-*/_metadata")
        ]
        if found:
            return max(found)[1].as_uri()
        restored = Path(unquote(urlsplit(kept.restored).path))
        is_there = kept.restored and (urlsplit(kept.restored).scheme not in {"", "file"} or restored.exists())
        return kept.restored if is_there else ""
