"""Submits the Flink job to a cluster with the wheel's ``flink run``, and explains why a job does not start."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
import time
import urllib.parse
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Final

import tocsin
from tocsin.cli.cluster.flink_conf import flink_environment, flink_home, python_path, write_conf
from tocsin.cli.cluster.jars import Jars, fetch_jars, java
from tocsin.cli.cluster.process import Child, Program
from tocsin.pipeline.runtime.flink.options import JARS_VARIABLE, OPTIONS_VARIABLE
from tocsin.pipeline.runtime.flink.rest import FlinkJob, FlinkRest
from tocsin.pipeline.runtime.flink.stack_traces import cause_of
from tocsin.schemas.errors import EngineError

SUBMIT_SECONDS: Final = 240.0
RUNNING_SECONDS: Final = 120.0
_LOOK_SECONDS: Final = 0.3
_SUBMITTED: Final = re.compile(r"Job has been submitted with JobID ([0-9a-f]{32})")
_FAILURES_COUNT: Final = 3
_ENTRY: Final = "from tocsin.pipeline.runtime.flink.job import main\n\nmain()\n"
"""Python file that is submitted. It imports ``job.py`` so that ``client_python``, perhaps of another version, finds its
own."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The Python programs that submit and run a job; stored with the job, so that an upgrade can be undone.

    Attributes:
        client_python: Python interpreter that builds the job here.
        worker_python: Python interpreter of the TaskManagers, as a path on their machines.
        python_path: ``PYTHONPATH`` for a tocsin that is not installed, "": it is installed.
        version: tocsin's version.
    """

    client_python: str = sys.executable
    worker_python: str = sys.executable
    python_path: str = field(default_factory=python_path)
    version: str = tocsin.__version__


@dataclass(frozen=True, slots=True)
class Submission:
    """A job to submit.

    Attributes:
        options_text: the job's options as JSON (``JobOptions.to_json``), or those that a running job shows.
        url: the JobManager's REST address.
        origin: the Python programs to use.
        restore: path of the savepoint or checkpoint to start from, "": start from the topics.
        is_claimed: whether Flink may delete the restored checkpoint once the job no longer needs it.
    """

    options_text: str
    url: str
    origin: Origin = field(default_factory=Origin)
    restore: str = ""
    is_claimed: bool = False


def submit(submission: Submission) -> str:
    """Submit the job and return its ID; it need not run yet.

    Raises:
        EngineError: Java or the connector's jar is missing, or the job cannot be built or submitted.
    """
    java()
    jars = fetch_jars()
    with tempfile.TemporaryDirectory(prefix="tocsin-flink-") as folder:
        child = Child(_program(submission, jars, Path(folder)))
        child.start()
        try:
            status = child.wait(SUBMIT_SECONDS)
        finally:
            child.kill()
        output = child.program.log.read_text("utf-8", "replace")
    found = _SUBMITTED.search(output)
    if found:
        return found[1]
    ended = f"did not end within {SUBMIT_SECONDS:.0f} s" if status is None else f"ended with status {status}"
    raise EngineError(f"the job could not be submitted to {submission.url}: 'flink run' {ended}: {_reason(output)}")


def wait_running(rest: FlinkRest, job_id: str, seconds: float = RUNNING_SECONDS, done_count: int = 0) -> None:
    """Wait until every task of the job runs.

    Args:
        rest: client of the cluster.
        job_id: ID of the job.
        seconds: how long to wait at most.
        done_count: also wait for this many checkpoints, without a failure before them: restored state is only read when
            a job's next second is processed.

    Raises:
        EngineError: the job ended, failed ``_FAILURES_COUNT`` times, or did not run in time; names the newest failure.
    """
    until = time.monotonic() + seconds
    while True:
        job = next((job for job in rest.jobs() if job.job_id == job_id), None)
        failures = rest.failures(job_id) if job is not None else []
        details = f"; it failed with: {failures[0]}" if failures else ""
        if job is None:
            raise EngineError(f"Flink does not know job {job_id} any more")
        if job.is_over or len(failures) >= _FAILURES_COUNT or (failures and done_count):
            raise EngineError(f"Flink's job {job_id} does not start ({job.state}): {_parts_of(rest, job)}{details}")
        if job.is_running and (not done_count or rest.checkpoints(job_id).done_count >= done_count):
            return
        if time.monotonic() > until:
            parts = _parts_of(rest, job)
            raise EngineError(f"Flink's job {job_id} is {job.state} after {seconds:.0f} s: {parts}{details}")
        time.sleep(_LOOK_SECONDS)


def _parts_of(rest: FlinkRest, job: FlinkJob) -> str:
    """Return a text that says how many of the job's tasks run, and how many slots of the cluster are free."""
    cluster = rest.overview()
    slots = f"{cluster.free_slot_count} of {cluster.slot_count} slots are free"
    return f"{job.running_tasks_count} of {job.tasks_count} parts run, {slots}"


def _program(submission: Submission, jars: Jars, folder: Path) -> Program:
    """Return the ``flink run`` command for the submission."""
    home, origin = flink_home(), submission.origin
    conf = Path(named) if (named := os.environ.get("FLINK_CONF_DIR")) else folder / "conf"
    if not named:
        write_conf(home, conf, {})
    environment = flink_environment(home, conf, folder)
    if origin.python_path:
        environment["PYTHONPATH"] = origin.python_path
    command = ["bash", str(home / "bin" / "flink"), "run", "-d", "-m", urllib.parse.urlsplit(submission.url).netloc]
    if submission.restore:
        command += ["-s", submission.restore, "--claimMode", "CLAIM" if submission.is_claimed else "NO_CLAIM"]
    if origin.python_path:
        command.append(f"-Dpython.pythonpath={origin.python_path}")
    text = json.dumps({**json.loads(submission.options_text), "origin": asdict(origin)})
    # pipeline.jars stays unset: it would replace the list that brings flink-python.jar (stack.md)
    command += ["-j", str(jars.flink_connector), "-pyexec", origin.worker_python, "-pyclientexec", origin.client_python]
    entry = folder / "tocsin_job.py"
    entry.write_text(_ENTRY, "utf-8")
    command += ["-py", str(entry)]
    environment |= {OPTIONS_VARIABLE: text, JARS_VARIABLE: str(jars.zstd)}
    return Program("flink run", command, folder / "run.log", environment)


def _reason(output: str) -> str:
    """Return the cause of a failed submission from the output of ``flink run``."""
    lines = [line for line in output.splitlines() if not line.startswith(("WARNING:", "SLF4J:", "The option "))]
    return cause_of("\n".join(lines))


def origin_of(shown: str) -> Origin:
    """Return the Python programs that a running job was submitted with.

    Args:
        shown: the job's options as JSON (``FlinkRest.options``).
    """
    details = json.loads(shown).get("origin") or {}
    return Origin(**{item.name: str(details[item.name]) for item in fields(Origin) if item.name in details})
