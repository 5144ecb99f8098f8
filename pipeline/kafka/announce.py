"""Announce a model on its Kafka topic; all Flink jobs that read it use the model from its effective time on."""

from __future__ import annotations

from tocsin.pipeline.kafka.client import Writer, input_partitions, producer
from tocsin.schemas.credentials import Credential
from tocsin.schemas.kafka.settings import KafkaSettings
from tocsin.schemas.kafka.topics import topic_of
from tocsin.schemas.model_announcement import ModelAnnouncement
from tocsin.schemas.signatures import sign_record
from tocsin.schemas.wire.codec import encode


def announce(
    settings: KafkaSettings, prefix: str, announcement: ModelAnnouncement, signer: Credential | None = None
) -> None:
    """Send a model announcement; returns when the broker has stored it, whether or not jobs accept it.

    Args:
        settings: the Kafka cluster.
        prefix: prefix of the topics' names.
        announcement: the announcement.
        signer: credential that signs it, None = unsigned, which jobs that require signatures refuse.

    Raises:
        EngineError: a topic is missing, or the broker refuses.
    """
    data = encode(announcement) if signer is None else sign_record(encode(announcement), signer)
    with producer(settings, linger_ms=0) as client:
        input_partitions(client, prefix)  # a topic that is missing is told before all else
        writer = Writer(client)
        writer.send(topic_of(announcement, prefix), announcement, data)
        writer.finish()
