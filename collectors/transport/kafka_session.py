"""One connection of the agent to Kafka, from a connected producer to its end.

A producer that failed one record for good is unusable (its sequence numbers have a gap), so every failure ends the
session. Records not acknowledged go back to the spool, and the next session sends them in order.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from kafka.errors import (
    AuthorizationError,
    InvalidRecordError,
    InvalidTimestampError,
    KafkaError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
)

from tocsin.collectors.transport.kafka_client import SILENCE_SECONDS, KafkaSinkConfig, close_producer
from tocsin.collectors.transport.outbox import Outbox
from tocsin.collectors.transport.sink import Refused
from tocsin.collectors.transport.spool import Position
from tocsin.schemas.credentials import Credential
from tocsin.schemas.errors import CredentialError, FieldError, SchemaError, TransportError
from tocsin.schemas.kafka.topics import (
    CLOCK,
    TIMESTAMP_AHEAD_SECONDS,
    headers_of,
    key_of,
    timestamp_ms,
    topic_name,
    topic_of,
)
from tocsin.schemas.kafka.words import hush_kafka, sentence
from tocsin.schemas.records import Record
from tocsin.schemas.signatures import Signer
from tocsin.schemas.wire.codec import decode

log = logging.getLogger(__name__)

CLOCK_SECONDS: Final = 30.0
CLOCK_WAIT_SECONDS: Final = 2.0
CREDENTIAL_SECONDS: Final = 30.0
WINDOW_RECORDS: Final = 512
WINDOW_BYTES: Final = 4 * 1024 * 1024
WAITING_RECORDS: Final = 4096
_TURN_SECONDS: Final = 0.5
_ABORT_SECONDS: Final = 2.0
_WARN_SECONDS: Final = 1.0
_AHEAD_NS: Final = round(TIMESTAMP_AHEAD_SECONDS * 1e9)
_NS_PER_MS: Final = 1_000_000
_NOT_STAMPED_MS: Final = 1

_FOR_GOOD: Final = (InvalidTimestampError, InvalidRecordError, MessageSizeTooLargeError, RecordListTooLargeError)
"""Errors after which the broker will not take the same record, however often it is sent."""


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """A record as a Kafka message."""

    topic: str
    key: bytes | None
    value: bytes
    headers: list[tuple[str, bytes]]
    stamp_ns: int

    @classmethod
    def of(cls, record: Record, data: bytes, prefix: str, signer: Signer | None = None) -> OutgoingMessage:
        """Build the message of a record and its bytes; signed if there is a signer."""
        if signer is not None:
            data = signer.sign(data)
        stamp_ns = timestamp_ms(record) * _NS_PER_MS
        return cls(topic_of(record, prefix), key_of(record), data, headers_of(record), stamp_ns)


class _Flight(NamedTuple):
    """A record sent and not acknowledged; ``future`` is None if nothing had to be sent."""

    future: Any
    data: bytes | None
    position: Position | None
    size_bytes: int


@dataclass(slots=True)
class Memory:
    """State that is kept from one session of a sink to the next.

    Attributes:
        refused: positions in the spool of records that no broker will take.
        clock_error: why clocks cannot be compared, "" if they can.
        is_clock_denied: whether writing to the clock topic was refused; trying again would end every session.
        credential_error: why the credential file cannot be used, "" if it can or none is needed.
    """

    refused: set[Position] = field(default_factory=set)
    clock_error: str = ""
    is_clock_denied: bool = False
    credential_error: str = ""

    def set_credential_error(self, why: str) -> None:
        """Note why records are not signed with the file's present content, and log it once."""
        if why and why != self.credential_error:
            log.warning("credential cannot be used", extra={"error": why})
        self.credential_error = why

    def set_clock_error(self, why: str) -> None:
        """Note why clocks cannot be compared, "" if they can, and log it once."""
        if self.is_clock_denied:
            return
        if why and why != self.clock_error:
            log.warning("clocks cannot be compared", extra={"error": why})
        self.clock_error = why


