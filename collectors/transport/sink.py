"""Where the agent's records go: the interface, and a sink that keeps them.

Guarantees of every sink: ``put`` never blocks; records arrive in the order of
``put``; a record that was not acknowledged is sent again (at least once: the engine
drops exact duplicates). Lost are only records for which there was no room, or that
were damaged on disk, and they are counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from tocsin.collectors.transport.link import Offset
from tocsin.schemas.records import Record
from tocsin.schemas.wire.codec import encode


@dataclass(frozen=True, slots=True)
class Refused:
    """The engine refused a record."""

    reason: str
    ahead_ns: int


@dataclass(frozen=True, slots=True)
class Probe:
    """The engine asks for something."""

    request_id: str
    probe: str
    rank: int
    job: tuple[str, str, int] | None


@dataclass(frozen=True, slots=True)
class SinkStatus:
    """How the way to the engine is.

    Attributes:
        is_connected: the engine has said welcome.
        offset: host clock minus engine clock.
        spooled_count: records in the spool.
        dropped_count: records lost (no room, damaged on disk), since start.
        unencodable_count: records that the codec refused, since start (a fault of ours).
        bad_message_count: messages of the engine that were not understood, since start.
        acked_count: records that the engine has taken, since start.
        reconnect_count: connections made, since start.
        refused_count: records that the engine did not take (stamped in the future), since start.
    """

    is_connected: bool = False
    offset: Offset = field(default_factory=Offset)
    spooled_count: int = 0
    dropped_count: int = 0
    unencodable_count: int = 0
    bad_message_count: int = 0
    acked_count: int = 0
    reconnect_count: int = 0
    refused_count: int = 0


class Sink(Protocol):
    """Where records go."""

    def start(self) -> None:
        """Begin."""

    def put(self, record: Record) -> None:
        """Take a record; never blocks."""

    def poll(self) -> list[Refused | Probe]:
        """Return what the engine said since the last call."""

    def status(self) -> SinkStatus:
        """Return how the way to the engine is."""

    def is_alive(self) -> bool:
        """Return whether anybody still looks after what is put."""

    def clock_jumped(self) -> None:
        """The host's clock was set: compare it again."""

    def close(self, seconds: float) -> None:
        """Send what waits, for at most so long; the rest stays in the spool."""


class MemorySink:
    """Keeps records; for tests."""

    def __init__(self) -> None:
        """Hold nothing yet."""
        self.records: list[Record] = []
        self.said: list[Refused | Probe] = []
        self.state = SinkStatus()

    def start(self) -> None:
        """Begin: nothing to do."""

    def put(self, record: Record) -> None:
        """Keep it, if it can be encoded."""
        encode(record)
        self.records.append(record)

    def poll(self) -> list[Refused | Probe]:
        """Return what a test put into ``said``."""
        said, self.said = self.said, []
        return said

    def status(self) -> SinkStatus:
        """Return ``state``."""
        return self.state

    def is_alive(self) -> bool:
        """Return True."""
        return True

    def clock_jumped(self) -> None:
        """Nothing to compare."""

    def close(self, seconds: float) -> None:
        """Nothing waits."""
