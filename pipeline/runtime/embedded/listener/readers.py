"""Answer questions of readers, operators and executors that are connected to the listener; they send no records.

A reader only asks. An operator may also send the requests that change something. An executor has requests of its own.

A question may take as long as the database takes, so it is answered in separate threads. The listener's thread only
passes questions and answers on.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from tocsin.pipeline.runtime.embedded.control_socket import ACTOR, EngineRefusedError
from tocsin.pipeline.runtime.embedded.listener.connection import Connection
from tocsin.pipeline.stores.incident_queries import IncidentFilter, incidents_query, page_queries
from tocsin.schemas.credentials import Role
from tocsin.schemas.errors import IdentityError, TocsinError
from tocsin.schemas.reasons import IdentityRefusal
from tocsin.schemas.verdicts import FaultKind, VerdictState

MAX_ANSWER_BYTES: Final = 15 << 20
"""Maximum size of an answer; a message of this protocol has at most 16 MiB."""
MAX_SHOWN_COUNT: Final = 1000
"""Maximum number of incidents in one answer."""
_MAX_WAITING_COUNT: Final = 64
"""Maximum number of questions waiting for an answer."""
_THREADS_COUNT: Final = 4
_JOBS_QUERY: Final = (
    "SELECT job_id FROM tocsin.incidents UNION DISTINCT SELECT job_id FROM tocsin.host_health ORDER BY 1"
)
_LOG: Final = logging.getLogger("tocsin.readers")

Message = dict[str, Any]
Answerer = Callable[[Message], Message]
"""Function from a question to its answer, called from several threads; its ``TocsinError`` is sent to the reader."""


class ReaderService:
    """Queues readers' questions and delivers the answers."""

    def __init__(self, wake: Callable[[], None]) -> None:
        """Start without answerers.

        Args:
            wake: called from another thread when an answer is ready.
        """
        self._wake = wake
        self._threads = ThreadPoolExecutor(_THREADS_COUNT, "readers")
        self._asking: set[Connection] = set()
        self._answers: deque[tuple[Connection, bytes]] = deque()
        self.answerers: Mapping[str, Answerer] = {}
        """Name of a question -> function that answers it."""
        self.changers: Mapping[str, Answerer] = {}
        """Name of a request that changes something -> function that answers it; ``actor`` is added to the request."""
        self.for_executors: Mapping[str, Answerer] = {}
        """Name of a request of executors -> function that answers it; ``actor`` is added to the request."""

    def take(self, connection: Connection, question: Message) -> IdentityError | None:
        """Queue a question, or send its refusal at once.

        Returns:
            The refusal if the peer's role does not allow the question, otherwise None.
        """
        try:
            self._check_role(connection, str(question.get("cmd")))
            if connection in self._asking or len(self._asking) >= _MAX_WAITING_COUNT:
                raise EngineRefusedError("too many questions wait for their answers: try again", "busy")
        except (IdentityError, EngineRefusedError) as error:
            connection.say({"t": "answer", "ok": False, "error": str(error), "reason": error.reason})
            return error if isinstance(error, IdentityError) else None
        self._asking.add(connection)
        actor = connection.operator or connection.executor
        self._threads.submit(self._work, connection, {**question, ACTOR: actor})
        return None

    def _check_role(self, connection: Connection, cmd: str) -> None:
        """Raise ``IdentityError`` if the peer's role does not allow this request."""
        if cmd in self.for_executors:
            is_allowed, wanted = bool(connection.executor), Role.EXECUTOR
        elif cmd in self.changers:
            is_allowed, wanted = bool(connection.operator), Role.OPERATOR
        else:
            is_allowed, wanted = connection.is_reader, Role.READER
        if not is_allowed:
            text = f"{cmd[:40]} from {connection.principal}: takes role {wanted.value}"
            raise IdentityError(IdentityRefusal.ROLE_REFUSED, text)

    def say_answers(self) -> Iterator[Connection]:
        """Put finished answers into their connections' outboxes, and yield these connections.

        For the listener's thread.
        """
        while self._answers:
            connection, answer = self._answers.popleft()
            self._asking.discard(connection)
            if connection.peer.fileno() >= 0:  # it may have left meanwhile
                connection.answer_bytes = max(connection.answer_bytes, len(answer))
                connection.say_encoded(answer)
                yield connection

    def close(self) -> None:
        """Stop answering; waiting questions are dropped."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _work(self, connection: Connection, question: Message) -> None:
        """Answer one question in a worker thread, and queue the answer or error."""
        try:
            answer = self._answer(question)
        except TocsinError as error:
            answer = {"ok": False, "error": str(error), "reason": error.reason}
        except Exception:  # noqa: BLE001  # supervising: whoever asks must be told that no answer comes
            _LOG.exception("a reader's question failed")
            answer = {"ok": False, "error": "the engine failed at this question: see its log", "reason": "failed"}
        data = json.dumps({"t": "answer", **answer}).encode()
        if len(data) > MAX_ANSWER_BYTES:
            text = f"the answer has {len(data)} bytes, at most {MAX_ANSWER_BYTES} are sent: ask for one job"
            data = json.dumps({"t": "answer", "ok": False, "error": text, "reason": "too_large"}).encode()
        self._answers.append((connection, data))
        self._wake()

    def _answer(self, question: Message) -> Message:
        """Return the answer to a question; raise ``EngineRefusedError`` if nothing answers it."""
        cmd = str(question.get("cmd"))
        answerer = (self.for_executors.get(cmd) or self.changers.get(cmd)) if question[ACTOR] else None
        answerer = answerer or self.answerers.get(cmd)
        if answerer is None:
            known = ", ".join(sorted(self.answerers)) or "nothing"
            text = f"{cmd[:40]!r} cannot be asked here: a reader may ask {known}"
            raise EngineRefusedError(text, "unknown_command")
        return {"ok": True, **answerer(question)}


def incidents_answerer(query: Callable[[str, str], bytes]) -> Answerer:
    """Return the answerer of ``incidents``.

    Question with ``everything``, ``job_id``, ``id_prefix`` and the fields of ``IncidentFilter``, answer ``rows``.

    Args:
        query: ``Store.query`` of the engine's store.
    """

    def answer(question: Message) -> Message:
        job_id, id_prefix = question.get("job_id"), question.get("id_prefix")
        if not all(one is None or isinstance(one, str) for one in (job_id, id_prefix)):
            raise EngineRefusedError('incidents takes "job_id" and "id_prefix" as text', "bad_request")
        everything, wanted = question.get("everything") is True, _filter_of(question)
        named: dict[str, str | None] = {"job_id": job_id, "id_prefix": id_prefix}
        sql = incidents_query(everything=everything, **named, limit=MAX_SHOWN_COUNT, wanted=wanted)
        return {"rows": _rows(query(sql, "JSONEachRow"))}

    return answer


def page_answerer(query: Callable[[str, str], bytes]) -> Answerer:
    """Return the answerer of ``incident_page``: question with ``id``, a whole id; answer the rows of each of its parts.

    Args:
        query: ``Store.query`` of the engine's store.
    """

    def answer(question: Message) -> Message:
        verdict_id = question.get("id")
        if not isinstance(verdict_id, str):
            raise EngineRefusedError('incident_page needs "id" as text', "bad_request")
        return {name: _rows(query(sql, "JSONEachRow")) for name, sql in page_queries(verdict_id).items()}

    return answer


def _filter_of(question: Message) -> IncidentFilter:
    """Return the filter that a question holds; raise ``EngineRefusedError`` if a field has a wrong value."""
    host, fault, state = question.get("host"), question.get("fault"), question.get("state")
    numbers = [question.get(name) or 0 for name in ("since_ns", "written_within_seconds")]
    if not all(isinstance(one, int) and 0 <= one < 1 << 63 for one in numbers):
        text = 'incidents takes "since_ns" and "written_within_seconds" as whole numbers'
        raise EngineRefusedError(text, "bad_request")
    if host is not None and not isinstance(host, str):
        raise EngineRefusedError('incidents takes "host" as text', "bad_request")
    try:
        fault = None if fault is None else FaultKind(fault)
        state = None if state is None else VerdictState(state)
    except ValueError as error:
        raise EngineRefusedError(f"incidents: {error}", "bad_request") from error
    return IncidentFilter(host, fault, state, *numbers)


def jobs_answerer(query: Callable[[str, str], bytes], heard: Callable[[], set[str]]) -> Answerer:
    """Return the answerer of ``jobs``: the sorted names of all jobs in the database or the engine.

    Args:
        query: ``Store.query`` of the engine's store.
        heard: returns the jobs that the engine knows now.
    """
    return lambda _: {"jobs": sorted({row["job_id"] for row in _rows(query(_JOBS_QUERY, "JSONEachRow"))} | heard())}


def _rows(answer: bytes) -> list[Message]:
    """Parse an answer in format JSONEachRow."""
    return [json.loads(line) for line in answer.splitlines()]