class KafkaSession:
    """Sends the spooled records first, then new ones, and keeps those not acknowledged."""

    def __init__(self, box: Outbox, config: KafkaSinkConfig, producer: Any, memory: Memory) -> None:
        """Prepare to send through a connected producer."""
        self._box = box
        self._config = config
        self._producer = producer
        self._memory = memory
        self._flight: deque[_Flight] = deque()
        self._flight_bytes = 0
        self._waiting: deque[OutgoingMessage] = deque()
        self._condemned: deque[Any] = deque()
        self._clock_topic = topic_name(CLOCK, config.prefix)
        self._clock_future: Any = None
        self._clock_answers: deque[tuple[int, int, int]] = deque()
        self._clock_mono = self._warned_mono = float("-inf")
        self._progress_mono = self._begun_mono = box.mono()
        self._credential: Credential | None = None
        self._signer: Signer | None = None
        self._looked_mono = float("-inf")
        self.was_welcome = False

    def run(self) -> None:
        """Send records until something fails or the agent closes.

        Raises:
            TransportError: something failed; the error is a sentence.
        """
        box = self._box
        box.spool.rewind()
        while not self._is_done():
            self._compare_clocks()
            self._look_for_credential()
            self._fill()
            box.wait(_TURN_SECONDS)
            self._settle()
            if self._sent_count() and box.mono() - self._progress_mono > SILENCE_SECONDS:
                raise TransportError(f"no acknowledgement for {SILENCE_SECONDS:.0f} s; {hush_kafka().text}")
            box.publish(connected=self.was_welcome)

    def _look_for_credential(self) -> None:
        """Read the credential file now and then, so that a rotated credential is used without a restart.

        A record that cannot be signed is sent all the same; an engine that requires signatures reports a dead letter.
        """
        tokens, box = self._config.tokens, self._box
        if tokens is None or box.mono() - self._looked_mono < CREDENTIAL_SECONDS:
            return
        self._looked_mono = box.mono()
        try:
            found, why = tokens.credential(self._config.host, box.clock.host_ns()), ""
        except CredentialError as error:
            found, why = self._credential, str(error)
        if found != self._credential:
            self._credential, self._signer = found, None if found is None else Signer(found)
        self._memory.set_credential_error(why)

    def put_back(self) -> None:
        """End the producer, and spool in order the records not acknowledged and those waiting.

        Records that came from the spool are still there, before all others.
        """
        box = self._box
        close_producer(self._producer, 0)
        until = box.mono() + _ABORT_SECONDS
        while box.mono() < until and any(f.future is not None and not f.future.is_done for f in self._flight):
            box.wait(_ABORT_SECONDS / 20)
        guilty = self._guilty()
        for entry in self._flight:
            if id(entry.future) in guilty:
                self._refuse(entry, entry.future.exception)
            elif entry.data is not None and not (entry.future is not None and entry.future.succeeded()):
                box.spool.append(entry.data)
        self._flight.clear()
        while self._waiting:
            box.spool.append(self._waiting.popleft().value)
        box.spool_all()
        box.spool.rewind()

    def _is_done(self) -> bool:
        closing = self._box.closing_mono
        if closing is None:
            return False
        idle = not (self._flight or self._waiting or len(self._box.spool)) and self._box.is_empty()
        return idle or self._box.mono() > closing

    def _sent_count(self) -> int:
        return sum(entry.future is not None for entry in self._flight)

    def _has_room(self) -> bool:
        return len(self._flight) < WINDOW_RECORDS and self._flight_bytes < WINDOW_BYTES

    # --- sending ---------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Pass records to the producer: spooled ones first, then new ones."""
        box = self._box
        while (found := box.next_record()) is not None:
            if not self._waiting and box.spool.has_unread():
                box.spool.append(found[1])  # behind a long spool it would wait in memory for as long
                continue
            try:
                self._waiting.append(OutgoingMessage.of(*found, self._config.prefix, self._signer))
            except FieldError as error:  # a tick, which no agent sends
                box.on_unencodable(type(found[0]).__name__, str(error))
        if len(self._waiting) > WAITING_RECORDS:
            raise TransportError(f"the broker is {len(self._waiting)} records behind")
        while self.was_welcome and self._has_room():
            spooled = box.spool.read()
            if spooled is not None:
                self._send_spooled(*spooled)
            elif self._waiting:
                self._send(self._waiting[0], None)
                self._waiting.popleft()
            else:
                break

    def _send_spooled(self, data: bytes, position: Position) -> None:
        """Send a spooled record, unless it was refused or cannot be decoded."""
        if position in self._memory.refused:
            self._add(_Flight(None, None, position, 0))
            return
        try:
            message = OutgoingMessage.of(decode(data), data, self._config.prefix, self._signer)
        except SchemaError as error:  # of another version of this program
            self._box.on_unencodable("spooled", str(error))
            self._add(_Flight(None, None, position, 0))
            return
        self._send(message, position)

    def _send(self, message: OutgoingMessage, position: Position | None) -> None:
        """Send a message, unless its stamp is ahead of the broker's clock."""
        ahead_ns = self._ahead_ns(message)
        if ahead_ns > 0:
            self._warn_clock_ahead(ahead_ns)
            self._add(_Flight(None, None, position, 0))
            return
        try:
            future = self._producer.send(
                message.topic,
                message.value,
                key=message.key,
                headers=message.headers,
                timestamp_ms=message.stamp_ns // _NS_PER_MS,
            )
        except KafkaError as error:
            raise TransportError(sentence(error, hush_kafka().text)) from error
        if not self._sent_count():
            self._progress_mono = self._box.mono()
        self._add(_Flight(future, message.value if position is None else None, position, len(message.value)))
        future.add_callback(lambda _: self._box.nudge())
        future.add_errback(self._on_failed, future)

    def _add(self, entry: _Flight) -> None:
        self._flight.append(entry)
        self._flight_bytes += entry.size_bytes

    # --- what became of it -----------------------------------------------------------------------

    def _settle(self) -> None:
        """Process acknowledgements in the order of sending.

        Raises:
            TransportError: a record failed.
        """
        newest: Position | None = None
        box = self._box
        failed: Exception | None = None
        while self._flight and failed is None:
            entry = self._flight[0]
            if entry.future is not None:
                if not entry.future.is_done:
                    break
                failed = entry.future.exception if entry.future.failed() else None
                if failed is not None:
                    break
                box.acked_count += 1
                self._progress_mono = box.mono()
            self._flight.popleft()
            self._flight_bytes -= entry.size_bytes
            newest = entry.position or newest
        if newest is not None:
            box.spool.commit(newest)
            self._memory.refused = {position for position in self._memory.refused if position > newest}
        if failed is not None:
            raise TransportError(sentence(failed, hush_kafka().text))

    def _on_failed(self, future: Any, error: Exception) -> None:
        """Note a failed record; called in the client's thread."""
        if isinstance(error, _FOR_GOOD):
            self._condemned.append(future)
        self._box.nudge()

    def _guilty(self) -> set[int]:
        """Return the ids of the futures of records that the broker will never take.

        The first such failure kills the producer, which then fails all waiting records with the same error. So only the
        first one and those of its batch are refused; the others are sent again.
        """
        if not self._condemned:
            return set()
        batch = getattr(self._condemned[0], "_produce_future", None)
        return {
            id(future)
            for future in self._condemned
            if future is self._condemned[0] or (batch is not None and getattr(future, "_produce_future", None) is batch)
        }

    def _refuse(self, entry: _Flight, error: Exception) -> None:
        """Count a record that the broker will not take, and do not send it again."""
        is_time = isinstance(error, InvalidTimestampError | InvalidRecordError)
        reason = "clock_ahead" if is_time else "too_large"
        self._box.refused[reason] += 1
        log.warning("record refused", extra={"reason": reason, "error": str(error)})
        if entry.position is not None:
            self._memory.refused.add(entry.position)
        if is_time:
            self._box.say(Refused(reason, 0))

    # --- clocks ----------------------------------------------------------------------------------

    def _ahead_ns(self, message: OutgoingMessage) -> int:
        """Return how far a message is beyond the times that the broker accepts, 0 if not or if its clock is unknown."""
        offset = self._box.offsets.best()
        if not offset.is_known:
            return 0
        broker_ns = self._box.clock.host_ns() - offset.offset_ns
        return max(0, message.stamp_ns - broker_ns - _AHEAD_NS - offset.error_ns)

    def _warn_clock_ahead(self, ahead_ns: int) -> None:
        """Count a record that would be refused; report it to the agent once a second."""
        self._box.refused["clock_ahead"] += 1
        if self._box.mono() - self._warned_mono > _WARN_SECONDS:
            self._warned_mono = self._box.mono()
            log.warning("record refused", extra={"reason": "clock_ahead", "ahead_seconds": ahead_ns / 1e9})
            self._box.say(Refused("clock_ahead", ahead_ns))

    def _compare_clocks(self) -> None:
        """Compare clocks now and then, by a record to a topic that the broker stamps itself."""
        box = self._box
        while self._clock_answers:
            box.offsets.add(*self._clock_answers.popleft())
            self.was_welcome = True
        if not self._memory.clock_error:
            self._look_at_clock()
        is_late = box.mono() - self._begun_mono > CLOCK_WAIT_SECONDS
        self.was_welcome = self.was_welcome or bool(self._memory.clock_error) or is_late

    def _look_at_clock(self) -> None:
        """Process a finished clock record, and send the next one when due."""
        future = self._clock_future
        if future is not None and future.is_done:
            self._clock_future = None
            if future.failed():
                text = sentence(future.exception, hush_kafka().text)
                if isinstance(future.exception, AuthorizationError):
                    self._memory.set_clock_error(text)
                    self._memory.is_clock_denied = True
                raise TransportError(text)  # the producer died of it
        if self._clock_future is None and self._box.mono() - self._clock_mono > CLOCK_SECONDS:
            self._clock_mono = self._box.mono()
            self._ask_clock()

    def _ask_clock(self) -> None:
        sent_ns, key = self._box.clock.host_ns(), self._config.host.encode()
        try:
            self._clock_future = self._producer.send(self._clock_topic, b"", key=key, timestamp_ms=_NOT_STAMPED_MS)
        except KafkaError as error:
            raise TransportError(sentence(error, hush_kafka().text)) from error
        self._clock_future.add_callback(self._on_clock, sent_ns)

    def _on_clock(self, sent_ns: int, answer: Any) -> None:
        """Note the broker's time; called in the client's thread."""
        if answer.timestamp == _NOT_STAMPED_MS:
            self._memory.set_clock_error(f"{self._clock_topic} is not stamped by the broker: run 'tocsin topics apply'")
        else:
            self._clock_answers.append((sent_ns, self._box.clock.host_ns(), answer.timestamp * _NS_PER_MS))
        self._box.nudge()
