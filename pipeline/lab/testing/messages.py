"""A topic in a list, and a box for dead letters: a consumer's world without a broker."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tocsin.pipeline.kafka.consumer_api import DeadLetter, Message
from tocsin.schemas.errors import EngineError


class MemorySource:
    """A ``Source`` of one member: what was not committed comes again to the next one made of the same list.

    Attributes:
        messages: the topic; may grow.
        committed: partition -> offset of the first message that is not done.
        kept_alive_seconds: how long the member waited.
    """

    def __init__(
        self,
        messages: Sequence[Message],
        committed: dict[int, int] | None = None,
        when_empty: Callable[[], None] | None = None,
    ) -> None:
        """Begin behind what was committed.

        Args:
            messages: the topic.
            committed: of the members before; goes on being written.
            when_empty: called when there is nothing left and all of it is committed, e.g. to stop.
        """
        self.messages = list(messages)
        self.committed = {} if committed is None else committed
        self.kept_alive_seconds = 0.0
        self._when_empty = when_empty
        self._next = dict(self.committed)
        self.poll_count = 3

    def poll(self, seconds: float) -> Sequence[Message]:  # noqa: ARG002  # there is nothing to wait for
        """Bring a few at a time."""
        found = [m for m in self.messages if m.offset_count >= self._next.get(m.partition_index, 0)][: self.poll_count]
        for message in found:
            self._next[message.partition_index] = message.offset_count + 1
        if not found and self._next == self.committed and self._when_empty is not None:
            self._when_empty()
        return found

    def commit(self, messages: Sequence[Message]) -> None:
        """Remember."""
        for message in messages:
            self.committed[message.partition_index] = message.offset_count + 1

    def keep_alive(self, seconds: float) -> None:
        """Wait no time at all."""
        self.kept_alive_seconds += seconds


class MemoryBox:
    """A ``DeadLetterSink`` in a list.

    Attributes:
        letters: what was kept.
        failures_left_count: so many writes fail before one succeeds.
    """

    def __init__(self) -> None:
        """Start empty."""
        self.letters: list[DeadLetter] = []
        self.failures_left_count = 0

    def write(self, letters: Sequence[DeadLetter]) -> None:
        """Keep, or fail."""
        if self.failures_left_count > 0:
            self.failures_left_count -= 1
            raise EngineError("the broker is away")
        self.letters.extend(letters)
