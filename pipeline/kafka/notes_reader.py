"""Follows the notes that count, and which fleet incident stands for which verdict, in a thread of its own.

It is in no consumer group: each process reads all.
"""

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
from tocsin.schemas.covers import Cover, decode_cover
from tocsin.schemas.errors import EngineError, IdentityError, SchemaError
from tocsin.schemas.kafka.settings import KafkaSettings
from tocsin.schemas.kafka.topics import COVERED, NOTES_TAKEN, topic_name
from tocsin.schemas.operator_requests import decode_taken
from tocsin.schemas.verdicts import Verdict

_LOG = logging.getLogger("tocsin.notes")
_POLL_MS: Final = 500
_NS_PER_MS: Final = 1_000_000
_JOIN_SECONDS: Final = 10.0
_MAX_COVERED: Final = 100_000


class NotesReader:
    """Gives each note to planned work, and keeps the fleet's covers, from the beginning of both topics on.

    Attributes:
        work: the planned work.
        covered: cluster and verdict id -> id of the fleet incident that stands for the verdict.
        is_read: set once what the topics held at the start has been read.
    """

    def __init__(self, settings: KafkaSettings, prefix: str, check: Check | None = None) -> None:
        """Prepare; ``start`` reads.

        Args:
            settings: the Kafka cluster.
            prefix: prefix of the topics' names.
            check: checks the signatures of notes; None: every writer of the topic is believed.
        """
        self._settings = settings
        self._places = [TopicPartition(topic_name(one, prefix), 0) for one in (NOTES_TAKEN, COVERED)]
        self._check = check
        self.work = PlannedWork()
        self.covered: dict[tuple[str, str], str] = {}
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
        """Read the topics from their beginnings; raise ``EngineError`` where the broker fails."""
        with consumer(self._settings, isolation_level="read_committed") as reader, kafka_errors("read people's notes"):
            reader.assign(self._places)
            ends = reader.end_offsets(self._places)
            reader.seek_to_beginning(*self._places)
            while not self._stop.is_set():
                if all(reader.position(place) >= end for place, end in ends.items()):
                    self.is_read.set()
                for records in reader.poll(timeout_ms=_POLL_MS).values():
                    for record in records:
                        self._take(record)

    def _take(self, record: Any) -> None:
        """Take one message; one that cannot be believed is left out, and a dead letter of the sink."""
        try:
            if self._check is not None:
                self._check(record.value or b"", signature_in(record.headers), record.timestamp * _NS_PER_MS)
            if record.topic == self._places[1].topic:
                self._take_cover(decode_cover(record.value or b""))
            else:
                self.work.take(decode_taken(record.value or b""), time.time_ns())
        except (SchemaError, IdentityError):
            return

    def _take_cover(self, cover: Cover) -> None:
        """Note which fleet incident stands for a verdict; the oldest are forgotten beyond ``_MAX_COVERED``."""
        self.covered.pop((cover.cluster, cover.verdict_id), None)
        if cover.incident_id:
            self.covered[cover.cluster, cover.verdict_id] = cover.incident_id
        while len(self.covered) > _MAX_COVERED:
            del self.covered[next(iter(self.covered))]

    def silence(self, verdict: Verdict) -> str:
        """Return the named reason for which nobody is told of a verdict now, "" for none."""
        is_covered = (verdict.job.cluster, verdict.verdict_id) in self.covered
        return self.work.silence(verdict, time.time_ns()) or ("covered_by_fleet" if is_covered else "")
