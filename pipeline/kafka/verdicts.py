"""Read the verdicts topic as a member of a consumer group, and write dead letters to their topic.

Reading is "read committed", so verdicts of aborted transactions are never seen. Offsets are committed explicitly, after
the work. A killed member's partitions move to other members after ten seconds.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from kafka import OffsetAndMetadata, TopicPartition
from kafka.errors import KafkaError

from tocsin.pipeline.kafka.client import (
    CONNECT_SECONDS,
    consumer,
    kafka_errors,
    producer,
)
from tocsin.pipeline.kafka.consumer_api import Message, RefusedMessage
from tocsin.schemas.errors import EngineError
from tocsin.schemas.formats.prometheus_text import Family, Sample
from tocsin.schemas.kafka.settings import KafkaSettings
from tocsin.schemas.kafka.topics import (
    DEAD_LETTER,
    ORIGIN_HEADERS,
    RECORD_BYTES,
    VERDICTS,
    topic_name,
)
from tocsin.schemas.kafka.words import hush_kafka, sentence
from tocsin.schemas.signatures import SIGNATURE_HEADER

SESSION_SECONDS: Final = 10.0
COMMIT_SECONDS: Final = 10.0
RECONNECT_SECONDS: Final = 2.0
"""Longest wait before reconnecting to a broker; the client's default of 30 s would prolong every outage."""
ENDS_SECONDS: Final = 5.0
"""Interval at which the partitions' ends are asked for while nothing is fetched.

Each may take ``ENDS_WAIT_SECONDS``.
"""
ENDS_WAIT_SECONDS: Final = 2.0
LOOK_SECONDS: Final = 30.0
"""Interval at which new partitions, and the topic's existence, are checked."""
DETAIL_CHARACTERS: Final = 2000
DEAD_LETTER_BYTES: Final = RECORD_BYTES - 64 * 1024
"""Maximum size of a dead letter's value; larger ones are cut to ``CUT_BYTES``.

A broker counts compressed bytes when it accepts a message, but a client counts uncompressed bytes when it sends one.
"""
CUT_BYTES: Final = 64 * 1024
KEY_BYTES: Final = 32 * 1024
MOST_RECORDS: Final = 1000
_NS_PER_MS: Final = 1_000_000

_LOG = logging.getLogger("tocsin.bus")


@contextlib.contextmanager
def verdict_source(
    settings: KafkaSettings, prefix: str, group: str, topics: Sequence[str] = (VERDICTS,)
) -> Iterator[KafkaVerdicts]:
    """Join a consumer group that reads the verdicts, or other topics, and leave it at the end of the block.

    Args:
        settings: the Kafka cluster.
        prefix: prefix of the topics' names.
        group: name of the consumer group.
        topics: names of the topics to read, without prefix.

    Raises:
        EngineError: no broker can be reached, it refuses, or a topic is missing.
    """
    options = {
        "group_id": group,
        "isolation_level": "read_committed",
        "session_timeout_ms": round(SESSION_SECONDS * 1000),
        "metadata_max_age_ms": round(LOOK_SECONDS * 1000),
        "max_poll_records": MOST_RECORDS,
        "reconnect_backoff_max_ms": round(RECONNECT_SECONDS * 1000),
    }
    with consumer(settings, **options) as client:
        names = [topic_name(topic, prefix) for topic in topics]
        for topic in (*names, topic_name(DEAD_LETTER, prefix)):
            if not client.partitions_for_topic(topic):
                raise EngineError(f"the topic {topic} is missing: run 'tocsin topics apply'")
        yield KafkaVerdicts(client, names[0], names[1:])


def signature_in(headers: Iterable[tuple[str, bytes | None]]) -> bytes | None:
    """Return the value of the ``signature`` header, None = none."""
    return next((value for name, value in headers if name == SIGNATURE_HEADER), None)


