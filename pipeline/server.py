"""Listens for agents: length-prefixed records and control messages on stream sockets.

One thread, one selector. A connection that breaks the protocol is closed and counted;
a record that is no record becomes a dead letter with a reason; neither stops the rest.
"""

from __future__ import annotations

import contextlib
import json
import logging
import selectors
import socket
import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tocsin.pipeline.embedded import EmbeddedEngine
from tocsin.pipeline.letters import Letter
from tocsin.pipeline.slices import Taken
from tocsin.schemas.codec import MAX_RECORD_BYTES
from tocsin.schemas.errors import ClockAheadError, ConfigError, EngineError, SchemaError

_LOG = logging.getLogger("tocsin.server")
_CHUNK_BYTES = 1 << 18
_KEPT_DEAD_LETTERS = 1000


@dataclass(slots=True)
class _Connection:
    """One agent."""

    peer: socket.socket
    host: str = ""
    inbox: bytearray = field(default_factory=bytearray)
    outbox: bytearray = field(default_factory=bytearray)
    taken_count: int = 0
    acked_count: int = 0


def parse_address(text: str) -> tuple[str, Any]:
    """``unix:PATH`` or ``HOST:PORT`` -> ("unix", path) or ("tcp", (host, port)).

    Raises:
        ConfigError: neither.
    """
    if text.startswith("unix:") and len(text) > len("unix:"):
        return "unix", text.removeprefix("unix:")
    host, colon, port = text.rpartition(":")
    if colon and host and port.isdigit() and int(port) < 1 << 16:
        return "tcp", (host.strip("[]"), int(port))
    raise ConfigError("listen", text, "unix:PATH or HOST:PORT")


