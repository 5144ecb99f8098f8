"""Kafka clients with this project's settings; their errors become one readable sentence."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError, KafkaTimeoutError

from tocsin.schemas.errors import EngineError
from tocsin.schemas.kafka.settings import KafkaSettings
from tocsin.schemas.kafka.topics import (
    RECORD_BYTES,
    TICKED,
    headers_of,
    key_of,
    tick_key,
    timestamp_ms,
    topic_name,
)
from tocsin.schemas.kafka.words import hush_kafka, sentence
from tocsin.schemas.records import Record, Tick

CONNECT_SECONDS: Final = 10.0
WINDOW_RECORDS: Final = 20_000
WINDOW_BYTES: Final = 64 * 1024 * 1024
BATCH_BYTES: Final = 1024 * 1024
LINGER_SECONDS: Final = 0.02
_FETCH_BYTES: Final = 4 * RECORD_BYTES


@contextmanager
def kafka_errors(what: str) -> Iterator[None]:
    """Turn errors of Kafka's clients in the block into a readable error.

    Args:
        what: what the block does, to complete the sentence "cannot ...".

    Raises:
        EngineError: in place of the client's error.
    """
    words = hush_kafka()
    words.clear()
    try:
        yield
    except KafkaError as error:
        raise EngineError(f"cannot {what}: {sentence(error, words.text)}") from error


@contextmanager
def admin(settings: KafkaSettings) -> Iterator[Any]:
    """Open an administration client for the block.

    Raises:
        EngineError: no broker can be reached, or it refuses.
    """
    with kafka_errors(f"ask Kafka at {', '.join(settings.servers)}"):
        client = KafkaAdminClient(**settings.client_options(), bootstrap_timeout_ms=CONNECT_SECONDS * 1000)
        try:
            yield client
        finally:
            client.close()


@contextmanager
def producer(settings: KafkaSettings, **options: Any) -> Iterator[Any]:
    """Open an idempotent producer for the block; its remaining records are sent at the end.

    Raises:
        EngineError: no broker can be reached, or it refuses.
    """
    chosen = {
        "enable_idempotence": True,
        "acks": "all",
        "compression_type": "zstd",
        "linger_ms": round(LINGER_SECONDS * 1000),
        "batch_size": BATCH_BYTES,
        "max_request_size": RECORD_BYTES,
        "max_block_ms": CONNECT_SECONDS * 1000,
        "bootstrap_timeout_ms": CONNECT_SECONDS * 1000,
        "allow_auto_create_topics": False,
        "metrics_enabled": False,
        **options,
    }
    with kafka_errors(f"write to Kafka at {', '.join(settings.servers)}"):
        client = KafkaProducer(**settings.client_options(), **chosen)
        try:
            yield client
            client.flush(timeout=CONNECT_SECONDS)
        finally:
            _close(client)


def _close(client: Any) -> None:
    """Close a producer, even if records are still waiting."""
    try:
        client.close(timeout=0)
    except KafkaError:
        # kafka-python 3.0: with records waiting, close() raises before it ends its thread
        client._sender.force_close()  # noqa: SLF001
        client._closed = True  # noqa: SLF001  # else its __del__ does it again


class Writer:
    """Sends records through a producer with a bound on unacknowledged ones, and raises the first failure.

    The client itself buffers without such a bound, and reports failures only on request.
    """

    def __init__(self, client: Any, window_count: int = WINDOW_RECORDS, window_bytes: int = WINDOW_BYTES) -> None:
        """Use a producer, with these bounds on unacknowledged records and bytes."""
        self._client = client
        self._window = (window_count, window_bytes)
        self._changed = threading.Condition()
        self._count = self._bytes = 0
        self._error: Exception | None = None

    def send(self, topic: str, record: Record, data: bytes, partition: int | None = None) -> None:
        """Send a record; waits while too many bytes or records are unacknowledged.

        Raises:
            KafkaError: this or an earlier record could not be written.
        """
        self._wait(*self._window)
        with self._changed:
            self._count += 1
            self._bytes += len(data)
        future = self._client.send(
            topic,
            data,
            key=tick_key(topic) if isinstance(record, Tick) else key_of(record),
            headers=headers_of(record),
            partition=partition,
            timestamp_ms=timestamp_ms(record),
        )
        future.add_callback(self._on_done, len(data))
        future.add_errback(self._on_failed, len(data))

    def finish(self) -> None:
        """Wait until all records are acknowledged.

        Raises:
            KafkaError: a record could not be written.
        """
        self._client.flush()
        self._wait(1, 1)

    def check(self) -> None:
        """Raise the first failure so far, if any.

        Raises:
            KafkaError: a record could not be written.
        """
        if self._error is not None:
            raise self._error

    def _wait(self, count: int, size_bytes: int) -> None:
        """Wait until fewer records and bytes than this are unacknowledged, then raise the first failure, if any."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._error is not None or (self._count < count and self._bytes < size_bytes) or not self._count
            )
        self.check()

    def _on_done(self, size_bytes: int, _: object) -> None:
        """Count an acknowledged record; called in the client's thread."""
        with self._changed:
            self._count -= 1
            self._bytes -= size_bytes
            self._changed.notify_all()

    def _on_failed(self, size_bytes: int, error: Exception) -> None:
        """Keep the first failure; called in the client's thread."""
        with self._changed:
            self._error = self._error or error
        self._on_done(size_bytes, None)


def input_partitions(client: Any, prefix: str) -> list[tuple[str, int]]:
    """Return the partitions that receive ticks, as (topic, number): those of all input topics and of the models' topic.

    Raises:
        EngineError: a topic is missing.
        KafkaError: the broker cannot be asked.
    """
    found = []
    for name in TICKED:
        topic = topic_name(name, prefix)
        try:
            numbers = client.partitions_for(topic)
        except KafkaTimeoutError as error:
            raise EngineError(f"topic {topic} is not found: run 'tocsin topics apply'") from error
        found += [(topic, number) for number in sorted(numbers)]
    return found


@contextmanager
def consumer(settings: KafkaSettings, **options: Any) -> Iterator[Any]:
    """Open a consumer for the block, with limits that fit the largest records.

    Raises:
        EngineError: no broker can be reached, or it refuses.
    """
    chosen = {
        "enable_auto_commit": False,
        "auto_offset_reset": "earliest",
        "bootstrap_timeout_ms": CONNECT_SECONDS * 1000,
        "allow_auto_create_topics": False,
        "max_partition_fetch_bytes": RECORD_BYTES,
        "fetch_max_bytes": _FETCH_BYTES,
        **options,
    }
    with kafka_errors(f"read from Kafka at {', '.join(settings.servers)}"):
        client = KafkaConsumer(**settings.client_options(), **chosen)
        try:
            yield client
        finally:
            client.close()