class KafkaVerdicts:
    """A ``MessageSource`` for the verdicts topic, or for other topics.

    It is used by one thread, but others may read ``lag_count`` and ``partition_count``.

    Attributes:
        lag_count: uncommitted messages in the assigned partitions, as far as is known.
        partition_count: number of assigned partitions.
        expired_count: messages that the broker deleted before they were read.
    """

    def __init__(
        self,
        client: Any,
        topic: str,
        more_topics: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Subscribe to the topics.

        Args:
            client: a consumer with a group.
            topic: full name of the topic.
            more_topics: full names of other topics.
            clock: monotonic time in seconds.
        """
        self._client = client
        self._topics = (topic, *more_topics)
        self._topic = ", ".join(self._topics)
        self._clock = clock
        self._words = hush_kafka()
        self._logged = ""
        self._assigned: set[Any] = set()
        self._looked = clock()
        self._asked = float("-inf")
        self._missing_count = 0
        self._brought: dict[Any, int] = {}
        self._done: dict[Any, int] = {}
        self._open: dict[Any, int] = {}
        """Partition -> offset of the first message that was delivered but not committed."""
        self.lag_count = 0
        self.partition_count = 0
        self.expired_count = 0
        client.subscribe(list(self._topics))

    def poll(self, seconds: float) -> Sequence[Message]:
        """See ``MessageSource.poll``.

        Raises:
            EngineError: the broker refuses, or the topic is gone.
        """
        paused = self._client.paused() & self._client.assignment()
        if paused:
            self._client.resume(*paused)
        found = self._polled(seconds)
        messages = [
            Message(r.topic, r.partition, r.offset, r.key, r.value, r.timestamp * _NS_PER_MS, signature_in(r.headers))
            for records in found.values()
            for r in records
        ]
        self._brought |= {partition: records[-1].offset + 1 for partition, records in found.items()}
        self._open = {partition: records[0].offset for partition, records in found.items()} | self._open
        self._look()
        return messages

    def commit(self, messages: Sequence[Message]) -> None:
        """See ``MessageSource.commit``."""
        ends: dict[Any, int] = {}
        for message in messages:
            partition = TopicPartition(message.topic, message.partition_index)
            ends[partition] = max(ends.get(partition, 0), message.offset_count + 1)
        self._commit(ends)

    def _commit(self, ends: Mapping[Any, int]) -> None:
        """Commit offsets (partition -> next offset); a failure is only logged."""
        self._done |= ends
        self._open |= ends
        self._open = {one: first for one, first in self._open.items() if first < self._brought.get(one, 0)}
        offsets = {partition: OffsetAndMetadata(end, "", -1) for partition, end in ends.items()}
        try:
            self._client.commit(offsets, timeout_ms=round(COMMIT_SECONDS * 1000))
        except KafkaError as error:
            _LOG.warning("offsets not committed, messages may come again", extra={"error": self._sentence(error)})

    def keep_alive(self, seconds: float) -> None:
        """See ``MessageSource.keep_alive``.

        Raises:
            EngineError: the broker refuses.
        """
        self._client.pause(*self._client.assignment())
        for partition, records in self._polled(seconds).items():  # it became ours just now
            self._client.pause(partition)
            self._client.seek(partition, records[0].offset)
        if self._clock() - self._asked >= ENDS_SECONDS:
            self._asked = self._clock()
            self._ask_lag()

    def partitions(self) -> frozenset[int]:
        """See ``MessageSource.partitions``."""
        return frozenset(partition.partition for partition in self._assigned)

    def families(self, prefix: str = "tocsin_sink") -> list[Family]:
        """Return the source's metrics for ``/metrics``; their names begin with ``prefix``."""
        gauges = (
            ("lag_messages", "Messages that wait in our partitions.", self.lag_count),
            ("partitions", "Partitions that are ours now.", self.partition_count),
            ("expired_messages", "Messages that retention deleted unread.", self.expired_count),
        )
        return [Family(f"{prefix}_{name}", "gauge", text, (Sample({}, value),)) for name, text, value in gauges]

    def _polled(self, seconds: float) -> dict[Any, list[Any]]:
        """Poll the client and return partition -> records; temporary errors are logged and give {}."""
        try:
            found: dict[Any, list[Any]] = self._client.poll(timeout_ms=round(seconds * 1000))
        except KafkaError as error:
            if not error.retriable:
                raise EngineError(f"cannot read {self._topic}: {self._sentence(error)}") from error
            _LOG.warning("cannot read, will try again", extra={"error": self._sentence(error)})
            return {}
        if found:
            self._words.clear()
            self._logged = ""
        elif self._words.text and self._words.text != self._logged:
            self._logged = self._words.text
            _LOG.warning("the Kafka client says", extra={"words": self._logged})
        return found

    def _look(self) -> None:
        """Update the assigned partitions and the lag, and check now and then that the topic still exists."""
        assigned = set(self._client.assignment())
        if assigned != self._assigned:
            _LOG.info("partitions", extra={"topic": self._topic, "ours": self._names(assigned)})
            self._count_expired(assigned - self._assigned)
            self._assigned = assigned
            self._open = {one: first for one, first in self._open.items() if one in assigned}
        self.partition_count = len(assigned)
        self.lag_count = sum(map(self._lag, assigned))
        if self._clock() - self._looked >= LOOK_SECONDS:
            self._looked = self._clock()
            self._commit_markers()
            self._missing_count = 0 if self._is_there() else self._missing_count + 1
            if self._missing_count > 1:  # once may be a broker that just starts
                raise EngineError(f"the topic {self._topic} is gone: run 'tocsin topics apply', then start this again")

    def _names(self, assigned: Iterable[Any]) -> list[int] | list[str]:
        """Return the numbers of partitions, with their topics where there are several."""
        if len(self._topics) == 1:
            return sorted(one.partition for one in assigned)
        return sorted(f"{one.topic}:{one.partition}" for one in assigned)

    def _lag(self, partition: Any) -> int:
        """Return the number of uncommitted messages of a partition, 0 if unknown."""
        try:
            end, position = self._client.highwater(partition), self._client.position(partition, timeout_ms=0)
        except KafkaError:
            return 0
        if end is None or position is None:
            return 0
        return int(max(0, end - self._open.get(partition, position)))

    def _ask_lag(self) -> None:
        """Ask the broker for the lag, while nothing is fetched."""
        try:
            ends = self._client.end_offsets(list(self._client.assignment()), round(ENDS_WAIT_SECONDS * 1000))
        except KafkaError:
            return  # away: as it was known
        at = self._positions(ends)
        self.lag_count = sum(max(0, ends[one] - self._open.get(one, position)) for one, position in at.items())

    def _commit_markers(self) -> None:
        """Commit past the markers that transactions leave after their messages, once those messages are processed.

        Otherwise retention would seem to delete unread messages.
        """
        idle = [one for one, done in self._done.items() if one in self._assigned and done == self._brought.get(one)]
        over = {one: position for one, position in self._positions(idle).items() if position > self._done[one]}
        if over:
            self._commit(over)
            self._brought |= over

    def _positions(self, partitions: Iterable[Any]) -> dict[Any, int]:
        """Return partition -> next offset to read, as far as known."""
        found = {}
        with contextlib.suppress(KafkaError):
            for partition in partitions:
                position = self._client.position(partition, timeout_ms=0)
                if position is not None:
                    found[partition] = position
        return found

    def _is_there(self) -> bool:
        """Return whether the topic exists; True if the broker cannot be asked."""
        try:
            return all(self._client.partitions_for_topic(topic) for topic in self._topics)
        except KafkaError:
            return True  # the broker is away: it did not say no

    def _count_expired(self, partitions: set[Any]) -> None:
        """Count and log messages of newly assigned partitions that retention deleted before they were read."""
        try:
            first = self._client.beginning_offsets(list(partitions)) if partitions else {}
            for partition, begin in first.items():
                done = self._client.committed(partition, timeout_ms=round(COMMIT_SECONDS * 1000))
                if done is not None and done < begin:
                    self.expired_count += begin - done
                    lost = {"topic": partition.topic, "partition": partition.partition, "count": begin - done}
                    _LOG.error("verdicts were deleted by the topic's retention before they were read", extra=lost)
        except KafkaError as error:
            _LOG.warning("cannot compare offsets with the topic's begin", extra={"error": self._sentence(error)})

    def _sentence(self, error: KafkaError) -> str:
        """Return a Kafka error as one sentence."""
        return sentence(error, self._words.text)


class KafkaDeadLetters:
    """A ``DeadLetterSink`` that writes to the topic ``dead-letter``; connects at the first dead letter.

    Args:
        settings: the Kafka cluster.
        prefix: prefix of the topics' names.
    """

    def __init__(self, settings: KafkaSettings, prefix: str) -> None:
        """Prepare; nothing is connected yet."""
        self._settings = settings
        self._topic = topic_name(DEAD_LETTER, prefix)
        self._open = contextlib.ExitStack()
        self._client: Any = None

    def write(self, dead_letters: Sequence[RefusedMessage]) -> None:
        """See ``DeadLetterSink.write``."""
        try:
            with kafka_errors(f"write to {self._topic}"):
                if self._client is None:
                    self._client = self._open.enter_context(producer(self._settings))
                sent = [
                    self._client.send(self._topic, value_of(dead_letter), key_of(dead_letter), headers_of(dead_letter))
                    for dead_letter in dead_letters
                ]
                for future in sent:
                    future.get(CONNECT_SECONDS)
        except EngineError:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        self._client = None
        with contextlib.suppress(EngineError):
            self._open.close()


def value_of(dead_letter: RefusedMessage) -> bytes | None:
    """The message's bytes; b"" where it has neither key nor value, which the client would refuse."""
    message = dead_letter.message
    if message.value is not None and len(message.value) > DEAD_LETTER_BYTES:
        return message.value[:CUT_BYTES]
    return b"" if message.key is None and message.value is None else message.value


def key_of(dead_letter: RefusedMessage) -> bytes | None:
    """The message's key, or how it begins."""
    return dead_letter.message.key and dead_letter.message.key[:KEY_BYTES]


def headers_of(dead_letter: RefusedMessage) -> list[tuple[str, bytes]]:
    """Return the headers of a dead letter: its reason, and the place of the message."""
    message = dead_letter.message
    detail = dead_letter.detail[:DETAIL_CHARACTERS]
    if message.value is not None and len(message.value) > DEAD_LETTER_BYTES:
        detail = f"{len(message.value)} bytes, the first {CUT_BYTES} are here: {detail}"
    values = dead_letter.reason, message.topic, str(message.partition_index), str(message.offset_count), detail
    return [(name, value.encode("utf-8", "replace")) for name, value in zip(ORIGIN_HEADERS, values, strict=True)]
