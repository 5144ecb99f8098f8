"""Reads the committed state of a process of which one is active, without disturbing it."""

from __future__ import annotations

import time
from typing import Final

from kafka import TopicPartition

from tocsin.pipeline.kafka.client import consumer, kafka_errors
from tocsin.pipeline.kafka.state_parts import StateParts
from tocsin.schemas.errors import EngineError
from tocsin.schemas.kafka.settings import KafkaSettings
from tocsin.schemas.kafka.topics import topic_name

_READ_SECONDS: Final = 60.0
_POLL_MS: Final = 500


def read_state(settings: KafkaSettings, prefix: str, name: str) -> dict[str, bytes]:
    """Return the named parts of a state as of the last transaction.

    Args:
        settings: the Kafka cluster.
        prefix: prefix of the topics' names.
        name: topic of the state, without prefix.

    Raises:
        EngineError: the topic is missing, or the broker refuses or is too slow.
        SnapshotError: the state is damaged.
    """
    parts, topic = StateParts(), topic_name(name, prefix)
    with consumer(settings, isolation_level="read_committed") as reader, kafka_errors(f"read {topic}"):
        if not reader.partitions_for_topic(topic):
            raise EngineError(f"the topic {topic} is missing: run 'tocsin topics apply'")
        place = TopicPartition(topic, 0)
        reader.assign([place])
        end = reader.end_offsets([place])[place]
        reader.seek_to_beginning(place)
        until = time.monotonic() + _READ_SECONDS
        while reader.position(place) < end:
            for records in reader.poll(timeout_ms=_POLL_MS).values():
                for record in records:
                    parts.take(record.key, record.value)
            if time.monotonic() > until:
                raise EngineError(f"{topic} could not be read within {_READ_SECONDS:g} s")
    return parts.parts()
