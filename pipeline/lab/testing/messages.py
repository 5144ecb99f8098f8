"""Kafka fakes in memory: a topic as a list, and a sink for dead letters."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tocsin.pipeline.kafka.consumer_api import Message, RefusedMessage
from tocsin.schemas.errors import EngineError


class MemorySource:
    """A ``Source`` of one member over a list; messages not committed come again to the next source of the same list.

    Attributes:
        messages: messages of the topic; may grow.
        committed: partition -> offset of the first message not committed.
        kept_alive_seconds: how long the member waited in all.
        held: partitions that are this member's; None: all.
    """

    def __init__(
        self,
        messages: Sequence[Message],
        committed: dict[int, int] | None = None,
        when_empty: Callable[[], None] | None = None,
    ) -> None:
        """Begin after the committed messages.

        Args:
            messages: messages of the topic.
            committed: offsets committed by earlier members; updated in place.
            when_empty: called when no message is left and all are committed, e.g. to stop.
        """
        self.messages = list(messages)
        self.committed = {} if committed is None else committed
        self.kept_alive_seconds = 0.0
        self.held: frozenset[int] | None = None
        self._when_empty = when_empty
        self._next = dict(self.committed)
        self.poll_count = 3

    def poll(self, seconds: float) -> Sequence[Message]:  # noqa: ARG002  # there is nothing to wait for
        """Return the next few messages."""
        found = [m for m in self.messages if m.offset_count >= self._next.get(m.partition_index, 0)][: self.poll_count]
        for message in found:
            self._next[message.partition_index] = message.offset_count + 1
        if not found and self._next == self.committed and self._when_empty is not None:
            self._when_empty()
        return found

    def commit(self, messages: Sequence[Message]) -> None:
        """Mark messages as done."""
        for message in messages:
            self.committed[message.partition_index] = message.offset_count + 1

    def partitions(self) -> frozenset[int] | None:
        """Return ``held``."""
        return self.held

    def keep_alive(self, seconds: float) -> None:
        """Count the time without waiting."""
        self.kept_alive_seconds += seconds


class MemoryBox:
    """A ``DeadLetterSink`` that keeps dead letters in a list.

    Attributes:
        dead_letters: dead letters that were written.
        failures_left_count: number of writes that fail before one succeeds.
    """

    def __init__(self) -> None:
        """Start empty."""
        self.dead_letters: list[RefusedMessage] = []
        self.failures_left_count = 0

    def write(self, dead_letters: Sequence[RefusedMessage]) -> None:
        """Keep, or fail."""
        if self.failures_left_count > 0:
            self.failures_left_count -= 1
            raise EngineError("the broker is away")
        self.dead_letters.extend(dead_letters)
