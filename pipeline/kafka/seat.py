"""The seat of the active process in Kafka: one partition of a consumer group, and one transactional id.

The group decides who works. The transactional id makes sure of it: whoever takes over shuts out the former holder,
whose open transaction is aborted and whose later ones are refused by the broker. So a process that was paused and
knows nothing of its successor writes nothing.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kafka import OffsetAndMetadata, TopicPartition
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from kafka.errors import InvalidProducerEpochError, InvalidTxnStateError, KafkaError, ProducerFencedError

from tocsin.pipeline.kafka.client import consumer, kafka_errors, producer
from tocsin.pipeline.kafka.consumer_api import Message
from tocsin.pipeline.kafka.state_parts import POSITIONS, StateParts, pack_positions, unpack_positions
from tocsin.pipeline.kafka.verdicts import RECONNECT_SECONDS, signature_in
from tocsin.pipeline.runtime.flink.outputs import Output
from tocsin.schemas.errors import EngineError, TakenOverError
from tocsin.schemas.kafka.settings import KafkaSettings
from tocsin.schemas.kafka.topics import topic_name
from tocsin.schemas.kafka.words import sentence

SESSION_SECONDS: Final = 10.0
"""Time after which a killed holder's seat is free."""
HANG_SECONDS: Final = 60.0
"""Time after which the seat of a holder that does not come back from its work is free."""
TRANSACTION_SECONDS: Final = 30.0
"""Time after which the broker aborts a transaction that nobody ends."""
LOOK_SECONDS: Final = 30.0
"""Interval at which new partitions are looked for."""
_READ_SECONDS: Final = 120.0
_MEMBER_SECONDS: Final = 0.05
"""Shortest wait as a member: with 0 kafka-python 3.0 joins a group again and again and never gets in."""
_POLL_SECONDS: Final = 0.5
_MOST_RECORDS: Final = 2000
_FETCH_BYTES: Final = 2 * 1024 * 1024
_NS_PER_MS: Final = 1_000_000
_FENCED: Final = (ProducerFencedError, InvalidProducerEpochError, InvalidTxnStateError)
_LOG = logging.getLogger("tocsin.active")


@dataclass(frozen=True, slots=True)
class SeatConfig:
    """Settings of a seat.

    Attributes:
        prefix: prefix of the topics' names; part of the transactional id, too.
        state: topic (without prefix) of the state, with one partition.
        name: word of the process; group and transactional id are ``PREFIX.NAME``.
        inputs: topic (without prefix) -> how many seconds back the very first start begins, None = at the beginning.
    """

    prefix: str
    state: str
    name: str
    inputs: Mapping[str, float | None]


