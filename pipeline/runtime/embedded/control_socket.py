"""The control socket, over which other commands query a running engine.

Each connection carries one request: a JSON object on one line. The answer is one JSON line, or several for a stream,
then the end. Every answer line has ``ok``; if it is false, ``error`` is a sentence and ``reason`` its short name. Only
the socket's owner may connect (mode 0600).
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import select
import socket
import socketserver
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self, cast

from tocsin.pipeline.runtime.embedded.supervised_thread import SupervisedThread
from tocsin.schemas.errors import EngineError, TocsinError
from tocsin.schemas.private_files import is_socket

logger = logging.getLogger(__name__)

MAX_LINE_BYTES = 1_000_000
"""Maximum length of a request; an answer may be longer."""
REQUEST_TIMEOUT_SECONDS = 10.0
"""Time after which a client that sends nothing is disconnected."""
ANSWER_TIMEOUT_SECONDS = 120.0
"""Longest wait of a client for an answer; longer than a user query may take."""

OLD_TICK_SECONDS = 10.0
"""Age of the newest tick above which an engine counts as stuck; clients then report an error."""
_END_SECONDS = 10.0
_PEER = struct.Struct("3i")
"""Process, user and group of the peer of a unix socket."""
ACTOR = "actor"
"""Key of a request that the server sets: who asks, as ``uid:1000``."""
Message = dict[str, Any]
Handler = Callable[[Message], Message | Iterator[Message]]
"""Function from a request to its answer (without ``ok``), or to an iterator of answers.

An iterator yields ``{}`` now and then while it has nothing to send. Nothing is sent for it, but the server checks
whether the client is still connected, and closes the iterator if it is not.
"""


class EngineAbsentError(EngineError):
    """No engine listens on the control socket."""

    reason = "engine_absent"


class EngineRefusedError(EngineError):
    """The engine refused a request.

    Attributes:
        reason: the engine's short name for the cause.
    """

    def __init__(self, message: str, reason: str) -> None:
        super().__init__(message)
        self.reason = reason


class ControlServer:
    """Answers requests on a unix socket, in its own threads; ``ping`` needs no handler.

    Args:
        path: path of the socket; its folder is created if missing.
        handlers: command -> handler. Handlers are called from several threads, and raise ``TocsinError`` for errors
            that the client is to see.
    """

    def __init__(self, path: Path, handlers: Mapping[str, Handler]) -> None:
        self._path = path
        self._handlers: dict[str, Handler] = {"ping": lambda _: {"pid": os.getpid()}, **handlers}
        self._server: _Server | None = None
        self.thread: SupervisedThread | None = None

    def add(self, handlers: Mapping[str, Handler]) -> None:
        """Add handlers for more commands, before ``start``."""
        self._handlers.update(handlers)

    def start(self) -> None:
        """Start listening.

        Raises:
            EngineError: another engine listens there, or the socket cannot be created.
        """
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._remove_stale()
            self._server = _Server(self._path, self._handlers)
        except OSError as error:
            raise EngineError(f"cannot listen on {self._path}: {error.strerror or error}") from error
        server = self._server
        self.thread = SupervisedThread("control", lambda: server.serve_forever(0.1))
        self.thread.start()

    def close(self) -> None:
        """Stop listening and remove the socket; streams end at their next answer. Calling it twice is safe."""
        server, self._server = self._server, None
        if server is None or self.thread is None:
            return
        server.closing.set()
        server.shutdown()
        self.thread.join(_END_SECONDS)
        server.server_close()
        with contextlib.suppress(FileExistsError):  # somebody put something else there
            if is_socket(self._path):
                self._path.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _remove_stale(self) -> None:
        """Remove the socket of a dead engine; raise ``EngineError`` if a live engine answers on it."""
        if not is_socket(self._path):
            return
        try:
            ControlClient(self._path, timeout_seconds=2.0).call("ping")
        except EngineAbsentError:
            self._path.unlink(missing_ok=True)
            return
        except EngineError as error:
            raise EngineError(f"another engine holds {self._path} and does not answer: {error}") from error
        raise EngineError(f"another engine already listens on {self._path}: stop it, or use another data folder")


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Socket server that binds with mode 0600 and holds the handlers."""

    daemon_threads = True
    block_on_close = False  # a stream may wait for its handler; it must not hold up the engine's end
    request_queue_size = 64

    def __init__(self, path: Path, handlers: Mapping[str, Handler]) -> None:
        self.handlers = handlers
        self.closing = threading.Event()
        super().__init__(str(path), _Connection)

    def server_bind(self) -> None:
        """Bind the socket; its mode is set before it has a name, so it is never open to others."""
        os.fchmod(self.fileno(), 0o600)
        super().server_bind()

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002  # the base class's
        """Log an unexpected error of a handler; its client sees the connection end."""
        logger.error("control request failed", exc_info=True)  # noqa: LOG014  # called while it is handled


