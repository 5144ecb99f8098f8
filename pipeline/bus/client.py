"""Kafka's clients with our settings; what they raise becomes a sentence."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka.errors import KafkaError

from tocsin.schemas.errors import EngineError
from tocsin.schemas.kafka_settings import KafkaSettings
from tocsin.schemas.kafka_words import hush_kafka, sentence
from tocsin.schemas.topics import RECORD_BYTES

CONNECT_SECONDS: Final = 10.0
BATCH_BYTES: Final = 1024 * 1024
LINGER_SECONDS: Final = 0.02
_FETCH_BYTES: Final = 4 * RECORD_BYTES


@contextmanager
def spoken(what: str) -> Iterator[None]:
    """Turn what Kafka's clients raise into an error that says what to do.

    Args:
        what: what is being done, "cannot ..." is put before it.

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
    """An administrator's client.

    Raises:
        EngineError: no broker can be reached, or it refuses.
    """
    with spoken(f"ask Kafka at {', '.join(settings.servers)}"):
        client = KafkaAdminClient(**settings.client_options(), bootstrap_timeout_ms=CONNECT_SECONDS * 1000)
        try:
            yield client
        finally:
            client.close()


@contextmanager
def producer(settings: KafkaSettings, **options: Any) -> Iterator[Any]:
    """An idempotent producer; at the end what waits in it is sent.

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
    with spoken(f"write to Kafka at {', '.join(settings.servers)}"):
        client = KafkaProducer(**settings.client_options(), **chosen)
        try:
            yield client
        except BaseException:
            with suppress(KafkaError):  # the first error is the one to tell
                client.close(timeout=0)
            raise
        client.close(timeout=CONNECT_SECONDS)


@contextmanager
def consumer(settings: KafkaSettings, **options: Any) -> Iterator[Any]:
    """A consumer that takes our largest records.

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
    with spoken(f"read from Kafka at {', '.join(settings.servers)}"):
        client = KafkaConsumer(**settings.client_options(), **chosen)
        try:
            yield client
        finally:
            client.close()