class AgentServer:
    """The engine's ear."""

    def __init__(
        self,
        engine: EmbeddedEngine,
        address: str,
        now_ns: Callable[[], int],
        on_letter: Callable[[str, Letter], None] = lambda _kind, _letter: None,
    ) -> None:
        """Bind.

        Args:
            engine: takes the records.
            address: ``unix:PATH`` or ``HOST:PORT`` (port 0: any).
            now_ns: the engine's clock.
            on_letter: gets what could not be used: kind (``dead-letters``, ``late``) and letter.

        Raises:
            EngineError: the address is taken.
            ConfigError: it is no address.
        """
        self._engine = engine
        self._now_ns = now_ns
        self._on_letter = on_letter
        self._selector = selectors.DefaultSelector()
        self._listener, self.address = _listen(address)
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._wake_in, self._wake_out = socket.socketpair()
        self._selector.register(self._wake_in, selectors.EVENT_READ, None)
        self._connections: dict[socket.socket, _Connection] = {}
        self._closing = False
        self._probes: deque[tuple[str, dict[str, Any]]] = deque()
        self.counters: Counter[str] = Counter()
        self.dead_letters: deque[Letter] = deque(maxlen=_KEPT_DEAD_LETTERS)
        self._thread = threading.Thread(target=self._run, name="agents", daemon=True)

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()

    def close(self) -> None:
        """Stop and free the address."""
        self._closing = True
        with contextlib.suppress(OSError):  # closed twice, or by a thread that had just looked
            self._wake_out.send(b"x")
        self._thread.join(5.0)
        kind, where = parse_address(self.address)
        if kind == "unix":
            Path(where).unlink(missing_ok=True)

    @property
    def connected_hosts(self) -> tuple[str, ...]:
        """Hosts whose agent is connected now."""
        return tuple(sorted(c.host for c in list(self._connections.values()) if c.host))

    def probe(self, host: str, request: dict[str, Any]) -> None:
        """Ask the agent of a host something (it answers with a ``ProbeAnswer`` record)."""
        self._probes.append((host, {"t": "probe", **request}))
        with contextlib.suppress(OSError):  # closed meanwhile: nobody is left to ask
            self._wake_out.send(b"p")

    def _run(self) -> None:
        while not self._closing:
            for key, mask in self._selector.select(timeout=1.0):
                peer = key.fileobj
                if peer is self._listener:
                    self._accept()
                elif peer is self._wake_in:
                    self._wake_in.recv(4096)
                    self._send_probes()
                elif isinstance(peer, socket.socket) and peer in self._connections:
                    self._supervised(self._connections[peer], mask)
        for connection in list(self._connections.values()):
            self._drop(connection, "closing")
        for end in (self._listener, self._wake_in, self._wake_out):
            end.close()

    def _accept(self) -> None:
        try:
            peer, _ = self._listener.accept()
        except OSError as error:
            _LOG.warning("accept failed", extra={"error": str(error)})
            return
        peer.setblocking(False)
        self._connections[peer] = _Connection(peer)
        self._selector.register(peer, selectors.EVENT_READ, None)
        self.counters["connections"] += 1

    def _supervised(self, connection: _Connection, mask: int) -> None:
        """Serve one agent; what nobody foresaw costs this connection, not the others."""
        try:
            self._serve(connection, mask)
        except Exception:  # noqa: BLE001  # the supervising loop of all agents
            _LOG.exception("connection failed", extra={"host": connection.host})
            self.counters["connection_errors"] += 1
            if connection.peer in self._connections:
                self._drop(connection, "internal_error")

    @property
    def is_alive(self) -> bool:
        """Whether the thread that listens runs."""
        return self._thread.is_alive()

    def _serve(self, connection: _Connection, mask: int) -> None:
        try:
            if mask & selectors.EVENT_READ:
                data = connection.peer.recv(_CHUNK_BYTES)
                if not data:
                    self._drop(connection, "closed_by_agent")
                    return
                connection.inbox += data
                if not self._take_messages(connection):
                    return
            self._flush(connection)
        except OSError as error:
            self._drop(connection, str(error))

    def _take_messages(self, connection: _Connection) -> bool:
        """Work off whole messages; False when the connection had to be closed."""
        inbox, at = connection.inbox, 0
        while len(inbox) - at >= 4:
            length = int.from_bytes(inbox[at : at + 4], "little")
            if length > MAX_RECORD_BYTES:
                self._dead(connection, "too_large", f"message of {length} bytes, at most {MAX_RECORD_BYTES}", b"")
                self._drop(connection, "too_large")
                return False
            if len(inbox) - at - 4 < length:
                break
            self._take(connection, bytes(inbox[at + 4 : at + 4 + length]))
            at += 4 + length
        del inbox[:at]
        if connection.taken_count > connection.acked_count:
            connection.acked_count = connection.taken_count
            self._say(connection, {"t": "ack", "count": connection.taken_count})
        return True

    def _take(self, connection: _Connection, data: bytes) -> None:
        if data[:1] == b"{":
            self._control(connection, data)
            return
        index = connection.taken_count
        connection.taken_count += 1
        self.counters["bytes"] += len(data)
        try:
            taken = self._engine.take(data, self._now_ns())
            if taken is Taken.LATE:
                self._on_letter("late", Letter(self._now_ns(), connection.host, "late", "", data))
        except ClockAheadError as error:
            refused = {"index": index, "reason": error.reason, "message": str(error), "ahead_ns": error.ahead_ns}
            self._say(connection, {"t": "refused", **refused})
            self.counters["refused_clock_ahead"] += 1
        except SchemaError as error:
            self._dead(connection, error.reason, str(error), data)
            self._say(connection, {"t": "refused", "index": index, "reason": error.reason, "message": str(error)})

    def _control(self, connection: _Connection, data: bytes) -> None:
        try:
            message = json.loads(data)
            kind = message["t"]
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            self._dead(connection, "bad_control", f"control message: {error}", data)
            return
        if kind == "hello":
            connection.host = str(message.get("host", ""))
            self._say(connection, {"t": "welcome", "engine_ns": self._now_ns()})
        elif kind == "clock":
            self._say(connection, {"t": "clock", "t0": message.get("t0"), "engine_ns": self._now_ns()})

    def _dead(self, connection: _Connection, reason: str, message: str, data: bytes) -> None:
        self.counters[f"dead_letters_{reason}"] += 1
        letter = Letter(self._now_ns(), connection.host, reason, message, data)
        self.dead_letters.append(replace(letter, data=data[:1024]))
        self._on_letter("dead-letters", letter)
        _LOG.warning("dead letter", extra={"host": connection.host, "reason": reason, "detail": message})

    def _say(self, connection: _Connection, message: dict[str, Any]) -> None:
        text = json.dumps(message).encode()
        connection.outbox += len(text).to_bytes(4, "little") + text

    def _send_probes(self) -> None:
        while self._probes:
            host, message = self._probes.popleft()
            for connection in list(self._connections.values()):
                if connection.host == host:
                    self._say(connection, message)
                    self._flush(connection)

    def _flush(self, connection: _Connection) -> None:
        if connection.outbox:
            try:
                sent = connection.peer.send(connection.outbox)
            except BlockingIOError:
                sent = 0
            del connection.outbox[:sent]
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.outbox else 0)
        self._selector.modify(connection.peer, wanted, None)

    def _drop(self, connection: _Connection, why: str) -> None:
        _LOG.info("agent disconnected", extra={"host": connection.host, "why": why})
        self._selector.unregister(connection.peer)
        del self._connections[connection.peer]
        connection.peer.close()


def _listen(address: str) -> tuple[socket.socket, str]:
    kind, where = parse_address(address)
    listener = socket.socket(socket.AF_UNIX if kind == "unix" else socket.AF_INET, socket.SOCK_STREAM)
    try:
        if kind == "unix":
            _clear_stale(where)
            Path(where).parent.mkdir(parents=True, exist_ok=True)
        else:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
    except OSError as error:
        listener.close()
        raise EngineError(f"cannot listen on {address}: {error}") from error
    listener.listen(1024)
    listener.setblocking(False)
    if kind == "unix":
        return listener, f"unix:{where}"
    host, port = listener.getsockname()[:2]
    return listener, f"{host}:{port}"


def _clear_stale(path: str) -> None:
    """Remove a socket that nobody listens on any more."""
    if not Path(path).exists():
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trial:
        try:
            trial.connect(path)
        except OSError:
            Path(path).unlink(missing_ok=True)
            return
    raise EngineError(f"cannot listen on unix:{path}: another engine listens there")