class KafkaSeat:
    """A ``Seat`` of one process; ``kafka_seat`` makes it."""

    def __init__(
        self,
        settings: KafkaSettings,
        config: SeatConfig,
        member: Any,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        """Become a candidate.

        Args:
            settings: the Kafka cluster.
            config: settings of the seat.
            member: a consumer with the group.
            now_ns: Unix time in nanoseconds.
        """
        self._settings = settings
        self._config = config
        self._member = member
        self._now_ns = now_ns
        self._id = f"{config.prefix}.{config.name}"
        self._place = TopicPartition(topic_name(config.state, config.prefix), 0)
        self._open = contextlib.ExitStack()
        self._reader: Any = None
        self._writer: Any = None
        self._parts = StateParts()
        self._counts: dict[str, int] = {}
        self._looked_seconds = 0.0
        member.subscribe([self._place.topic])

    def wait(self, seconds: float) -> bool:
        """See ``Seat.wait``."""
        try:
            self._member.pause(*self._member.assignment())
            found = self._member.poll(timeout_ms=round(seconds * 1000))
            for place, records in found.items():  # it became ours just now; the state is read in another way
                self._member.pause(place)
                self._member.seek(place, records[0].offset)
        except KafkaError as error:
            if not error.retriable:
                raise EngineError(f"cannot be a member of the group {self._id}: {sentence(error, '')}") from error
        return self._place in self._member.assignment()

    def take_over(self) -> tuple[dict[str, bytes], dict[str, int]]:
        """See ``Seat.take_over``."""
        options = {
            "transactional_id": self._id,
            "transaction_timeout_ms": round(TRANSACTION_SECONDS * 1000),
            "delivery_timeout_ms": round(TRANSACTION_SECONDS * 1000),
            "request_timeout_ms": round(SESSION_SECONDS * 1000),
            "linger_ms": 0,
            "reconnect_backoff_max_ms": round(RECONNECT_SECONDS * 1000),
        }
        reading = {
            "isolation_level": "read_committed",
            "max_poll_records": _MOST_RECORDS,
            "max_partition_fetch_bytes": _FETCH_BYTES,  # no partition may be read far ahead of the others
            "auto_offset_reset": "none",
            "reconnect_backoff_max_ms": round(RECONNECT_SECONDS * 1000),
        }
        self._prove_membership()
        with kafka_errors(f"take over as {self._id}"):
            self._writer = self._open.enter_context(producer(self._settings, **options))
            self._writer.init_transactions()  # from here on, the former holder writes nothing
            self._reader = self._open.enter_context(consumer(self._settings, **reading))
            state = self._state()
            positions = unpack_positions(state.pop(POSITIONS)) if POSITIONS in state else {}
            self._counts = self._partition_counts()
            self._go_to(positions)
        self._looked_seconds = time.monotonic()
        return state, dict(self._counts)

    def _prove_membership(self) -> None:
        """Let the group's coordinator confirm that this process has the seat.

        A process that was paused for longer than its session still believes so, and must not shut out its successor.

        Raises:
            TakenOverError: the coordinator does not confirm it.
        """
        try:
            proof = {self._place: OffsetAndMetadata(0, "", -1)}
            self._member.commit(proof, timeout_ms=round(SESSION_SECONDS * 1000))
        except KafkaError as error:
            text = f"the group {self._id} does not confirm the seat: {sentence(error, '')}"
            raise (EngineError(text) if error.retriable else TakenOverError(text)) from error

    def _state(self) -> dict[str, bytes]:
        """Return all parts of the state, the places among them."""
        self._parts = StateParts()
        self._reader.assign([self._place])
        end = self._reader.end_offsets([self._place])[self._place]
        self._reader.seek_to_beginning(self._place)
        until = time.monotonic() + _READ_SECONDS
        while self._reader.position(self._place) < end:
            for records in self._reader.poll(timeout_ms=round(_POLL_SECONDS * 1000)).values():
                for record in records:
                    self._parts.take(record.key, record.value)
            if not self.wait(_MEMBER_SECONDS):
                raise TakenOverError(f"the group {self._id} gave the seat to another process")
            if time.monotonic() > until:
                raise EngineError(f"the topic {self._place.topic} could not be read in {_READ_SECONDS:g} s")
        return self._parts.parts()

    def _partition_counts(self) -> dict[str, int]:
        """Return topic (without prefix) -> number of partitions of what is read.

        Raises:
            EngineError: a topic is missing.
        """
        counts = {}
        for name in self._config.inputs:
            topic = topic_name(name, self._config.prefix)
            numbers = self._reader.partitions_for_topic(topic)
            if not numbers:
                raise EngineError(f"the topic {topic} is missing: run 'tocsin topics apply'")
            counts[name] = len(numbers)
        return counts

    def _go_to(self, positions: Mapping[tuple[str, int], int]) -> None:
        """Read from these places on; a partition that has none begins where the very first start does."""
        places = {(name, i): self._at(name, i) for name, count in self._counts.items() for i in range(count)}
        begins = self._reader.beginning_offsets(list(places.values()))
        ends = self._reader.end_offsets(list(places.values()))
        is_first = not positions
        self._reader.assign(list(places.values()))
        for (name, index), place in places.items():
            offset = positions.get((name, index))
            back_seconds = self._config.inputs[name]
            if offset is None and is_first and back_seconds is not None:
                since_ms = (self._now_ns() - round(back_seconds * 1e9)) // _NS_PER_MS
                found = self._reader.offsets_for_times({place: since_ms})[place]
                offset = ends[place] if found is None else found.offset
            offset = begins[place] if offset is None else offset
            if not begins[place] <= offset <= ends[place]:
                lost = {"topic": place.topic, "partition": place.partition, "wanted": offset, "first": begins[place]}
                _LOG.error("messages were deleted before they were read", extra=lost)
            self._reader.seek(place, min(max(offset, begins[place]), ends[place]))

    def _at(self, name: str, index: int) -> TopicPartition:
        """Return a partition of an input."""
        return TopicPartition(topic_name(name, self._config.prefix), index)

    def poll(self, seconds: float) -> Sequence[Message]:
        """See ``Seat.poll``."""
        if not self.wait(_MEMBER_SECONDS):
            raise TakenOverError(f"the group {self._id} gave the seat to another process")
        try:
            found = self._reader.poll(timeout_ms=round(seconds * 1000))
        except KafkaError as error:
            if not error.retriable:
                raise EngineError(f"cannot read as {self._id}: {sentence(error, '')}") from error
            return ()
        self._look()
        return [
            Message(r.topic, r.partition, r.offset, r.key, r.value, r.timestamp * _NS_PER_MS, signature_in(r.headers))
            for records in found.values()
            for r in records
        ]

    def _look(self) -> None:
        """Raise an error where a topic has more partitions than at the start, so that all are read after the next."""
        if time.monotonic() - self._looked_seconds < LOOK_SECONDS:
            return
        self._looked_seconds = time.monotonic()
        for name, count in self._counts.items():
            found = self._reader.partitions_for_topic(topic_name(name, self._config.prefix))
            if found and len(found) > count:
                raise EngineError(f"the topic {name} has {len(found)} partitions, {count} at the start: begins again")

    def commit(self, outputs: Sequence[Output], changes: Mapping[str, bytes | None]) -> None:
        """See ``Seat.commit``."""
        places = {(name, i): self._at(name, i) for name, count in self._counts.items() for i in range(count)}
        try:
            positions = {key: self._reader.position(place) for key, place in places.items()}
            self._writer.begin_transaction()
            for one in outputs:
                full, headers = topic_name(one.topic, self._config.prefix), list(one.headers.items())
                self._writer.send(full, one.value, key=one.key, headers=headers, timestamp_ms=one.timestamp_ms)
            for state_key, state_value in self._parts.records({**changes, POSITIONS: pack_positions(positions)}):
                self._writer.send(self._place.topic, state_value, key=state_key)
            self._writer.commit_transaction()
        except KafkaError as error:
            if isinstance(error, _FENCED) or any(isinstance(one, _FENCED) for one in error.args):
                raise TakenOverError(f"the broker shut this process out as {self._id}") from error
            raise EngineError(f"cannot write as {self._id}: {sentence(error, '')}") from error

    def leave(self) -> None:
        """See ``Seat.leave``."""
        self._reader = self._writer = None
        opened, self._open = self._open, contextlib.ExitStack()
        with contextlib.suppress(EngineError):
            opened.close()


@contextlib.contextmanager
def kafka_seat(settings: KafkaSettings, config: SeatConfig) -> Iterator[KafkaSeat]:
    """Be a candidate for a seat during the block.

    Args:
        settings: the Kafka cluster.
        config: settings of the seat.

    Raises:
        EngineError: no broker can be reached, it refuses, or a topic is missing.
    """
    options = {
        "group_id": f"{config.prefix}.{config.name}",
        "session_timeout_ms": round(SESSION_SECONDS * 1000),
        "max_poll_interval_ms": round(HANG_SECONDS * 1000),
        "partition_assignment_strategy": [StickyPartitionAssignor],
        "isolation_level": "read_committed",
        "max_poll_records": 1,
        "reconnect_backoff_max_ms": round(RECONNECT_SECONDS * 1000),
    }
    with consumer(settings, **options) as member:
        for name in (config.state, *config.inputs):
            topic = topic_name(name, config.prefix)
            if not member.partitions_for_topic(topic):
                raise EngineError(f"the topic {topic} is missing: run 'tocsin topics apply'")
        seat = KafkaSeat(settings, config, member)
        try:
            yield seat
        finally:
            seat.leave()
