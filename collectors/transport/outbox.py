"""What the sink's thread and its sessions share: the records that wait, and what is known of the engine."""

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
    """Where the engine is, and who speaks.

    Attributes:
        engine: ``unix:PATH`` or ``HOST:PORT``.
        host: this host's name.
        agent_version: told to the engine.
        tokens: where this agent's credential is.
        tls: certificates, None = no TLS.
    """

    engine: str
    host: str
    agent_version: str = ""
    tokens: TokenSearch = field(default_factory=TokenSearch)
    tls: TlsFiles | None = None

    def check(self) -> None:
        """Look at the address without resolving a name.

        Raises:
            ConfigError: neither ``unix:PATH`` nor ``HOST:PORT``.
        """
        name, _, port = self.engine.rpartition(":")
        is_port = port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65536
        if not (self.engine.startswith("unix:") and self.engine[5:]) and not (name and is_port):
            raise ConfigError("engine", self.engine, "unix:PATH or HOST:PORT")

    def transport(self) -> str:
        """Return by what the two ends may know each other without a secret."""
        if self.engine.startswith("unix:"):
            return UNIX
        return TCP if self.tls is None else TLS

    def server_name(self) -> str:
        """Return the name (or address) that the engine's certificate must be of."""
        return self.engine.rpartition(":")[0].strip("[]")

    def address(self) -> tuple[socket.AddressFamily, Any]:
        """Return the family and the address to connect to; a name is resolved anew each time.

        Raises:
            OSError: the name is not known now.
        """
        if self.engine.startswith("unix:"):
            return socket.AF_UNIX, self.engine[5:]
        name, _, port = self.engine.rpartition(":")
        found = socket.getaddrinfo(name.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
        return found[0], found[4]


class Outbox:
    """Filled by the agent's thread (``put``), emptied by the sink's (all else)."""

    def __init__(self, spool: Spool, clock: SteadyClock, wake: Callable[[], None]) -> None:
        """Hold nothing. ``wake`` is called when ``said`` has something for the agent."""
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
        self._said: deque[Refused | Probe] = deque()
        self._wakeup = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._unencodable = 0
        self._bad_messages = 0
        self._said_bad = ""

    # --- the agent's side ------------------------------------------------------------------------

    def put(self, record: Record) -> None:
        """Take a record; never blocks. Encoding is done in the sink's thread."""
        self._inbox.append(record)
        self.nudge()

    def poll(self) -> list[Refused | Probe]:
        """Return what the engine said since the last call."""
        said = []
        while self._said:
            said.append(self._said.popleft())
        return said

    def nudge(self) -> None:
        """Wake the sink's thread."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_write(self._wakeup, 1)

    # --- the sink's side -------------------------------------------------------------------------

    def fileno(self) -> int:
        """Return the descriptor that wakes the sink's thread."""
        return self._wakeup

    def clear_nudges(self) -> None:
        """Take note of them."""
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wakeup)

    def wait(self, seconds: float) -> None:
        """Wait for a nudge."""
        select.select([self._wakeup], [], [], max(0.0, seconds))
        self.clear_nudges()

    def is_empty(self) -> bool:
        """Return whether no new record waits."""
        return not self._inbox

    def next_record(self) -> tuple[Record, bytes] | None:
        """Return the next new record and its bytes; one that the codec refuses is counted and skipped."""
        while self._inbox:
            record = self._inbox.popleft()
            try:
                return record, encode(record)
            except FieldError as error:
                self.on_unencodable(type(record).__name__, str(error))
        return None

    def next_encoded(self) -> bytes | None:
        """Return the next new record's bytes, as ``next_record``."""
        found = self.next_record()
        return found[1] if found else None

    def on_unencodable(self, kind: str, text: str) -> None:
        """Count a record that cannot travel: a fault of ours."""
        self._unencodable += 1
        log.error("record cannot be encoded", extra={"kind": kind, "error": text})

    def spool_all(self) -> None:
        """Move the new records to the spool."""
        while (data := self.next_encoded()) is not None:
            self.spool.append(data)

    def say(self, said: Refused | Probe) -> None:
        """Tell the agent what the engine said."""
        self.publish(connected=True)  # the agent looks at the clocks' offset when it hears
        self._said.append(said)
        self._wake()

    def on_bad_message(self, text: str) -> None:
        """Count a control message that is not as agreed: what it was about is left undone, the rest goes on."""
        self._bad_messages += 1
        if text != self._said_bad:
            self._said_bad = text
            log.warning("engine's message not understood", extra={"error": text})

    def publish(self, *, connected: bool) -> None:
        """Renew ``status``."""
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
