"""Messages of a topic, and what a consumer asks of the thing that brings them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Message:
    """One record of a topic.

    Attributes:
        topic: where it stood.
        partition_index: in which partition.
        offset_count: its place there.
        key: None: it has none.
        value: None: it has none.
        timestamp_ns: as its writer stamped it.
        signature: its header of that name, None: it has none.
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
        message: it.
        reason: short name of why.
        detail: which field and value, or the database's own words.
    """

    message: Message
    reason: str
    detail: str


class MessageSource(Protocol):
    """Brings the messages of a topic to one member of a group."""

    def poll(self, seconds: float) -> Sequence[Message]:
        """Wait for messages, no longer than this; those of a partition come in its order.

        What was brought once comes again only to whoever takes over the partition before it was committed.
        """
        ...

    def commit(self, messages: Sequence[Message]) -> None:
        """Say that these are done: nobody will be brought them again.

        It may fail without a word, because the partition has moved or the broker is away: then they come
        again. Whoever takes messages must be able to take them twice.
        """
        ...

    def keep_alive(self, seconds: float) -> None:
        """Wait, stay a member of the group, take nothing."""
        ...


class DeadLetterBox(Protocol):
    """Keeps what cannot be used."""

    def write(self, letters: Sequence[RefusedMessage]) -> None:
        """Keep letters; for good when this returns.

        Raises:
            EngineError: they cannot be kept now; some of them may be.
        """
        ...