class _Connection(socketserver.StreamRequestHandler):
    """One client's connection with one request."""

    timeout = REQUEST_TIMEOUT_SECONDS

    def handle(self) -> None:
        """Read one request line and answer it."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError, TimeoutError):  # the client left
            line = self.rfile.readline(MAX_LINE_BYTES + 1)
            if line:
                self._answer(line)

    def _answer(self, line: bytes) -> None:
        """Run the request's handler and send its answer, its stream of answers, or its error."""
        try:
            request, handler = self._understood(line)
            self.connection.settimeout(ANSWER_TIMEOUT_SECONDS)
            answer = handler(request)
            if isinstance(answer, dict):
                self._send({"ok": True, **answer})
            else:
                self._stream(answer)
        except TocsinError as error:
            self._send({"ok": False, "error": str(error), "reason": error.reason})

    def _understood(self, line: bytes) -> tuple[Message, Handler]:
        """Parse a request and return it with its handler; raise ``EngineRefusedError`` if it is invalid."""
        if len(line) > MAX_LINE_BYTES:
            raise EngineRefusedError(f"the request is longer than {MAX_LINE_BYTES} bytes", "too_large")
        try:
            request = json.loads(line)
        except ValueError as error:  # also UnicodeDecodeError
            raise EngineRefusedError(f"the request is no JSON: {error}", "bad_request") from error
        if not isinstance(request, dict) or not isinstance(request.get("cmd"), str):
            raise EngineRefusedError('the request must be an object with "cmd"', "bad_request")
        handlers = cast("_Server", self.server).handlers
        handler = handlers.get(request["cmd"])
        if handler is None:
            known = ", ".join(sorted(handlers))
            raise EngineRefusedError(
                f"unknown command {request['cmd']!r}: this engine knows {known}", "unknown_command"
            )
        return {**request, ACTOR: self._actor()}, handler

    def _actor(self) -> str:
        """The user of the process at the other end, as the kernel says."""
        credentials = self.connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
        return f"uid:{_PEER.unpack(credentials)[1]}"

    def _stream(self, answers: Iterator[Message]) -> None:
        """Send the answers of an iterator until it ends, the client leaves or the server closes."""
        closing = cast("_Server", self.server).closing
        try:
            for answer in answers:
                if closing.is_set() or self._client_left():
                    return
                if answer:
                    self._send({"ok": True, **answer})
        finally:
            close = getattr(answers, "close", None)  # generators have it, other iterators may not
            if close is not None:
                close()

    def _client_left(self) -> bool:
        """Return whether the client has closed the connection."""
        poller = select.poll()  # unlike select(), it takes descriptors above 1,023
        poller.register(self.connection, select.POLLIN)
        return bool(poller.poll(0)) and not self.connection.recv(1)

    def _send(self, answer: Message) -> None:
        self.wfile.write(json.dumps(answer).encode() + b"\n")


class ControlClient:
    """Sends requests to an engine, each on its own connection.

    Args:
        path: path of the engine's control socket.
        timeout_seconds: how long to wait for one line of an answer.
    """

    def __init__(self, path: Path, timeout_seconds: float = ANSWER_TIMEOUT_SECONDS) -> None:
        self._path = path
        self._timeout_seconds = timeout_seconds

    def call(self, cmd: str, **args: object) -> Message:
        """Send one request and return its answer.

        Raises:
            EngineAbsentError: no engine listens.
            EngineRefusedError: the engine refuses; ``reason`` is the engine's.
            EngineError: the engine does not follow the protocol.
        """
        for answer in self.stream(cmd, **args):
            return answer
        raise EngineError(f"the engine on {self._path} closed the connection without an answer: see its log")

    def stream(self, cmd: str, **args: object) -> Iterator[Message]:
        """Send one request and yield its answers until the engine ends them; raises the same errors as ``call``."""
        line = json.dumps({"cmd": cmd, **args}).encode() + b"\n"
        if len(line) > MAX_LINE_BYTES:
            raise EngineRefusedError(f"the request is longer than {MAX_LINE_BYTES} bytes", "too_large")
        with self._connect() as connection, connection.makefile("rb") as answers:
            try:
                connection.sendall(line)
                yield from self._answers(answers)
            except TimeoutError as error:
                raise EngineError(
                    f"the engine on {self._path} did not answer within {self._timeout_seconds:g} s"
                ) from error
            except OSError as error:
                raise EngineError(f"the engine on {self._path} broke off: {error.strerror or error}") from error

    def _answers(self, lines: BinaryIO) -> Iterator[Message]:
        """Yield the parsed answer lines.

        Raise ``EngineRefusedError`` for a refusal, ``EngineError`` for anything else.
        """
        for line in lines:
            try:
                answer = json.loads(line)
            except ValueError as error:
                raise EngineError(f"what listens on {self._path} is no engine: it answered {line[:60]!r}") from error
            if not isinstance(answer, dict) or not isinstance(answer.get("ok"), bool):
                raise EngineError(f"what listens on {self._path} is no engine: it answered {line[:60]!r}")
            if not answer["ok"]:
                raise EngineRefusedError(str(answer.get("error", "")), str(answer.get("reason", "engine")))
            yield answer

    def _connect(self) -> socket.socket:
        """Return a connection to the socket; raise ``EngineAbsentError`` if no engine listens there."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(self._timeout_seconds)
        try:
            connection.connect(str(self._path))
        except OSError as error:
            connection.close()
            if error.errno in {errno.ENOENT, errno.ECONNREFUSED, errno.ENOTDIR}:
                raise EngineAbsentError(f"no engine listens on {self._path}") from error
            raise EngineError(f"cannot reach the engine on {self._path}: {error.strerror or error}") from error
        return connection


def sql_handler(query: Callable[[str, str], bytes]) -> Handler:
    """Return the handler of ``sql``: request ``{"query", "format"}``, answer ``{"result": text}``.

    Binary formats (Parquet, Native) are refused, because their bytes do not fit in a JSON line.

    Args:
        query: ``Store.query`` of the engine's store.
    """

    def answer(request: Message) -> Message:
        sql, fmt = request.get("query"), request.get("format", "JSON")
        if not isinstance(sql, str) or not isinstance(fmt, str):
            raise EngineRefusedError('sql needs "query" and "format" as text', "bad_request")
        try:
            return {"result": query(sql, fmt).decode()}
        except UnicodeDecodeError as error:
            message = f"the result in format {fmt} is no text: ask for a text format, e.g. JSON or CSV"
            raise EngineRefusedError(message, "binary_result") from error

    return answer
