"""Follows the topic of notes that count, in a thread of its own and in no consumer group: each process reads all."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any, Final

from kafka import TopicPartition

from tocsin.pipeline.alerts.planned_work import PlannedWork
from tocsin.pipeline.kafka.client import consumer, kafka_errors
from tocsin.pipeline.kafka.topic_sink import Check
from tocsin.pipeline.kafka.verdicts import signature_in
from tocsin.pipeline.stores.backoff import Backoff, BackoffConfig
from tocsin.schemas.errors import EngineError, IdentityError, SchemaError
from tocsin.schemas.kafka.settings import KafkaSettings
from tocsin.schemas.kafka.topics import NOTES_TAKEN, topic_name
from tocsin.schemas.operator_requests import decode_taken

_LOG = logging.getLogger("tocsin.notes")
_POLL_MS: Final = 500
_NS_PER_MS: Final = 1_000_000
_JOIN_SECONDS: Final = 10.0


class NotesReader:
    """Gives each note to planned work, from the beginning of the topic on.

    Attributes:
        work: the planned work.
        is_read: set once what the topic held at the start has been read.
    """

    def __init__(self, settings: KafkaSettings, prefix: str, check: Check | None = None) -> None:
        """Prepare; ``start`` reads.

        Args:
            settings: the Kafka cluster.
            prefix: prefix of the topics' names.
            check: checks the signatures of notes; None: every writer of the topic is believed.
        """
        self._settings = settings
        self._place = TopicPartition(topic_name(NOTES_TAKEN, prefix), 0)
        self._check = check
        self.work = PlannedWork()
        self.is_read = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="notes", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stop the thread."""
        self._stop.set()
        self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        """Read until stopped; begin again after an error of the broker."""
        backoff = Backoff(_LOG, BackoffConfig(longest_seconds=5.0))
        while not self._stop.is_set():
            try:
                self._follow()
            except EngineError as error:
                self._stop.wait(backoff.failed(error))

    def _follow(self) -> None:
        """Read the topic from its beginning; raise ``EngineError`` where the broker fails."""
        with consumer(self._settings, isolation_level="read_committed") as reader, kafka_errors("read people's notes"):
            reader.assign([self._place])
            end = reader.end_offsets([self._place])[self._place]
            reader.seek_to_beginning(self._place)
            while not self._stop.is_set():
                if reader.position(self._place) >= end:
                    self.is_read.set()
                for records in reader.poll(timeout_ms=_POLL_MS).values():
                    for record in records:
                        self._take(record)

    def _take(self, record: Any) -> None:
        """Take one message; one that cannot be believed is left out, and a dead letter of the sink."""
        try:
            if self._check is not None:
                self._check(record.value or b"", signature_in(record.headers), record.timestamp * _NS_PER_MS)
            self.work.take(decode_taken(record.value or b""), time.time_ns())
        except (SchemaError, IdentityError):
            return
