"""Listens for agents: length-prefixed records and control messages on stream sockets.

One thread, one selector. A connection that breaks the protocol is closed and counted;
a record that is no record becomes a dead letter with a reason; neither stops the rest.
Peers take turns: each has a share of messages and bytes, so that a flood delays nobody else's.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import selectors
import socket
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from tocsin.pipeline.core.slices import RecordOutcome
from tocsin.pipeline.identity.principal import Principal
from tocsin.pipeline.runtime.embedded.dead_letters import DeadLetter
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine
from tocsin.pipeline.runtime.embedded.listener.addresses import (
    keep_alive,
    listen,
    parse_address,
    peer_of,
    remove_socket,
)
from tocsin.pipeline.runtime.embedded.listener.admission import Admission, host_of
from tocsin.pipeline.runtime.embedded.listener.connection import Connection
from tocsin.pipeline.runtime.embedded.listener.connection_book import ConnectionBook
from tocsin.pipeline.runtime.embedded.listener.limits import Quota
from tocsin.pipeline.runtime.embedded.listener.listener_config import ServerConfig
from tocsin.pipeline.runtime.embedded.listener.peer_limits import Intake
from tocsin.pipeline.runtime.embedded.listener.readers import ReaderService
from tocsin.pipeline.runtime.embedded.supervised_thread import SupervisedThread
from tocsin.schemas.errors import ClockAheadError, FieldError, IdentityError, SchemaError
from tocsin.schemas.records import ModelAnnouncement, Tick
from tocsin.schemas.trouble_log import TroubleLog
from tocsin.schemas.wire.codec import decode
from tocsin.schemas.wire.validate import check_int

__all__ = ["AgentServer", "ServerConfig", "parse_address"]

_LOG = logging.getLogger("tocsin.server")
_CHUNK_BYTES: Final = 1 << 18
_KEPT_DEAD_LETTERS: Final = 1000
_KEPT_DATA_BYTES: Final = 1024
_KEPT_MESSAGE_CHARACTERS: Final = 500
_ACCEPTS_A_TURN: Final = 64
_PAUSE_SECONDS: Final = 1.0
_FORGET_EVERY_SECONDS: Final = 30.0
_OUT_OF_DESCRIPTORS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class AgentServer:
    """The engine's listener."""

    def __init__(
        self,
        engine: EmbeddedEngine,
        address: str,
        now_ns: Callable[[], int],
        on_letter: Callable[[str, DeadLetter], None] = lambda _kind, _letter: None,
        config: ServerConfig | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Bind.

        Args:
            engine: takes the records.
            address: ``unix:PATH`` or ``HOST:PORT`` (port 0: any).
            now_ns: the engine's clock.
            on_letter: gets what could not be used: kind (``dead-letters``, ``late``) and letter.
            config: bounds.
            clock: seconds that only grow: how long a peer takes is measured with it.

        Raises:
            EngineError: the address is taken.
            ConfigError: it is no address.
        """
        self._engine = engine
        self._now_ns = now_ns
        self._on_letter = on_letter
        self._clock = clock
        self.commit: Callable[[], bool] = lambda: True
        """Makes sure that what was taken outlives this process; until it can, nothing is acknowledged."""
        config = config or ServerConfig()
        self._limits = config.limits
        self._admission = Admission(config.gate, config.tls, now_ns)
        self._book = ConnectionBook(config.limits)
        self._quota = Quota(config.limits)
        self._intake = Intake(config.intake, engine.has_open_verdict, engine.forget_job)
        self._selector = selectors.DefaultSelector()
        self._listener, self.address = listen(address, config.gate.socket_mode)
        self._selector.register(self._listener, selectors.EVENT_READ, None)
        self._wake_in, self._wake_out = socket.socketpair()
        self._selector.register(self._wake_in, selectors.EVENT_READ, None)
        self._backlog: dict[Connection, None] = {}
        self._turn_number = self._inbox_bytes = 0
        self._paused_until: float | None = None
        self._looked_seconds = self._forgot_seconds = clock()
        self._closing = False
        self._probes: deque[tuple[str, dict[str, Any]]] = deque()
        self.readers = ReaderService(self._wake)
        self._troubles = TroubleLog(_LOG)
        self.counters: Counter[str] = Counter()
        self.dead_letters: deque[DeadLetter] = deque(maxlen=_KEPT_DEAD_LETTERS)
        self.thread = SupervisedThread("agents", self._run)

    def start(self) -> None:
        """Begin to listen."""
        self._intake.begin(self._engine.known_jobs(), self._clock())
        self.thread.start()

    def close(self) -> None:
        """Stop and free the address."""
        self._closing = True
        with contextlib.suppress(OSError):  # closed twice, or by a thread that had just looked
            self._wake_out.send(b"x")
        self.thread.join(5.0)
        self.readers.close()
        remove_socket(self.address)

    @property
    def connected_hosts(self) -> tuple[str, ...]:
        """Hosts whose agent is connected now."""
        return tuple(sorted({c.host for c in list(self._book.all.values()) if c.host and not c.is_reader}))

    @property
    def live_hosts(self) -> frozenset[str]:
        """Hosts that are connected and have sent what they had kept while nobody listened."""
        return frozenset(c.host for c in list(self._book.all.values()) if c.host and c.is_live)

    @property
    def is_alive(self) -> bool:
        """Whether the thread that listens runs."""
        return self.thread.is_alive()

    @property
    def inbox_bytes(self) -> int:
        """What was received and is not worked off."""
        return self._inbox_bytes

    def probe(self, host: str, request: dict[str, Any]) -> None:
        """Ask the agent of a host something (it answers with a ``ProbeAnswer`` record)."""
        self._probes.append((host, {"t": "probe", **request}))
        self._wake()

    def _wake(self) -> None:
        """Let the thread that listens look at what others left for it."""
        with contextlib.suppress(OSError):  # closed meanwhile: nobody is left to ask or to answer
            self._wake_out.send(b"w")

    def _run(self) -> None:
        while not self._closing:
            self.turn(0.0 if self._backlog else 1.0)
        self.stop_now()

    def stop_now(self) -> None:
        """Close all sockets, in the thread that calls ``turn``."""
        for connection in list(self._book.all.values()):
            self._drop(connection, "closing")
        for end in (self._listener, self._wake_in, self._wake_out):
            end.close()
        self._selector.close()

    def turn(self, timeout_seconds: float = 0.0) -> None:
        """Let everybody who has something to say have a share; the thread that listens calls it again and again."""
        ready: dict[Connection, int] = {}
        for key, mask in self._selector.select(timeout_seconds):
            if key.fileobj is self._listener:
                self._accept()
            elif key.fileobj is self._wake_in:
                self._wake_in.recv(4096)
                self._send_probes()
                for asker in self.readers.say_answers():
                    self._supervised(asker, selectors.EVENT_WRITE)
            elif key.data is not None:
                ready[key.data] = mask
        for connection in self._backlog:
            ready.setdefault(connection, selectors.EVENT_READ)
        self._quota.next_turn()
        self._turn_number += 1
        # Those who were served longest ago are first: within one address's share, too, everybody's turn comes.
        for connection, mask in sorted(ready.items(), key=lambda entry: entry[0].served_turn):
            if connection.peer.fileno() >= 0:  # another's turn may have closed it
                self._supervised(connection, mask)
        now = self._clock()
        if now - self._looked_seconds >= 1.0 or now < self._looked_seconds:
            self._looked_seconds = now
            self._look_around(now)

    def _look_around(self, now: float) -> None:
        """Once a second: who takes too long, and what may be forgotten."""
        for connection, why in self._book.overdue(now):
            self._drop(connection, why)
        for connection, error in self._admission.cut_off(self._book.all.values(), now):
            self._turn_away(connection, error)
        if self._admission.trouble:
            self._troubles.warn("credentials not read", "credentials", error=self._admission.trouble)
        if self._paused_until is not None and now >= self._paused_until:
            self._paused_until = None
            self._selector.register(self._listener, selectors.EVENT_READ, None)
        if now - self._forgot_seconds >= _FORGET_EVERY_SECONDS:
            self._forgot_seconds = now
            self._intake.forget_old(self._engine.known_jobs(), now)
        for connection in list(self._book.all.values()):
            if connection.acknowledge(self.commit):  # it could not be kept at first
                self._supervised(connection, selectors.EVENT_WRITE)
        self._troubles.flush()

    def _accept(self) -> None:
        for _ in range(_ACCEPTS_A_TURN):
            try:
                peer, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                self._troubles.warn("accept failed", errno.errorcode.get(error.errno or 0, ""), error=str(error))
                self.counters["accept_failures"] += 1
                if error.errno in _OUT_OF_DESCRIPTORS:  # the same connection waits on: do not spin
                    self._selector.unregister(self._listener)
                    self._paused_until = self._clock() + _PAUSE_SECONDS
                return
            self._take_in(peer)

    def _take_in(self, peer: socket.socket) -> None:
        peer.setblocking(False)
        keep_alive(peer)
        now, address = self._clock(), peer_of(peer)
        self.counters["connections"] += 1
        try:
            connection = Connection(self._admission.wrap(peer), address, now, now)
        except OSError:  # gone already
            peer.close()
            return
        self._selector.register(connection.peer, selectors.EVENT_READ, connection)
        gone = self._book.add(connection)
        if gone is not None:
            self._drop(gone, "too_many_connections")
        if gone is not connection:
            self._supervised(connection, 0)

    def _supervised(self, connection: Connection, mask: int) -> None:
        """Serve one agent; what nobody foresaw costs this connection, not the others."""
        try:
            self._serve(connection, mask)
        except IdentityError as error:
            self._turn_away(connection, error)
        except OSError as error:
            self._troubles.info("connection broke", errno.errorcode.get(error.errno or 0, ""), host=connection.host)
            self._drop(connection, "broken")
        except Exception as error:  # noqa: BLE001  # the supervising loop of all agents
            self._troubles.exception("connection failed", type(error).__name__, host=connection.host)
            self.counters["connection_errors"] += 1
            self._drop(connection, "internal_error")
        self._account(connection)
        while self._inbox_bytes > self._limits.inbox_bytes:
            self._drop(max(self._book.all.values(), key=lambda one: one.counted_bytes), "inboxes_full")

    def _account(self, connection: Connection) -> None:
        """Count its inbox among all."""
        if connection.peer.fileno() >= 0:
            self._inbox_bytes += len(connection.inbox) - connection.counted_bytes
            connection.counted_bytes = len(connection.inbox)

    def _serve(self, connection: Connection, mask: int) -> None:
        limits = self._limits
        if connection.sign_in is None and not self._admission.begin(connection):
            self._wait_for(connection)
            return
        if mask & selectors.EVENT_READ and not connection.has_message(limits):
            with contextlib.suppress(BlockingIOError):  # a part of a TLS record
                data = connection.peer.recv(_CHUNK_BYTES)
                if not data:
                    self._drop(connection, "closed_by_agent")
                    return
                connection.inbox += data
                connection.heard_seconds = self._clock()
        if not self._take_messages(connection):
            return
        if connection.has_message(limits):
            self._backlog[connection] = None
            connection.message_seconds = None  # it waits for us
        else:
            self._backlog.pop(connection, None)
        self._flush(connection)

    def _take_messages(self, connection: Connection) -> bool:
        """Work off whole messages while the share lasts; False when the connection had to be closed."""
        limits, taken = self._limits, 0
        while connection.has_message(limits) and self._quota.has_left(connection.group):
            if connection.is_oversize(limits):
                self._dead(connection, "too_large", f"message of {connection.next_bytes} bytes", b"")
                self._drop(connection, "too_large")
                return False
            data = connection.pop_message()
            self._quota.spend(connection.group, len(data))
            self.counters["messages"] += 1
            self._take(connection, data)
            if connection.peer.fileno() < 0:
                return False
            taken += 1
        if taken:
            connection.served_turn = self._turn_number
        if taken or not connection.inbox:
            connection.message_seconds = None
        if connection.inbox and connection.message_seconds is None:
            connection.message_seconds = self._clock()
        connection.acknowledge(self.commit)
        return True

    def _take(self, connection: Connection, sealed: bytes) -> None:
        """Take a sealed message, or the hello; ``IdentityError`` where either proves nothing."""
        sign_in = connection.sign_in
        if sign_in is None or sign_in.principal is None:
            self._sign_in(connection, self._admission.hello(connection, sealed))
        else:
            self._take_opened(connection, sign_in.principal, sign_in.open(sealed))

    def _turn_away(self, connection: Connection, error: IdentityError) -> None:
        """End a connection whose peer does not prove who it is; an agent of an older version understands this, too."""
        self._dead(connection, error.reason, str(error), b"")
        connection.say({"t": "refused", "reason": error.reason, "message": str(error)[:_KEPT_MESSAGE_CHARACTERS]})
        with contextlib.suppress(OSError):  # gone, or it does not read: it is closed anyway
            connection.peer.send(connection.outbox)
        self._drop(connection, error.reason)

    def _take_opened(self, connection: Connection, principal: Principal, data: bytes) -> None:
        if data[:1] == b"{":
            self._control(connection, data)
            return
        index = connection.taken_count
        connection.taken_count += 1
        self.counters["bytes"] += len(data)
        now_ns = self._now_ns()
        try:
            record = decode(data, now_ns=now_ns)
            principal.check(record)
            if not isinstance(record, ModelAnnouncement | Tick):
                self._intake.check(principal.share_of(record), record, self._clock())
            taken = self._engine.take_record(record, data, now_ns)
            if taken is RecordOutcome.LATE:
                self._on_letter("late", DeadLetter(now_ns, connection.host, "late", "", data))
        except ClockAheadError as error:
            refused = {"index": index, "reason": error.reason, "message": str(error), "ahead_ns": error.ahead_ns}
            connection.say({"t": "refused", **refused})
            self.counters["refused_clock_ahead"] += 1
        except (SchemaError, IdentityError) as error:
            self._dead(connection, error.reason, str(error), data)
            message = str(error)[:_KEPT_MESSAGE_CHARACTERS]
            connection.say({"t": "refused", "index": index, "reason": error.reason, "message": message})

    def _control(self, connection: Connection, data: bytes) -> None:
        try:
            message = json.loads(data)
            kind = message["t"]
            if kind == "hello":
                raise FieldError("hello.host", message.get("host"), f"said once, as {connection.host!r}")
            if kind == "clock":
                t0 = check_int(message.get("t0"), "clock.t0", -(1 << 63), (1 << 63) - 1)
                connection.say({"t": "clock", "t0": t0, "engine_ns": self._now_ns()})
            elif kind == "live":
                connection.is_live = True
            elif kind == "ask":
                refusal = self.readers.take(connection, message)
                if refusal is not None:
                    self._dead(connection, refusal.reason, str(refusal), b"")
        except (ValueError, KeyError, TypeError, RecursionError, FieldError) as error:
            self._dead(connection, "bad_control", f"control message: {error}", data)

    def _sign_in(self, connection: Connection, principal: Principal) -> None:
        """From now on its share and its limits are those of this peer."""
        connection.host = host_of(principal)
        older = self._book.sign_in(connection, principal.label)
        if older is not None:
            self._drop(older, "replaced_by_newer")
        connection.say({"t": "welcome", "engine_ns": self._now_ns()})

    def _dead(self, connection: Connection, reason: str, message: str, data: bytes) -> None:
        self.counters[f"dead_letters_{reason}"] += 1
        message = message[:_KEPT_MESSAGE_CHARACTERS]
        letter = DeadLetter(self._now_ns(), connection.host, reason, message, data)
        self.dead_letters.append(replace(letter, data=data[:_KEPT_DATA_BYTES]))
        self._on_letter("dead-letters", letter)
        self._troubles.warn("dead letter", reason, host=connection.host, reason=reason, detail=message)

    def _send_probes(self) -> None:
        while self._probes:
            host, message = self._probes.popleft()
            for connection in list(self._book.all.values()):
                if connection.host == host:
                    connection.say(message)
                    self._supervised(connection, selectors.EVENT_WRITE)

    def _flush(self, connection: Connection) -> None:
        if connection.outbox:
            try:
                sent = connection.peer.send(connection.outbox)
            except BlockingIOError:
                sent = 0
            del connection.outbox[:sent]
            if len(connection.outbox) > self._limits.outbox_bytes + connection.answer_bytes:
                self._drop(connection, "answers_unread")
                return
            if sent or connection.unread_seconds is None:
                connection.unread_seconds = self._clock() if connection.outbox else None
        self._wait_for(connection)

    def _wait_for(self, connection: Connection) -> None:
        """Wake up when it says something, or when it reads again what waits for it."""
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.has_to_write else 0)
        self._selector.modify(connection.peer, wanted, connection)

    def _drop(self, connection: Connection, why: str) -> None:
        """Close a connection for a named reason; twice is once."""
        if connection.peer.fileno() < 0:
            return
        self._troubles.info("agent disconnected", why, host=connection.host, address=connection.address, why=why)
        self.counters[f"closed_{why}"] += 1
        self._inbox_bytes -= connection.counted_bytes
        self._selector.unregister(connection.peer)
        self._book.remove(connection)
        self._backlog.pop(connection, None)
        connection.peer.close()
