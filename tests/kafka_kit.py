"""What tests do with a broker: topics, and reading what stands in them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from kafka import KafkaConsumer, TopicPartition

from tests.collectors.peer import wait_until
from tocsin.cli.cluster.broker import Broker
from tocsin.pipeline.kafka.topics import WantedTopics, apply
from tocsin.schemas.kafka.settings import kafka_settings
from tocsin.schemas.kafka.topics import INPUTS, topic_name
from tocsin.schemas.records import Record
from tocsin.schemas.wire.codec import decode


def make_topics(broker: Broker, prefix: str, partition_count: int = 1) -> None:
    """All topics of one prefix; inputs are kept for good."""
    apply(kafka_settings(broker.address), WantedTopics(prefix, partition_count, keep_seconds=0))


def read_until(
    address: str, topics: list[str], enough: Callable[[list[Any]], object], seconds: float = 60.0
) -> list[Any]:
    """Read topics from their beginning until there is enough; Kafka's records, by partition in their order."""
    consumer = KafkaConsumer(bootstrap_servers=address, auto_offset_reset="earliest", enable_auto_commit=False)
    found: list[Any] = []
    try:
        partitions = [TopicPartition(topic, one) for topic in topics for one in consumer.partitions_for_topic(topic)]
        consumer.assign(partitions)

        def look() -> object:
            for records in consumer.poll(timeout_ms=100).values():
                found.extend(records)
            return enough(found)

        wait_until(look, seconds)
    finally:
        consumer.close()
    return found


def read_count(address: str, topics: list[str], count: int, seconds: float = 60.0) -> list[Any]:
    """Read until there are so many."""
    return read_until(address, topics, lambda found: len(found) >= count, seconds)


def read_inputs(address: str, prefix: str, count: int) -> list[tuple[str, Record]]:
    """The records on the input topics, decoded, with their topics' names."""
    topics = [topic_name(name, prefix) for name in INPUTS]
    return [(record.topic, decode(record.value)) for record in read_count(address, topics, count)]


def headers(record: Any) -> dict[str, bytes]:
    """A Kafka record's headers by name."""
    return dict(record.headers)


def make_certificates(folder: Path) -> None:
    """``ca.pem``, and ``broker`` and ``client`` with key and certificate each (``.pem``: both in one)."""
    request = "openssl req -newkey rsa:2048 -nodes"
    commands = [f"{request} -x509 -keyout ca.key -out ca.pem -days 2 -subj /CN=test-authority"]
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1")
    for name in ("broker", "client"):
        commands.append(f"{request} -keyout {name}.key -out {name}.csr -subj /CN={name}")
        signed = "openssl x509 -req -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile names"
        commands.append(f"{signed} -in {name}.csr -out {name}.crt")
    for command in commands:
        subprocess.run(command.split(), cwd=folder, check=True, capture_output=True)
    for name in ("broker", "client"):
        (folder / f"{name}.pem").write_text((folder / f"{name}.key").read_text() + (folder / f"{name}.crt").read_text())


def secure_properties(folder: Path) -> dict[str, str]:
    """For a broker with listeners SASL_PLAINTEXT (PLAIN: alice, SCRAM-SHA-256: bob) and SSL (client certificates).

    A second user of PLAIN, carol, may do nothing at first.
    """
    module = "org.apache.kafka.common.security"
    return {
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
            f'{module}.plain.PlainLoginModule required user_alice="secret-of-alice" user_carol="secret-of-carol";'
        ),
        "listener.name.sasl_plaintext.scram-sha-256.sasl.jaas.config": f"{module}.scram.ScramLoginModule required;",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "ca.pem"),
        "ssl.client.auth": "required",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:alice;User:bob;User:CN=client",
    }


SCRAM_USER = ("--add-scram", "SCRAM-SHA-256=[name=bob,password=secret-of-bob]")
