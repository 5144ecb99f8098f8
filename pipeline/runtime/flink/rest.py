"""A client for the parts of Flink's REST interface that the commands need, with the standard library only."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from tocsin.pipeline.runtime.flink.options import PARAMETER
from tocsin.pipeline.runtime.flink.stack_traces import cause_of
from tocsin.schemas.errors import ConfigError, EngineError

ANSWER_SECONDS: Final = 20.0
SAVEPOINT_SECONDS: Final = 300.0
_LOOK_SECONDS: Final = 0.2

OVER: Final = frozenset({"CANCELED", "FAILED", "FINISHED"})
"""Final states of a Flink job."""


@dataclass(frozen=True, slots=True)
class Overview:
    """Resources of a Flink cluster.

    Attributes:
        version: version of Flink.
        task_manager_count: number of TaskManagers.
        slot_count: number of slots in them.
        free_slot_count: number of free slots.
    """

    version: str
    task_manager_count: int
    slot_count: int
    free_slot_count: int


@dataclass(frozen=True, slots=True)
class TaskTimes:
    """Shares of one task's time; waiting for Python counts as busy.

    Attributes:
        busy_ratio: fraction of time at work.
        held_up_ratio: fraction of time blocked by backpressure from the next task.
    """

    busy_ratio: float
    held_up_ratio: float


@dataclass(frozen=True, slots=True)
class FlinkJob:
    """One job of the cluster.

    Attributes:
        job_id: Flink's id of the job.
        name: name as submitted.
        state: ``RUNNING``, ``RESTARTING``, ``CANCELED`` ...
        age_seconds: time since its start.
        tasks_count: number of its tasks.
        running_tasks_count: number of its running tasks.
    """

    job_id: str
    name: str
    state: str
    age_seconds: float
    tasks_count: int
    running_tasks_count: int

    @property
    def is_over(self) -> bool:
        """Whether the job is in a final state."""
        return self.state in OVER

    @property
    def is_running(self) -> bool:
        """Whether the job and all its tasks are running."""
        return self.state == "RUNNING" and self.tasks_count == self.running_tasks_count > 0


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """State of a job's checkpoints.

    Attributes:
        done_count: completed checkpoints since its start.
        failed_count: failed checkpoints.
        last_path: path of the newest one, "" = none.
        last_age_seconds: time since the newest one was triggered.
        last_seconds: duration of the newest one.
        last_bytes: size of its state.
        restored_path: path that the job was restored from, "" = none.
    """

    done_count: int = 0
    failed_count: int = 0
    last_path: str = ""
    last_age_seconds: float = 0.0
    last_seconds: float = 0.0
    last_bytes: int = 0
    restored_path: str = ""


class FlinkRest:
    """Client of Flink's REST interface; each call sends separate requests and may raise ``EngineError``."""

    def __init__(self, url: str) -> None:
        """Check the URL; nothing is sent yet.

        Raises:
            ConfigError: the URL does not have the form ``http://HOST:PORT``.
        """
        parts = urllib.parse.urlsplit(url)
        try:
            is_right = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            is_right = False
        if not is_right or parts.query or parts.fragment:
            raise ConfigError("rest", url, "the JobManager's address, http://HOST:PORT")
        self.url = url.rstrip("/")
        # Flink stands beside us: a proxy for the way out would not reach it
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open

    def overview(self) -> Overview:
        """Return the cluster's resources."""
        data = self._get("/overview")
        counts = (int(data[name]) for name in ("taskmanagers", "slots-total", "slots-available"))
        return Overview(str(data.get("flink-version", "")), *counts)

    def jobs(self) -> list[FlinkJob]:
        """Return all jobs including finished ones, youngest first."""
        found = [
            FlinkJob(
                str(job["jid"]),
                str(job["name"]),
                str(job["state"]),
                int(job["duration"]) / 1000,
                int(job["tasks"]["total"]),
                int(job["tasks"]["running"]),
            )
            for job in self._get("/jobs/overview")["jobs"]
        ]
        return sorted(found, key=lambda job: job.age_seconds)

    def options(self, job_id: str) -> str:
        """Return a job's options as JSON (``JobOptions.shown``), "" = it is not a tocsin job."""
        config = self._get(f"/jobs/{job_id}/config").get("execution-config", {})
        return str(config.get("user-config", {}).get(PARAMETER, ""))

    def checkpoints(self, job_id: str) -> Checkpoints:
        """Return the state of a job's checkpoints."""
        data = self._get(f"/jobs/{job_id}/checkpoints")
        counts, latest = data.get("counts") or {}, data.get("latest") or {}
        last, restored = latest.get("completed") or {}, latest.get("restored") or {}
        return Checkpoints(
            int(counts.get("completed", 0)),
            int(counts.get("failed", 0)),
            str(last.get("external_path", "")),
            max(0.0, time.time() - int(last.get("trigger_timestamp", 0)) / 1000) if last else 0.0,
            int(last.get("end_to_end_duration", 0)) / 1000,
            int(last.get("state_size", 0)),
            str(restored.get("external_path") or ""),
        )

    def keeps_checkpoints(self, job_id: str) -> bool:
        """Return whether a job's last checkpoint is kept when the job is cancelled."""
        kept = self._get(f"/jobs/{job_id}/checkpoints/config").get("externalization") or {}
        return bool(kept.get("enabled")) and not kept.get("delete_on_cancellation")

    def stale_seconds(self) -> float:
        """Return how old Flink's answers about checkpoints may be, in seconds."""
        return int(self._get("/config").get("refresh-interval", 3000)) / 1000

    def failures(self, job_id: str) -> list[str]:
        """Return the causes of a job's failures as single lines, newest first."""
        history = self._get(f"/jobs/{job_id}/exceptions").get("exceptionHistory") or {}
        return [
            cause_of(str(entry.get("stacktrace") or entry.get("exceptionName")))
            for entry in history.get("entries") or ()
        ]

    def metric(self, job_id: str, name: str, aggregate: str = "sum") -> float | None:
        """Return a metric aggregated over all subtasks that have it, None = none has it (yet).

        Args:
            job_id: the job.
            name: ``OPERATOR.GROUP.NAME`` as Flink calls it inside one vertex.
            aggregate: ``sum``, ``min`` or ``max``.
        """
        query = urllib.parse.urlencode({"get": name, "agg": aggregate})
        found = [
            float(entry[aggregate])
            for vertex in self._get(f"/jobs/{job_id}")["vertices"]
            for entry in self._get(f"/jobs/{job_id}/vertices/{vertex['id']}/subtasks/metrics?{query}")
        ]
        if not found:
            return None
        return sum(found) if aggregate == "sum" else min(found) if aggregate == "min" else max(found)

    def task_times(self, job_id: str) -> dict[str, TaskTimes]:
        """Return task name -> how it spent its last seconds, by its busiest subtask."""
        names = ("busyTimeMsPerSecond", "backPressuredTimeMsPerSecond")
        query = urllib.parse.urlencode({"get": ",".join(names), "agg": "max"})
        found = {}
        for vertex in self._get(f"/jobs/{job_id}")["vertices"]:
            where = f"/jobs/{job_id}/vertices/{vertex['id']}/subtasks/metrics?{query}"
            seen = {entry["id"]: float(entry["max"]) / 1000 for entry in self._get(where)}
            if all(name in seen for name in names):
                found[str(vertex["name"])] = TaskTimes(*(seen[name] for name in names))
        return found

    def metrics_ending(self, job_id: str, name: str) -> float | None:
        """Return the sum over all subtasks of all metrics whose name ends with this part, None = there is none."""
        found: list[float] = []
        for vertex in self._get(f"/jobs/{job_id}")["vertices"]:
            where = f"/jobs/{job_id}/vertices/{vertex['id']}/subtasks/metrics"
            ids = [str(entry["id"]) for entry in self._get(where) if str(entry["id"]).rpartition(".")[2] == name]
            if ids:
                query = urllib.parse.urlencode({"get": ",".join(ids), "agg": "sum"})
                found += [float(entry["sum"]) for entry in self._get(f"{where}?{query}")]
        return sum(found) if found else None

    def savepoint(self, job_id: str, folder: str = "") -> str:
        """Take a savepoint while the job continues, and return its path.

        Args:
            job_id: the job.
            folder: target folder, "" = the cluster's default.

        Raises:
            EngineError: the savepoint failed, or did not finish in time.
        """
        wish = {"cancel-job": False, **({"target-directory": folder} if folder else {})}
        return self._saved(job_id, self._post(f"/jobs/{job_id}/savepoints", wish))

    def stop(self, job_id: str, folder: str = "") -> str:
        """Stop the job with a savepoint, and return its path; outputs up to the savepoint are published.

        Args:
            job_id: the job.
            folder: target folder, "" = the cluster's default.

        Raises:
            EngineError: the savepoint failed or did not finish in time; the job then continues.
        """
        wish = {"drain": False, **({"targetDirectory": folder} if folder else {})}
        path = self._saved(job_id, self._post(f"/jobs/{job_id}/stop", wish))
        self.wait_over(job_id)
        return path

    def cancel(self, job_id: str) -> None:
        """End the job without a savepoint, and wait until it is over."""
        self._ask(f"/jobs/{job_id}?mode=cancel", "PATCH")
        self.wait_over(job_id)

    def wait_over(self, job_id: str, seconds: float = 120.0) -> None:
        """Wait until a job is over.

        Raises:
            EngineError: it is not over after ``seconds``.
        """
        until = time.monotonic() + seconds
        while not any(job.job_id == job_id and job.is_over for job in self.jobs()):
            if time.monotonic() > until:
                raise EngineError(f"Flink's job {job_id} did not end within {seconds:.0f} s")
            time.sleep(_LOOK_SECONDS)

    def _saved(self, job_id: str, answer: Mapping[str, Any]) -> str:
        """Wait for a savepoint request to finish, and return the savepoint's path."""
        until = time.monotonic() + SAVEPOINT_SECONDS
        while True:
            data = self._get(f"/jobs/{job_id}/savepoints/{answer['request-id']}")
            operation = data.get("operation") or {}
            if "failure-cause" in operation:
                cause = operation["failure-cause"]
                raise EngineError(f"the savepoint failed: {cause_of(str(cause.get('stack-trace') or cause))}")
            if data["status"]["id"] == "COMPLETED":
                return str(operation["location"])
            if time.monotonic() > until:
                raise EngineError(f"the savepoint did not end within {SAVEPOINT_SECONDS:.0f} s; the job may go on")
            time.sleep(_LOOK_SECONDS)

    def _get(self, path: str) -> Any:
        """Send a GET request and return the parsed answer."""
        return self._ask(path, "GET")

    def _post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Send a POST request with a JSON body and return the parsed answer."""
        return self._ask(path, "POST", json.dumps(body).encode())

    def _ask(self, path: str, method: str, body: bytes | None = None) -> Any:
        """Send a request and return the parsed answer; raise ``EngineError`` if Flink refuses or does not answer."""
        headers = {"Content-Type": "application/json"} if body is not None else {}
        request = urllib.request.Request(self.url + path, body, headers, method=method)  # noqa: S310  # http(s) only, see __init__
        try:
            with self._open(request, timeout=ANSWER_SECONDS) as answer:
                text = answer.read()
            return json.loads(text) if text.strip() else {}
        except urllib.error.HTTPError as error:
            self._refused(error, path)
        except (OSError, http.client.HTTPException, ValueError) as error:
            why = getattr(error, "reason", None) or error
            raise EngineError(
                f"no answer from Flink at {self.url}: {why}; is it up, and is this its address?"
            ) from error

    def _refused(self, error: urllib.error.HTTPError, path: str) -> NoReturn:
        """Raise ``EngineError`` with the messages of Flink's error answer."""
        try:
            lines = json.loads(error.read()).get("errors") or [error.reason]
        except (OSError, ValueError, AttributeError):
            lines = [error.reason]
        reason = cause_of("\n".join(map(str, lines)))
        raise EngineError(f"Flink at {self.url} refuses {path} ({error.code}): {reason}") from error
