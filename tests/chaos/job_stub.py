"""A job controller of many jobs: it believes what its desks believe, starts nothing, and writes down what it began."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tocsin.pipeline.actions.executors.job_controller import SIGNATURE_HEADER, JobActionState, JobAnswer
from tocsin.pipeline.actions.executors.job_desk import JobDesk, RunningJob
from tocsin.pipeline.actions.executors.reasons import ExecutorReason
from tocsin.pipeline.identity.action_signatures import ActionChecker
from tocsin.schemas.action_codec import decode_action
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.credentials import Credential
from tocsin.schemas.errors import SchemaError


class JobStub(ThreadingHTTPServer):
    """Listens on a port of this machine.

    Attributes:
        made: (time in Unix ns, job id, "KIND ACTION" or "undo ACTION") of all that was begun, in order.
        late: actions that were posted first after their deadline.
    """

    daemon_threads = True

    def __init__(self, keys: Sequence[Credential]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self._keys, self._lock = keys, threading.Lock()
        self.made: list[tuple[int, str, str]] = []
        self.late: list[str] = []
        self._desks: dict[str, JobDesk] = {}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def add(self, job: RunningJob) -> None:
        """Let a job run."""
        self._desks[job.job.job_id] = JobDesk(ActionChecker(self._keys), lambda: job)

    def on_get(self, action_id: str) -> tuple[int, JobAnswer | None]:
        with self._lock:
            found = [desk.state(action_id) for desk in self._desks.values()]
        known = next((one for one in found if one is not None), None)
        return (200, known) if known is not None else (404, None)

    def on_post(self, value: bytes, signature: bytes) -> tuple[int, JobAnswer | None]:
        try:
            claimed = decode_action(value)
        except SchemaError:
            return 400, None
        with self._lock:
            desk = self._desks[claimed.target.job.job_id]
            status, answer, action = desk.on_post(value, signature, time.time_ns())
            if answer.reason == ExecutorReason.DEADLINE_PASSED.value:
                self.late.append(claimed.action_id)
            if action is not None:
                is_begun = action.state is ActionState.STARTED
                word = action.kind.value if is_begun else "undo"
                self.made.append((time.time_ns(), action.target.job.job_id, f"{word} {action.action_id}"))
                if is_begun:
                    desk.on_end(action.action_id, JobAnswer(JobActionState.DONE))
        return status, answer


class _Handler(BaseHTTPRequestHandler):
    server: JobStub

    def do_GET(self) -> None:
        self._answer(*self.server.on_get(self.path.rpartition("/")[2]))

    def do_POST(self) -> None:
        value = self.rfile.read(int(self.headers["Content-Length"]))
        self._answer(*self.server.on_post(value, self.headers.get(SIGNATURE_HEADER, "").encode()))

    def _answer(self, status: int, answer: JobAnswer | None) -> None:
        body = b"{}" if answer is None else json.dumps({"state": answer.state, "reason": answer.reason}).encode()
        with contextlib.suppress(OSError):  # who asked was killed
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def job_stub(keys: Sequence[Credential]) -> Iterator[JobStub]:
    """A job controller that answers during the block."""
    with JobStub(keys) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
