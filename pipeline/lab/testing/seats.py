"""A broker in memory with one seat: topics, a state, and transactions that happen as a whole or not at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tocsin.pipeline.kafka.consumer_api import Message
from tocsin.pipeline.runtime.flink.outputs import Output
from tocsin.schemas.errors import TakenOverError
from tocsin.schemas.signatures import SIGNATURE_HEADER


class MemorySeats:
    """What candidates for one seat share.

    Attributes:
        log: topic (without prefix) -> its messages, in one partition.
        state: the committed parts of the state.
        positions: topic -> committed offset of the next message.
        holder: the candidate that the group chose.
        shut_in: the candidate that took over last; the broker refuses all others.
        commit_count: number of transactions.
    """

    def __init__(self, inputs: Sequence[str]) -> None:
        """Start with empty topics.

        Args:
            inputs: topics that the holder reads.
        """
        self.log: dict[str, list[Message]] = {name: [] for name in inputs}
        self.inputs = tuple(inputs)
        self.state: dict[str, bytes] = {}
        self.positions: dict[str, int] = dict.fromkeys(inputs, 0)
        self.holder: MemorySeat | None = None
        self.shut_in: MemorySeat | None = None
        self.commit_count = 0

    def write(
        self, topic: str, value: bytes, key: bytes = b"", timestamp_ns: int = 0, signature: bytes | None = None
    ) -> None:
        """Append a message to a topic."""
        log = self.log.setdefault(topic, [])
        log.append(Message(f"tocsin.{topic}", 0, len(log), key, value, timestamp_ns, signature))


class MemorySeat:
    """A ``Seat`` of one candidate.

    Attributes:
        poll_count: most messages of one poll.
    """

    def __init__(self, seats: MemorySeats) -> None:
        """Become a candidate; the first one holds the seat."""
        self._seats = seats
        self._next: dict[str, int] = {}
        self.poll_count = 2
        if seats.holder is None:
            seats.holder = self

    def wait(self, seconds: float) -> bool:  # noqa: ARG002  # there is nothing to wait for
        """See ``Seat.wait``."""
        return self._seats.holder is self

    def take_over(self) -> tuple[dict[str, bytes], dict[str, int]]:
        """See ``Seat.take_over``."""
        self._seats.shut_in = self
        self._next = dict(self._seats.positions)
        return dict(self._seats.state), dict.fromkeys(self._seats.inputs, 1)

    def poll(self, seconds: float) -> Sequence[Message]:
        """See ``Seat.poll``."""
        if not self.wait(seconds):
            raise TakenOverError("the seat is another one's")
        found: list[Message] = []
        for topic in self._seats.inputs:
            new = self._seats.log[topic][self._next[topic] :][: self.poll_count]
            self._next[topic] += len(new)
            found += new
        return found

    def commit(self, outputs: Sequence[Output], changes: Mapping[str, bytes | None]) -> None:
        """See ``Seat.commit``."""
        if self._seats.shut_in is not self:
            raise TakenOverError("shut out")
        for one in outputs:
            self._seats.write(one.topic, one.value, one.key, signature=one.headers.get(SIGNATURE_HEADER))
        for name, data in changes.items():
            if data is None:
                self._seats.state.pop(name, None)
            else:
                self._seats.state[name] = data
        self._seats.positions = dict(self._next)
        self._seats.commit_count += 1

    def leave(self) -> None:
        """See ``Seat.leave``."""
