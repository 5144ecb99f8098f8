"""Messages of a topic, and the interfaces of their source and of the dead letters' destination."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a topic.

    Attributes:
        topic: its topic.
        partition_index: number of its partition.
        offset_count: its offset in the partition.
        key: its key, None = none.
        value: its value, None = none.
        timestamp_ns: time set by its writer.
        signature: its ``signature`` header, None = none.
    """

    topic: str
    partition_index: int
    offset_count: int
    key: bytes | None
    value: bytes | None
    timestamp_ns: int = 0
    signature: bytes | None = None


@dataclass(frozen=True, slots=True)
class RefusedMessage:
    """A message that cannot be used.

    Attributes:
        message: the message.
        reason: short name of the reason.
        detail: the wrong field and value, or the database's error.
    """

    message: Message
    reason: str
    detail: str


class MessageSource(Protocol):
    """Delivers the messages of a topic to one member of a consumer group."""

    def poll(self, seconds: float) -> Sequence[Message]:
        """Wait for messages at most this long and return them, each partition's in order.

        A message that was returned once comes again only after another member took over its partition before the
        commit.
        """
        ...

    def commit(self, messages: Sequence[Message]) -> None:
        """Mark messages as processed, so that they are not delivered again.

        The commit may fail silently, because the partition moved or the broker is away. The messages then come again,
        so processing a message twice must be harmless.
        """
        ...

    def keep_alive(self, seconds: float) -> None:
        """Wait for this time without receiving messages, but stay a member of the group."""
        ...

    def partitions(self) -> frozenset[int] | None:
        """Return the numbers of the partitions that are this member's now; None: of all."""
        ...


class DeadLetterSink(Protocol):
    """Stores dead letters."""

    def write(self, dead_letters: Sequence[RefusedMessage]) -> None:
        """Keep dead letters; for good when this returns.

        Raises:
            EngineError: they cannot be stored now; some of them may have been.
        """
        ...
