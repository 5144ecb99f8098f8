"""The drill's job controller: a process of its own that starts the job and knows signed actions only.

Usage: ``python -m tocsin.cli.drill.act.controller SETTINGS_FILE``. It listens on a free port of this machine as
docs/job-controller.md says, and writes what it does into ``job-status.json``. SIGTERM ends job and process.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from tocsin.cli.drill.act.attempts import DrillAttempts
from tocsin.cli.drill.act.settings import (
    JOB_ID,
    STATUS_FILE,
    ControllerSettings,
    ControllerStatus,
    DoneAction,
    read_settings,
    write_object,
)
from tocsin.cli.drill.engine import DrillError
from tocsin.cli.drill.launcher import CLUSTER, warm_up
from tocsin.pipeline.actions.executors import job_facts
from tocsin.pipeline.actions.executors.job_controller import PATH, SIGNATURE_HEADER, JobActionState, JobAnswer
from tocsin.pipeline.actions.executors.job_desk import JobDesk, RunningJob
from tocsin.pipeline.identity.action_signatures import AckSigner, ActionChecker
from tocsin.schemas.action_events import JobFacts
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.actions import Action
from tocsin.schemas.credential_store import read_credentials
from tocsin.schemas.job_key import JobKey
from tocsin.schemas.verdicts import ActionKind

_RUNS_SECONDS: Final = 45.0
"""Longest time until a job that was started again trains."""
_KEY_SECONDS: Final = 90.0
"""Longest time until the engine has written the public key of its controller."""
_MOST_BYTES: Final = 1 << 20


class DrillController:
    """Carries out what its desk believes, one action after the other."""

    def __init__(self, settings: ControllerSettings, attempts: DrillAttempts) -> None:
        """Start nothing yet.

        Args:
            settings: settings of the job controller.
            attempts: starts and ends the job.
        """
        self._settings, self._attempts = settings, attempts
        self._lock = threading.Lock()
        self._begun: queue.SimpleQueue[Action | None] = queue.SimpleQueue()
        self._done: list[DoneAction] = []
        self._left_out: frozenset[str] = frozenset()
        self.desk = JobDesk(ActionChecker(read_credentials(Path(settings.keys_file))), self._running)
        self._signer = AckSigner(read_credentials(Path(settings.facts_key_file))[0])
        self.port = 0

    def on_get(self, action_id: str) -> tuple[int, JobAnswer | None]:
        """Return the HTTP status and the answer about an action."""
        with self._lock:
            answer = self.desk.state(action_id)
        return (404, None) if answer is None else (200, answer)

    def on_post(self, value: bytes, signature: bytes) -> tuple[int, JobAnswer]:
        """Take a signed action; return the HTTP status and the answer."""
        with self._lock:
            status, answer, action = self.desk.on_post(value, signature, time.time_ns())
        if action is not None and action.state is ActionState.STARTED:
            self._begun.put(action)
        return status, answer

    def on_get_facts(self) -> bytes:
        """Return what is said of the job, signed, as the body of an answer; nothing before its first attempt."""
        number, hosts = self._attempts.number, self._attempts.hosts
        if number < 0:
            return job_facts.facts_body([])
        spares = set(self._settings.hosts) - set(hosts) - self._left_out
        told = JobFacts(JobKey(CLUSTER, JOB_ID, number), time.time_ns(), spare_count=len(spares), may_shrink=False)
        return job_facts.facts_body([job_facts.signed_fact(self._signer, told)])

    def stop(self) -> None:
        """Let ``run`` end."""
        self._begun.put(None)

    def run(self) -> None:
        """Start the job, carry out actions until ``stop``, and end the job."""
        self._attempts.begin()
        self._show()
        while (action := self._begun.get()) is not None:
            with self._lock:
                wrong = self.desk.check(action, time.time_ns())
            answer = wrong or self._carry_out(action)
            with self._lock:
                self.desk.on_end(action.action_id, answer)
        if self._settings.compares and self._done:
            self._attempts.begin_comparison()  # its start takes as long as the end of the job
        self._attempts.end()
        self._attempts.end_comparison()
        self._show(is_over=True)

    def _carry_out(self, action: Action) -> JobAnswer:
        """End the attempt and start the next one."""
        left_out = action.target.hosts if action.kind is ActionKind.EVICT else ()
        if not self._attempts.may_leave_out(left_out):
            return JobAnswer(JobActionState.REFUSED, "no_spare", "no machine can take the place")
        self._left_out |= set(left_out)
        try:
            step = self._attempts.begin(left_out)
        except DrillError as error:
            return JobAnswer(JobActionState.FAILED, "", str(error))
        done = DoneAction(action.action_id, action.kind.value, tuple(left_out), step, self._attempts.number)
        self._done.append(done)
        self._show()
        if not self._attempts.wait_for_step(step, _RUNS_SECONDS):
            return JobAnswer(JobActionState.FAILED, "", f"the job does not train {_RUNS_SECONDS:.0f} s after its start")
        return JobAnswer(JobActionState.DONE, "", f"it trains again from step {step}")

    def _running(self) -> RunningJob:
        attempts = self._attempts
        return RunningJob(JobKey(CLUSTER, JOB_ID, attempts.number), frozenset(attempts.hosts))

    def _show(self, *, is_over: bool = False) -> None:
        attempts, job, count = self._attempts, self._attempts.job, self._settings.rank_count
        status = ControllerStatus(
            port=self.port,
            attempt=attempts.number,
            folder="" if job is None else str(job.folder),
            hosts=attempts.hosts,
            rank_pids=() if job is None else tuple(job.pid(rank) for rank in range(count)),
            agent_pids=() if job is None else tuple(job.agent_pid(rank) for rank in range(count)),
            actions=tuple(self._done),
            is_over=is_over,
        )
        write_object(Path(self._settings.folder) / STATUS_FILE, status)


def server_of(controller: DrillController) -> ThreadingHTTPServer:
    """Return a server of the protocol on a free port of this machine."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == job_facts.PATH:
                self._send(200, controller.on_get_facts())
                return
            if not self.path.startswith(f"{PATH}/"):
                self._answer(404, None)
                return
            self._answer(*controller.on_get(self.path.removeprefix(f"{PATH}/")))

        def do_POST(self) -> None:
            size = int(self.headers.get("Content-Length", "0"))
            if self.path != PATH or not 0 < size <= _MOST_BYTES:
                self._answer(404, None)
                return
            signature = self.headers.get(SIGNATURE_HEADER, "").encode("ascii", "replace")
            self._answer(*controller.on_post(self.rfile.read(size), signature))

        def _answer(self, status: int, answer: JobAnswer | None) -> None:
            found: dict[str, Any] = {}
            if answer is not None:
                found = {"state": answer.state.value, "reason": answer.reason, "detail": answer.detail}
            self._send(status, json.dumps(found).encode())

        def _send(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    return ThreadingHTTPServer(("127.0.0.1", 0), Handler)


def _wait_for(path: Path) -> None:
    """Wait until the engine has written its public key; raise DrillError if it does not."""
    deadline = time.monotonic() + _KEY_SECONDS
    while not path.exists():
        if time.monotonic() > deadline:
            raise DrillError(f"the engine has not written {path}")
        time.sleep(0.05)


def main() -> None:
    """Run the job controller until SIGTERM."""
    settings = read_settings(Path(sys.argv[1]))
    context = warm_up(Path(settings.folder), os.getpgrp())
    _wait_for(Path(settings.keys_file))
    controller = DrillController(settings, DrillAttempts(settings, context))
    server = server_of(controller)
    controller.port = server.server_port
    write_object(Path(settings.folder) / STATUS_FILE, ControllerStatus(port=controller.port))
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: controller.stop())
    controller.run()


if __name__ == "__main__":
    main()
