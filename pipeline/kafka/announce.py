"""A model onto its topic: every Flink job that reads there uses it from its time on."""

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
    """Send an announcement; returns when the broker has it. What a job makes of it is not known here.

    Args:
        settings: the cluster.
        prefix: of the topics' names.
        announcement: what is sent.
        signer: signs it, None: jobs that ask for signatures refuse it.

    Raises:
        EngineError: a topic is missing, or the broker refuses.
    """
    data = encode(announcement) if signer is None else sign_record(encode(announcement), signer)
    with producer(settings, linger_ms=0) as client:
        input_partitions(client, prefix)  # a topic that is missing is told before all else
        writer = Writer(client)
        writer.send(topic_of(announcement, prefix), announcement, data)
        writer.finish()
