"""The agent's Kafka client: its settings, and connecting in the background."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from kafka import KafkaProducer
from kafka.errors import KafkaError, KafkaTimeoutError

from tocsin.collectors.transport.sign_in import TokenSearch
from tocsin.schemas.errors import ConfigError
from tocsin.schemas.kafka.settings import KafkaSettings
from tocsin.schemas.kafka.topics import (
    CLOCK,
    DEFAULT_PREFIX,
    INPUTS,
    RECORD_BYTES,
    topic_name,
)
from tocsin.schemas.kafka.words import hush_kafka, sentence

COMPRESSIONS: Final = ("zstd", "lz4", "none")
CONNECT_SECONDS: Final = 5.0
SILENCE_SECONDS: Final = 10.0
"""Longest absence of due acknowledgements before the session ends and records go to the spool."""


@dataclass(frozen=True, slots=True)
class KafkaSinkConfig:
    """Settings of a Kafka sink.

    Attributes:
        settings: connection settings of the cluster.
        host: name of this host.
        prefix: first part of the topic names.
        compression: one of ``COMPRESSIONS``.
        split_above_size: frames of jobs with more ranks are split by metric group; 0: never.
        tokens: where to find the credential that signs every record; None: records are not signed.
    """

    settings: KafkaSettings
    host: str
    prefix: str = DEFAULT_PREFIX
    compression: str = "zstd"
    split_above_size: int = 0
    tokens: TokenSearch | None = None

    def check(self) -> None:
        """Check the settings as far as possible without a broker.

        Raises:
            ConfigError: a setting or one of its files cannot be used.
        """
        if self.compression not in COMPRESSIONS:
            raise ConfigError("kafka-compression", self.compression, f"one of {' '.join(COMPRESSIONS)}")
        if self.split_above_size < 0:
            raise ConfigError("split-frames-above", self.split_above_size, "0 (never) or a number of ranks")
        self.settings.client_options()

    def make_producer(self) -> Any:
        """Return a connected producer.

        Raises:
            KafkaError: no broker can be reached, or it refuses the connection.
            ConfigError: a password or certificate file can no longer be read.
        """
        return KafkaProducer(
            **self.settings.client_options(),
            client_id=f"tocsin-agent-{self.host}",
            enable_idempotence=True,
            acks="all",
            compression_type=None if self.compression == "none" else self.compression,
            linger_ms=20,
            batch_size=512 * 1024,
            max_request_size=RECORD_BYTES,
            request_timeout_ms=round(SILENCE_SECONDS * 1000),
            delivery_timeout_ms=round(SILENCE_SECONDS * 2000),
            max_block_ms=round(CONNECT_SECONDS * 1000),
            bootstrap_timeout_ms=round(CONNECT_SECONDS * 1000),
            reconnect_backoff_max_ms=1000,
            allow_auto_create_topics=False,
            metrics_enabled=False,
        )


class Connector:
    """Connects in a thread of its own, because name look-up, TLS or a dead network take time while records arrive."""

    def __init__(self, config: KafkaSinkConfig, wake: Callable[[], None]) -> None:
        """Start connecting; ``wake`` is called when there is a result."""
        self._config = config
        self._wake = wake
        self._lock = threading.Lock()
        self._is_given_up = False
        self.producer: Any = None
        self.error = ""
        self.clock_error = ""
        """Reason for which clocks cannot be compared, "" if they can."""
        self._thread = threading.Thread(target=self._run, name="kafka-connect", daemon=True)
        self._thread.start()

    def is_done(self) -> bool:
        """Return whether there is a producer or an error."""
        return self.producer is not None or bool(self.error)

    def give_up(self) -> None:
        """Abandon the attempt; a producer that was or will be created is closed."""
        with self._lock:
            self._is_given_up = True
            producer, self.producer = self.producer, None
        if producer is not None:
            close_producer(producer, 0)

    def _run(self) -> None:
        """Connect, check the topics and store the producer or an error."""
        words = hush_kafka()
        words.clear()
        try:
            producer = self._config.make_producer()
        except (KafkaError, ConfigError, OSError, ValueError) as error:  # ValueError: a name that IDNA refuses
            self.error = sentence(error, words.text)
            self._wake()
            return
        missing = next(filter(None, (self._missing(producer, name) for name in INPUTS)), "")
        if not missing:
            self.clock_error = self._missing(producer, CLOCK)
            with self._lock:
                if not self._is_given_up:
                    self.producer = producer
        if self.producer is None:
            close_producer(producer, 0)
            self.error = missing or "given up"
        self._wake()

    def _missing(self, producer: Any, name: str) -> str:
        """Return why a topic cannot be used, "" if it can."""
        topic = topic_name(name, self._config.prefix)
        try:
            producer.partitions_for(topic)
        except KafkaTimeoutError:
            return f"topic {topic} is not found: run 'tocsin topics apply'"
        except KafkaError as error:
            return f"topic {topic}: {sentence(error)}"
        return ""


def close_producer(producer: Any, seconds: float) -> None:
    """Close a producer and its thread within ``seconds``; records that still wait in it are dropped."""
    try:
        producer.close(timeout=seconds)
    except KafkaError:
        # kafka-python 3.0: with records waiting, close() raises before it ends its thread, which would
        # send them later, behind those that the spool sends in their place
        producer._sender.force_close()  # noqa: SLF001
        producer._closed = True  # noqa: SLF001  # else its __del__ does it again
