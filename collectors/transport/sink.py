"""Interface of the destination of an agent's records, and a sink that keeps them in memory.

Guarantees of every sink: ``put`` never blocks. Records arrive in the order of ``put``. A record that was not
acknowledged is sent again (at least once: the engine drops exact duplicates). Only records without room, or damaged
on disk, are lost, and they are counted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from tocsin.collectors.transport.link import Offset
from tocsin.schemas.records import Record
from tocsin.schemas.wire.codec import encode


@dataclass(frozen=True, slots=True)
class Refused:
    """The engine's refusal of a record."""

    reason: str
    ahead_ns: int


@dataclass(frozen=True, slots=True)
class Probe:
    """The engine's request for data of a rank or host."""

    request_id: str
    probe: str
    rank: int
    job: tuple[str, str, int] | None


@dataclass(frozen=True, slots=True)
class SinkStatus:
    """The state of the connection to the engine.

    Attributes:
        is_connected: whether the engine accepted the sign-in.
        offset: host clock minus engine clock.
        spooled_count: records in the spool.
        dropped_count: records lost (no room, damaged on disk), since start.
        unencodable_count: records that the codec refused, since start (an error of this program).
        bad_message_count: invalid messages of the engine, since start.
        acked_count: records acknowledged by the engine, since start.
        reconnect_count: connections made, since start.
        refused_count: records that the engine refused (stamped in the future), since start.
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
    """Interface of the destination of records."""

    def start(self) -> None:
        """Start the sink's thread."""

    def put(self, record: Record) -> None:
        """Accept a record without blocking."""

    def poll(self) -> list[Refused | Probe]:
        """Return the engine's refusals and probes since the last call."""

    def status(self) -> SinkStatus:
        """Return the state of the connection to the engine."""

    def is_alive(self) -> bool:
        """Return whether records are still being sent."""

    def clock_jumped(self) -> None:
        """Compare the clocks again, because the host's clock was set."""

    def close(self, seconds: float) -> None:
        """Send waiting records for at most ``seconds``; the rest stays in the spool."""


class MemorySink:
    """Sink that keeps records in a list, for tests."""

    def __init__(self) -> None:
        """Start without records."""
        self.records: list[Record] = []
        self.said: list[Refused | Probe] = []
        self.state = SinkStatus()

    def start(self) -> None:
        """Do nothing."""

    def put(self, record: Record) -> None:
        """Keep a record, after checking that it can be encoded."""
        encode(record)
        self.records.append(record)

    def poll(self) -> list[Refused | Probe]:
        """Remove and return what a test put into ``said``."""
        said, self.said = self.said, []
        return said

    def status(self) -> SinkStatus:
        """Return ``state``, which a test may set."""
        return self.state

    def is_alive(self) -> bool:
        """Return True."""
        return True

    def clock_jumped(self) -> None:
        """Do nothing."""

    def close(self, seconds: float) -> None:
        """Do nothing."""
