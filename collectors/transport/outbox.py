"""State shared by the sink's thread and its sessions: waiting records, and the state of the connection."""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tocsin.collectors.clock import SteadyClock
from tocsin.collectors.transport.link import OffsetEstimator
from tocsin.collectors.transport.sign_in import (
    TCP,
    TLS,
    UNIX,
    TokenSearch,
)
from tocsin.collectors.transport.sink import Probe, Refused, SinkStatus
from tocsin.collectors.transport.spool import Spool
from tocsin.schemas.errors import ConfigError, FieldError
from tocsin.schemas.records import Record
from tocsin.schemas.tls import TlsFiles
from tocsin.schemas.wire.codec import encode

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SinkConfig:
    """Settings of a sink to an embedded engine.

    Attributes:
        engine: address, ``unix:PATH`` or ``HOST:PORT``.
        host: name of this host.
        agent_version: version that is sent to the engine.
        tokens: where to find this agent's credential.
        tls: certificate files, None for no TLS.
    """

    engine: str
    host: str
    agent_version: str = ""
    tokens: TokenSearch = field(default_factory=TokenSearch)
    tls: TlsFiles | None = None

    def check(self) -> None:
        """Check the form of the address; no name is resolved.

        Raises:
            ConfigError: the address is neither ``unix:PATH`` nor ``HOST:PORT``.
        """
        name, _, port = self.engine.rpartition(":")
        is_port = port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65536
        if not (self.engine.startswith("unix:") and self.engine[5:]) and not (name and is_port):
            raise ConfigError("engine", self.engine, "unix:PATH or HOST:PORT")

    def transport(self) -> str:
        """Return the kind of transport: ``UNIX``, ``TCP`` or ``TLS``.

        It decides how the ends can identify each other.
        """
        if self.engine.startswith("unix:"):
            return UNIX
        return TCP if self.tls is None else TLS

    def server_name(self) -> str:
        """Return the name (or address) that the engine's certificate must have."""
        return self.engine.rpartition(":")[0].strip("[]")

    def address(self) -> tuple[socket.AddressFamily, Any]:
        """Return the family and the address to connect to; a name is resolved again each time.

        Raises:
            OSError: the name cannot be resolved now.
        """
        if self.engine.startswith("unix:"):
            return socket.AF_UNIX, self.engine[5:]
        name, _, port = self.engine.rpartition(":")
        found = socket.getaddrinfo(name.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
        return found[0], found[4]


class Outbox:
    """Queue of records between the agent's thread (``put``) and the sink's thread (everything else)."""

    def __init__(self, spool: Spool, clock: SteadyClock, wake: Callable[[], None]) -> None:
        """Create an empty queue; ``wake`` is called when ``poll`` has something for the agent."""
        self.spool = spool
        self.clock = clock
        self.offsets = OffsetEstimator()
        self.refused: Counter[str] = Counter()
        self.acked_count = 0
        self.connects = 0
        self.closing_mono: float | None = None
        self.status = SinkStatus()
        self._wake = wake
        self._inbox: deque[Record] = deque()
        self._from_engine: deque[Refused | Probe] = deque()
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._unencodable = 0
        self._bad_messages = 0
        self._last_bad_text = ""

    # --- the agent's side ------------------------------------------------------------------------

    def put(self, record: Record) -> None:
        """Add a record without blocking; it is encoded in the sink's thread."""
        self._inbox.append(record)
        self.nudge()

    def poll(self) -> list[Refused | Probe]:
        """Remove and return the engine's refusals and probes."""
        message = []
        while self._from_engine:
            message.append(self._from_engine.popleft())
        return message

    def nudge(self) -> None:
        """Wake the sink's thread."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_write(self._wakeup, 1)

    # --- the sink's side -------------------------------------------------------------------------

    def fileno(self) -> int:
        """Return the descriptor that becomes readable when the sink's thread is woken."""
        return self._wakeup

    def clear_nudges(self) -> None:
        """Reset the descriptor."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wakeup)

    def wait(self, seconds: float) -> None:
        """Wait until woken, for at most ``seconds``."""
        poller = select.poll()  # unlike select(), it takes descriptors above 1,023
        poller.register(self._wakeup, select.POLLIN)
        poller.poll(1000 * max(0.0, seconds))
        self.clear_nudges()

    def is_empty(self) -> bool:
        """Return whether no new record waits."""
        return not self._inbox

    def next_record(self) -> tuple[Record, bytes] | None:
        """Remove and return the next new record and its bytes; one that the codec refuses is counted and skipped."""
        while self._inbox:
            record = self._inbox.popleft()
            try:
                return record, encode(record)
            except FieldError as error:
                self.on_unencodable(type(record).__name__, str(error))
        return None

    def next_encoded(self) -> bytes | None:
        """Remove and return the next new record's bytes; see ``next_record``."""
        found = self.next_record()
        return found[1] if found else None

    def on_unencodable(self, kind: str, text: str) -> None:
        """Count and log a record that cannot be encoded, an error of this program."""
        self._unencodable += 1
        log.error("record cannot be encoded", extra={"kind": kind, "error": text})

    def spool_all(self) -> None:
        """Move the new records to the spool."""
        while (data := self.next_encoded()) is not None:
            self.spool.append(data)

    def say(self, message: Refused | Probe) -> None:
        """Queue a refusal or probe for the agent, and wake it."""
        self.publish(connected=True)  # the agent looks at the clocks' offset when it hears
        self._from_engine.append(message)
        self._wake()

    def on_bad_message(self, text: str) -> None:
        """Count an invalid control message, which is ignored."""
        self._bad_messages += 1
        if text != self._last_bad_text:
            self._last_bad_text = text
            log.warning("engine's message not understood", extra={"error": text})

    def publish(self, *, connected: bool) -> None:
        """Update ``status``."""
        self.status = SinkStatus(
            is_connected=connected,
            offset=self.offsets.best(),
            spooled_count=len(self.spool),
            dropped_count=self.spool.dropped_count,
            unencodable_count=self._unencodable,
            bad_message_count=self._bad_messages,
            acked_count=self.acked_count,
            reconnect_count=self.connects,
            refused_count=self.refused.total(),
        )

    def mono(self) -> float:
        """Return monotonic seconds."""
        return self.clock.mono_ns() / 1e9
