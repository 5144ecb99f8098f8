"""The agent's Kafka client: how it is set up, and how it connects without anybody waiting for it."""

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
"""Without an acknowledgement for so long, while some are due, the spool takes over."""


@dataclass(frozen=True, slots=True)
class KafkaSinkConfig:
    """Where the brokers are, and who speaks.

    Attributes:
        settings: how to reach them.
        host: this host's name.
        prefix: first part of the topics' names.
        compression: one of ``COMPRESSIONS``.
        split_above_size: frames of jobs with more ranks are cut by metric group, 0: never.
        tokens: where the credential is that signs every record, None: they are not signed.
    """

    settings: KafkaSettings
    host: str
    prefix: str = DEFAULT_PREFIX
    compression: str = "zstd"
    split_above_size: int = 0
    tokens: TokenSearch | None = None

    def check(self) -> None:
        """Look at what can be looked at without a broker.

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
            KafkaError: no broker can be reached, or it refuses.
            ConfigError: a password's or a certificate's file cannot be read any more.
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
    """Connects in a thread of its own: names, TLS and a dead network take their time, and records come meanwhile."""

    def __init__(self, config: KafkaSinkConfig, wake: Callable[[], None]) -> None:
        """Begin to connect; ``wake`` is called when there is a result."""
        self._config = config
        self._wake = wake
        self._lock = threading.Lock()
        self._is_given_up = False
        self.producer: Any = None
        self.error = ""
        self.clock_error = ""
        """Why clocks cannot be compared, "" = they can."""
        self._thread = threading.Thread(target=self._run, name="kafka-connect", daemon=True)
        self._thread.start()

    def is_done(self) -> bool:
        """Return whether there is a producer, or an error."""
        return self.producer is not None or bool(self.error)

    def give_up(self) -> None:
        """Want no producer any more; one that comes is closed."""
        with self._lock:
            self._is_given_up = True
            producer, self.producer = self.producer, None
        if producer is not None:
            close_producer(producer, 0)

    def _run(self) -> None:
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
        """Return why a topic cannot be used, "" = it can."""
        topic = topic_name(name, self._config.prefix)
        try:
            producer.partitions_for(topic)
        except KafkaTimeoutError:
            return f"topic {topic} is not found: run 'tocsin topics apply'"
        except KafkaError as error:
            return f"topic {topic}: {sentence(error)}"
        return ""


def close_producer(producer: Any, seconds: float) -> None:
    """End a producer and its thread; what waits in it for longer is given up."""
    try:
        producer.close(timeout=seconds)
    except KafkaError:
        # kafka-python 3.0: with records waiting, close() raises before it ends its thread, which would
        # send them later, behind those that the spool sends in their place
        producer._sender.force_close()  # noqa: SLF001
        producer._closed = True  # noqa: SLF001  # else its __del__ does it again
