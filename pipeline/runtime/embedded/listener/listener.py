"""The listener for agents: length-prefixed records and control messages on stream sockets.

One thread, one selector. A connection that breaks the protocol is closed and counted. A record that cannot be used
becomes a dead letter with a reason. Neither stops the rest. Peers take turns: each has a share of messages and bytes,
so that a flood of one peer does not delay the others.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import selectors
import socket
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from tocsin.pipeline.identity.principal import Principal
from tocsin.pipeline.runtime.embedded.dead_letters import DeadLetter
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine
from tocsin.pipeline.runtime.embedded.listener.acceptor import Acceptor
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
from tocsin.pipeline.runtime.embedded.listener.message_handler import KEPT_MESSAGE_CHARACTERS, MessageHandler
from tocsin.pipeline.runtime.embedded.listener.peer_limits import Intake
from tocsin.pipeline.runtime.embedded.listener.readers import ReaderService
from tocsin.pipeline.runtime.embedded.supervised_thread import SupervisedThread
from tocsin.schemas.errors import IdentityError

__all__ = ["AgentServer", "ServerConfig", "parse_address"]

_LOG = logging.getLogger("tocsin.server")
_CHUNK_BYTES: Final = 1 << 18
_FORGET_EVERY_SECONDS: Final = 30.0


class AgentServer:
    """The engine's listener.

    Attributes:
        commit: makes sure that the records taken outlive this process; until it returns True, none is acknowledged.
        address: where it listens, with the port that was chosen.
        has_tls: whether it speaks TLS on TCP.
        key_file: what is wrong with the file of credentials, None: there is no such file.
        readers: questions of readers, and their answers.
        counters: numbers of connections, messages, refused records and dead letters.
        dead_letters: the last dead letters.
        thread: the thread that listens.
    """

    def __init__(
        self,
        engine: EmbeddedEngine,
        address: str,
        now_ns: Callable[[], int],
        on_dead_letter: Callable[[str, DeadLetter], None] = lambda _kind, _dead_letter: None,
        config: ServerConfig | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Bind the address.

        Args:
            engine: takes the records.
            address: ``unix:PATH`` or ``HOST:PORT`` (port 0: any).
            now_ns: the engine's clock.
            on_dead_letter: gets what could not be used: kind (``dead-letters``, ``late``) and dead letter.
            config: bounds; None: the defaults.
            clock: monotonic seconds, to measure how long a peer takes.

        Raises:
            EngineError: the address is taken.
            ConfigError: it is no address.
        """
        self._engine, self._now_ns, self._clock = engine, now_ns, clock
        self.commit: Callable[[], bool] = lambda: True
        config = config or ServerConfig()
        self.has_tls = config.tls is not None
        self._limits = config.limits
        self._admission = Admission(config.gate, config.tls, now_ns)
        self.key_file = self._admission.key_file
        self._book, self._quota = ConnectionBook(config.limits), Quota(config.limits)
        self._intake = Intake(config.intake, engine.has_open_verdict, engine.forget_job)
        self._selector = selectors.DefaultSelector()
        listener, self.address = listen(address, config.gate.socket_mode)
        self._wake_in, self._wake_out = socket.socketpair()
        self._selector.register(self._wake_in, selectors.EVENT_READ, None)
        self._backlog: dict[Connection, None] = {}
        self._turn_number = self._inbox_bytes = 0
        self._looked_seconds = self._forgot_seconds = clock()
        self._closing = False
        self._probes: deque[tuple[str, dict[str, Any]]] = deque()
        self.readers = ReaderService(self._wake)
        self._messages = MessageHandler(engine, self._intake, self.readers, on_dead_letter, now_ns, clock)
        self._troubles = self._messages.troubles
        self.counters, self.dead_letters = self._messages.counters, self._messages.dead_letters
        self._acceptor = Acceptor(listener, self._selector, self._troubles, self.counters, clock)
        self.thread = SupervisedThread("agents", self._run)

    def start(self) -> None:
        """Start the thread that listens."""
        self._intake.begin(self._engine.known_jobs(), self._clock())
        self.thread.start()

    def close(self) -> None:
        """Stop the thread that listens, and free the address."""
        self._closing = True
        with contextlib.suppress(OSError):  # closed twice, or by a thread that had just looked
            self._wake_out.send(b"x")
        self.thread.join(5.0)
        self.readers.close()
        remove_socket(self.address)

    @property
    def connected_hosts(self) -> tuple[str, ...]:
        """Hosts whose agent is connected, sorted."""
        peers = list(self._book.all.values())
        return tuple(sorted({one.host for one in peers if one.host and not (one.is_reader or one.executor)}))

    @property
    def live_hosts(self) -> frozenset[str]:
        """Connected hosts that have sent the records which they kept while nobody listened."""
        return frozenset(c.host for c in list(self._book.all.values()) if c.host and c.is_live)

    @property
    def is_alive(self) -> bool:
        """Whether the thread that listens runs."""
        return self.thread.is_alive()

    @property
    def connection_count(self) -> int:
        """Connections that are open, signed in or not."""
        return len(self._book.all)

    @property
    def largest_outbox_bytes(self) -> int:
        """Bytes of the answers that wait for the peer that has the most of them to read; 0 without connections."""
        return max((len(one.outbox) for one in list(self._book.all.values())), default=0)

    @property
    def inbox_bytes(self) -> int:
        """Bytes that were received and are not worked off."""
        return self._inbox_bytes

    def probe(self, host: str, request: dict[str, Any]) -> None:
        """Send a probe request to the agent of a host, which answers with a ``ProbeAnswer`` record.

        Args:
            host: the host.
            request: the request's fields.
        """
        self._probes.append((host, {"t": "probe", **request}))
        self._wake()

    def _wake(self) -> None:
        """Wake up the thread that listens, because other threads left work for it."""
        with contextlib.suppress(OSError):  # closed meanwhile: nobody is left to ask or to answer
            self._wake_out.send(b"w")

    def _run(self) -> None:
        """Listen until the listener closes."""
        while not self._closing:
            self.turn(0.0 if self._backlog else 1.0)
        self.stop_now()

    def stop_now(self) -> None:
        """Close all sockets; call it in the thread that calls ``turn``."""
        for connection in list(self._book.all.values()):
            self._drop(connection, "closing")
        for end in (self._acceptor.listener, self._wake_in, self._wake_out):
            end.close()
        self._selector.close()

    def turn(self, timeout_seconds: float = 0.0) -> None:
        """Give every peer that has sent something its share; the thread that listens calls this in a loop.

        Args:
            timeout_seconds: how long to wait for the first message.
        """
        ready: dict[Connection, int] = {}
        for key, mask in self._selector.select(timeout_seconds):
            if key.fileobj is self._acceptor.listener:
                for peer in self._acceptor.accept():
                    self._take_in(peer)
            elif key.fileobj is self._wake_in:
                self._send_for_others()
            elif key.data is not None:
                ready[key.data] = mask
        for connection in self._backlog:
            ready.setdefault(connection, selectors.EVENT_READ)
        self._quota.next_turn()
        self._turn_number += 1
        # Peers that were served longest ago are first: within one address's share, too, every peer gets its turn.
        for connection, mask in sorted(ready.items(), key=lambda entry: entry[0].served_turn):
            if connection.peer.fileno() >= 0:  # another's turn may have closed it
                self._supervised(connection, mask)
        now = self._clock()
        if now - self._looked_seconds >= 1.0 or now < self._looked_seconds:
            self._looked_seconds = now
            self._look_around(now)

    def _look_around(self, now: float) -> None:
        """Close slow connections and forget old peers; called once a second with the monotonic time."""
        for connection, why in self._book.overdue(now):
            self._drop(connection, why)
        for connection, error in self._admission.cut_off(self._book.all.values(), now):
            self._turn_away(connection, error)
        if self._admission.trouble:
            self._troubles.warn("credentials not read", "credentials", error=self._admission.trouble)
        self._acceptor.resume(now)
        if now - self._forgot_seconds >= _FORGET_EVERY_SECONDS:
            self._forgot_seconds = now
            self._intake.forget_old(self._engine.known_jobs(), now)
        for connection in list(self._book.all.values()):
            if connection.acknowledge(self.commit):  # it could not be kept at first
                self._supervised(connection, selectors.EVENT_WRITE)
        self._troubles.flush()

    def _take_in(self, peer: socket.socket) -> None:
        """Register an accepted connection; when there are too many, drop one."""
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
        """Serve one connection; an unforeseen error closes this connection and no other."""
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
        """Add the growth of a connection's inbox to the total."""
        if connection.peer.fileno() >= 0:
            self._inbox_bytes += len(connection.inbox) - connection.counted_bytes
            connection.counted_bytes = len(connection.inbox)

    def _serve(self, connection: Connection, mask: int) -> None:
        """Read from a connection, work off its messages, and write what waits for it."""
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
        """Work off whole messages while the peer's share lasts; return False when the connection was closed."""
        limits, taken = self._limits, 0
        while connection.has_message(limits) and self._quota.has_left(connection.group):
            if connection.is_oversize(limits):
                self._messages.bury(connection, "too_large", f"message of {connection.next_bytes} bytes", b"")
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
        """Take a sealed message, or the hello that signs a peer in.

        Raises:
            IdentityError: the message or the hello does not prove who the peer is.
        """
        sign_in = connection.sign_in
        if sign_in is None or sign_in.principal is None:
            self._sign_in(connection, self._admission.hello(connection, sealed))
        else:
            self._messages.take(connection, sign_in.principal, sign_in.open(sealed))

    def _turn_away(self, connection: Connection, error: IdentityError) -> None:
        """Refuse and close a connection whose peer does not prove who it is.

        Agents of an older version understand the refusal, too.
        """
        self._messages.bury(connection, error.reason, str(error), b"")
        connection.say({"t": "refused", "reason": error.reason, "message": str(error)[:KEPT_MESSAGE_CHARACTERS]})
        with contextlib.suppress(OSError):  # gone, or it does not read: it is closed anyway
            connection.peer.send(connection.outbox)
        self._drop(connection, error.reason)

    def _sign_in(self, connection: Connection, principal: Principal) -> None:
        """Give a connection the name, share and limits of the peer that it proved to be."""
        connection.host = host_of(principal)
        older = self._book.sign_in(connection, principal.label)
        if older is not None:
            self._drop(older, "replaced_by_newer")
        connection.say({"t": "welcome", "engine_ns": self._now_ns()})

    def _send_for_others(self) -> None:
        """Send the answers and the probe requests that other threads left."""
        self._wake_in.recv(4096)
        self._send_probes()
        for asker in self.readers.say_answers():
            self._supervised(asker, selectors.EVENT_WRITE)

    def _send_probes(self) -> None:
        """Send waiting probe requests to the hosts that are connected."""
        while self._probes:
            host, message = self._probes.popleft()
            for connection in list(self._book.all.values()):
                if connection.host == host:
                    connection.say(message)
                    self._supervised(connection, selectors.EVENT_WRITE)

    def _flush(self, connection: Connection) -> None:
        """Send what waits for a connection; close it when too much waits."""
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
        """Let the selector report when a connection sends something, or can take what waits for it."""
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.has_to_write else 0)
        self._selector.modify(connection.peer, wanted, connection)

    def _drop(self, connection: Connection, why: str) -> None:
        """Close a connection, once.

        Args:
            connection: the connection.
            why: the named reason.
        """
        if connection.peer.fileno() < 0:
            return
        self._troubles.info("agent disconnected", why, host=connection.host, address=connection.address, why=why)
        self.counters[f"closed_{why}"] += 1
        self._inbox_bytes -= connection.counted_bytes
        self._selector.unregister(connection.peer)
        self._book.remove(connection)
        self._backlog.pop(connection, None)
        connection.peer.close()
