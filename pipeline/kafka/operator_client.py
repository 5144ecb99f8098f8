"""Asks the controller over Kafka, as a person does, and reads the planned work that counts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar

from kafka import TopicPartition

from tocsin.pipeline.incidents.maintenance import KEPT_AFTER_END_NS
from tocsin.pipeline.kafka.client import CONNECT_SECONDS, consumer, kafka_errors, producer
from tocsin.pipeline.kafka.topic_sink import Check
from tocsin.pipeline.kafka.verdicts import signature_in
from tocsin.pipeline.runtime.embedded.control_socket import EngineAbsentError, EngineRefusedError
from tocsin.pipeline.runtime.embedded.note_desk import shown_work
from tocsin.schemas.credentials import Credential
from tocsin.schemas.errors import EngineError, IdentityError, SchemaError
from tocsin.schemas.kafka.settings import KafkaSettings
from tocsin.schemas.kafka.topics import NOTES_TAKEN, OPERATOR_ANSWERS, OPERATOR_NOTES, topic_name
from tocsin.schemas.operator_notes import Maintenance
from tocsin.schemas.operator_requests import (
    OperatorRequest,
    decode_taken,
    encode_request,
    new_request_id,
    request_signature,
    values_of,
)
from tocsin.schemas.signatures import SIGNATURE_HEADER
from tocsin.schemas.wire.validate import load_json

ANSWER_SECONDS: Final = 20.0
"""How long an answer is waited for; a controller that takes over needs up to ten."""
_POLL_SECONDS: Final = 0.5
_NS_PER_MS: Final = 1_000_000
LIST: Final = "maintenance_list"
Answer = dict[str, Any]
_T = TypeVar("_T")
_COMMITTED: Final = "read_committed"


class OperatorClient:
    """Asks over Kafka what the control socket is asked where the engine is embedded; each call connects anew."""

    def __init__(
        self,
        settings: KafkaSettings,
        prefix: str,
        signer: Credential | None,
        by: str,
        check: Check | None = None,
        *,
        answer_seconds: float | None = None,
    ) -> None:
        """Prepare; nothing is connected yet.

        Args:
            settings: the Kafka cluster.
            prefix: prefix of the topics' names.
            signer: credential that signs what is asked, None = unsigned, which a controller with credentials refuses.
            by: who asks, where nobody has to prove it.
            check: checks the signatures of answers and notes; None: every writer of the topics is believed.
            answer_seconds: how long an answer is waited for; None: ``ANSWER_SECONDS``.
        """
        self._settings = settings
        self._prefix = prefix
        self._signer = signer
        self._by = by
        self._check = check
        self._answer_seconds = ANSWER_SECONDS if answer_seconds is None else answer_seconds

    def call(self, cmd: str, **args: object) -> Answer:
        """Ask, wait for the answer and return it; ``maintenance_list`` is answered from the topic of notes.

        Raises:
            EngineRefusedError: the controller refuses.
            EngineAbsentError: no controller answered in time; what was asked still counts as soon as one runs.
            EngineError: a topic is missing, or the broker refuses.
        """
        if cmd == LIST:
            now_ns = time.time_ns()
            return {"works": [shown_work(one, now_ns) for one in self.works(now_ns)]}
        request = OperatorRequest(new_request_id(), cmd, values_of(args), self._by, time.time_ns())
        value = encode_request(request)
        headers = [] if self._signer is None else [(SIGNATURE_HEADER, request_signature(value, self._signer))]
        with consumer(self._settings, isolation_level=_COMMITTED) as reader, kafka_errors("ask the controller"):
            place = self._place(reader, OPERATOR_ANSWERS)
            reader.seek_to_end(place)
            reader.position(place)
            topic = self._place(reader, OPERATOR_NOTES, assign=False).topic
            with producer(self._settings, linger_ms=0) as writer:
                writer.send(topic, value, key=request.request_id.encode(), headers=headers).get(CONNECT_SECONDS)
            answer = self._awaited(reader, request.request_id)
        if answer.get("ok") is not True:
            raise EngineRefusedError(str(answer.get("error", "")), str(answer.get("reason", "engine")))
        return {name: one for name, one in answer.items() if name != "request"}

    def _awaited(self, reader: Any, request_id: str) -> Answer:
        """Return the answer to a request; raise ``EngineAbsentError`` if none comes in time."""
        until = time.monotonic() + self._answer_seconds
        while time.monotonic() < until:
            for record in _polled(reader):
                answer = self._read(record, lambda value: load_json(value, "answer"))
                if isinstance(answer, Mapping) and answer.get("request") == request_id:
                    return dict(answer)
        text = f"no controller answered within {self._answer_seconds:g} s; what you ask is kept in the topic"
        raise EngineAbsentError(f"{text} and counts from the time you asked once one runs (tocsin controller)")

    def works(self, now_ns: int) -> list[Maintenance]:
        """Return the work that is planned, goes on, or ended within the last hour, by begin.

        Raises:
            EngineError: the topic is missing, or the broker refuses.
        """
        newest: dict[str, Maintenance] = {}
        with consumer(self._settings, isolation_level=_COMMITTED) as reader, kafka_errors("read the planned work"):
            place = self._place(reader, NOTES_TAKEN)
            end = reader.end_offsets([place])[place]
            reader.seek_to_beginning(place)
            until = time.monotonic() + self._answer_seconds
            while reader.position(place) < end:
                for record in _polled(reader):
                    taken = self._read(record, decode_taken)
                    if taken is not None and isinstance(taken.note, Maintenance):
                        newest[taken.note.maintenance_id] = taken.note
                if time.monotonic() > until:
                    raise EngineError(f"{place.topic} could not be read within {self._answer_seconds:g} s")
        kept = (one for one in newest.values() if one.end_ns >= now_ns - KEPT_AFTER_END_NS)
        return sorted(kept, key=lambda one: (one.begin_ns, one.maintenance_id))

    def _place(self, reader: Any, name: str, *, assign: bool = True) -> TopicPartition:
        """Return the one partition of a topic, and let the consumer read it."""
        topic = topic_name(name, self._prefix)
        if not reader.partitions_for_topic(topic):
            raise EngineError(f"the topic {topic} is missing: run 'tocsin topics apply'")
        place = TopicPartition(topic, 0)
        if assign:
            reader.assign([place])
        return place

    def _read(self, record: Any, decode: Callable[[bytes], _T]) -> _T | None:
        """Return what a message says, None: nothing that can be believed."""
        try:
            if self._check is not None:
                self._check(record.value or b"", signature_in(record.headers), record.timestamp * _NS_PER_MS)
            return decode(record.value or b"")
        except (SchemaError, IdentityError):
            return None


def _polled(reader: Any) -> Iterator[Any]:
    """Yield the messages that come within a moment."""
    for records in reader.poll(timeout_ms=round(_POLL_SECONDS * 1000)).values():
        yield from records
