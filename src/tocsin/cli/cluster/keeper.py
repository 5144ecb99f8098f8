"""Submits Flink's jobs again after the JobManager died, because a restarted JobManager knows none of them."""

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
    """A job that is submitted again if the JobManager loses it.

    Attributes:
        job_id: Flink's ID of the job.
        name: name of the job.
        shown: its options as JSON (``FlinkRest.options``).
        restored: path of the checkpoint that it was restored from, "": none.
    """

    job_id: str
    name: str
    shown: str
    restored: str = ""


class JobKeeper:
    """Watches the running jobs, and submits one that the JobManager lost again, from its newest checkpoint.

    A job that was cancelled or stopped was ended on purpose: it is not submitted again.
    """

    def __init__(
        self, rest: Callable[[], FlinkRest], checkpoints: Path, submit_job: Callable[[Submission], str] = submit
    ) -> None:
        """Start with no known job.

        Args:
            rest: function that returns a client of the JobManager, whose address may change.
            checkpoints: folder of the checkpoints, with one folder per job.
            submit_job: function that submits a job and returns its ID.
        """
        self._rest = rest
        self._checkpoints = checkpoints
        self._submit = submit_job
        self._kept: dict[str, Kept] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="job-keeper", daemon=True)

    @property
    def kept(self) -> tuple[Kept, ...]:
        """The jobs that would be submitted again."""
        return tuple(self._kept.values())

    def start(self) -> None:
        """Start the thread that watches."""
        self._thread.start()

    def stop(self) -> None:
        """Stop watching; a submission in progress is not waited for."""
        self._stop.set()

    def look(self) -> None:
        """Look at the jobs once: remember those that run, and submit lost ones again.

        Raises:
            EngineError: the JobManager does not answer or refuses the job; the next look tries again.
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
        """Look once per ``LOOK_SECONDS`` until stopped; log each new error once."""
        last_error = ""
        while not self._stop.wait(LOOK_SECONDS):
            try:
                self.look()
                last_error = ""
            except EngineError as error:  # it starts, or is away: the supervisor sees to that
                if str(error) != last_error and not self._stop.is_set():
                    last_error = str(error)
                    _LOG.warning("jobs cannot be looked after", extra={"error": last_error})

    def _keep(self, rest: FlinkRest, job: FlinkJob) -> None:
        """Remember a running job with its options."""
        shown = rest.options(job.job_id)
        if shown:
            self._kept[job.job_id] = Kept(job.job_id, job.name, shown, rest.checkpoints(job.job_id).restored_path)

    def _bring_back(self, rest: FlinkRest, kept: Kept, jobs: dict[str, FlinkJob]) -> None:
        """Submit a lost job again, unless a job of the same name runs already."""
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
        """Return the path of the job's newest complete checkpoint, "": there is none.

        If no checkpoint of its own exists, it is the one that the job was restored from.
        """
        found = [
            (metadata.stat().st_mtime_ns, metadata.parent)
            for metadata in (self._checkpoints / kept.job_id).glob("chk-*/_metadata")
        ]
        if found:
            return max(found)[1].as_uri()
        restored = Path(unquote(urlsplit(kept.restored).path))
        is_there = kept.restored and (urlsplit(kept.restored).scheme not in {"", "file"} or restored.exists())
        return kept.restored if is_there else ""
