"""Passwords, certificates, and what is said when they are wrong."""

import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kafka import KafkaAdminClient
from kafka.admin import ACL, ACLOperation, ACLPermissionType, ACLResourcePatternType, ResourcePattern, ResourceType

from tests.collectors.peer import wait_until
from tests.kafka_fixtures import need_java
from tests.kafka_kit import SCRAM_USER, make_certificates, make_topics, read_count, secure_properties
from tocsin.cli.cluster.broker import Broker, BrokerConfig
from tocsin.collectors.clock import SteadyClock, SystemClock
from tocsin.collectors.transport.kafka_client import KafkaSinkConfig
from tocsin.collectors.transport.kafka_sink import KafkaSink
from tocsin.collectors.transport.spool import MemorySpool
from tocsin.schemas.kafka.settings import kafka_settings
from tocsin.schemas.records import Event, EventSource, JobKey, Severity

PLAIN = 'security_protocol = "SASL_PLAINTEXT"\nsasl_mechanism = "PLAIN"\nsasl_username = "alice"\n'
SCRAM = 'security_protocol = "SASL_PLAINTEXT"\nsasl_mechanism = "SCRAM-SHA-256"\nsasl_username = "bob"\n'
TLS = 'security_protocol = "SSL"\nssl_ca_file = "{folder}/ca.pem"\n'
CERTIFICATE = 'ssl_certificate_file = "{folder}/client.crt"\nssl_key_file = "{folder}/client.key"\n'


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Broker, Path]]:
    """A broker whose listeners ask for passwords and certificates, and the folder with the certificates."""
    need_java()
    folder = tmp_path_factory.mktemp("secure")
    make_certificates(folder)
    listeners = ("SASL_PLAINTEXT", "SSL")
    properties = secure_properties(folder)
    broker = Broker(
        BrokerConfig(folder / "broker", secure=listeners, properties=properties, format_arguments=SCRAM_USER)
    )
    broker.start()
    yield broker, folder
    broker.stop()


def start(secure: tuple[Broker, Path], prefix: str, text: str, password: str = "") -> KafkaSink:
    broker, folder = secure
    if password:
        (folder / prefix).write_text(password + "\n")
        text += f'sasl_password_file = "{folder / prefix}"\n'
    (folder / f"{prefix}.toml").write_text(text.format(folder=folder))
    protocol = "SSL" if '"SSL"' in text else "SASL_PLAINTEXT"
    settings = kafka_settings(broker.address_of(protocol), str(folder / f"{prefix}.toml"))
    sink = KafkaSink(
        KafkaSinkConfig(settings, "h", prefix), MemorySpool(1 << 20), SteadyClock(SystemClock()), lambda: None
    )
    sink.start()
    sink.put(Event(JobKey("c", "j"), "h", time.time_ns(), -1, EventSource.JOB, "bye", Severity.INFO, {}))
    return sink


@pytest.mark.parametrize(
    ("text", "password"),
    [(PLAIN, "secret-of-alice"), (SCRAM, "secret-of-bob"), (TLS + CERTIFICATE, "")],
    ids=["PLAIN", "SCRAM", "client certificate"],
)
def test_who_shows_the_right_papers_is_let_in(
    secure: tuple[Broker, Path], topic_prefix: str, text: str, password: str
) -> None:
    make_topics(secure[0], topic_prefix)
    sink = start(secure, topic_prefix, text, password)

    assert len(read_count(secure[0].address, [f"{topic_prefix}.events"], 1)) == 1
    sink.close(5)


@pytest.mark.parametrize(
    ("text", "password", "reported"),
    [
        (PLAIN, "wrong-and-secret", "the broker refuses the user or the password"),
        (SCRAM, "wrong-and-secret", "password"),  # the broker may hang up before it says why
        (TLS, "", "the broker wants a client certificate"),
        ('security_protocol = "SSL"\n' + CERTIFICATE, "", "the broker's certificate is not trusted"),
    ],
    ids=["PLAIN", "SCRAM", "no certificate", "unknown authority"],
)
def test_who_does_not_is_told_what_is_wrong_and_keeps_its_records(
    secure: tuple[Broker, Path],
    topic_prefix: str,
    text: str,
    password: str,
    reported: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    sink = start(secure, topic_prefix, text, password)

    def errors() -> list[str]:
        return [record.__dict__["error"] for record in caplog.records if record.getMessage() == "broker away"]

    # On a loaded machine the broker may hang up before its answer is read; the next attempt hears it.
    wait_until(lambda: any(reported in error for error in errors()), 90)
    sink.close(0.1)
    wait_until(lambda: all(thread.name != "kafka-connect" for thread in threading.enumerate()), 90)

    assert sink.status().spooled_count == 1
    assert "wrong-and-secret" not in caplog.text + "".join(errors())


def test_a_password_that_is_put_right_lets_the_agent_in_without_a_restart(
    secure: tuple[Broker, Path], topic_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tocsin.collectors.transport.kafka_client.CONNECT_SECONDS", 3.0)
    make_topics(secure[0], topic_prefix)
    sink = start(secure, topic_prefix, PLAIN, "wrong")
    wait_until(lambda: sink.status().spooled_count == 1, 90)
    (secure[1] / topic_prefix).write_text("secret-of-alice")

    assert len(read_count(secure[0].address, [f"{topic_prefix}.events"], 1)) == 1
    sink.close(5)


def test_who_may_not_write_is_told_and_is_let_in_when_it_may(
    secure: tuple[Broker, Path],
    topic_prefix: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tocsin.collectors.transport.kafka_client.CONNECT_SECONDS", 2.0)
    make_topics(secure[0], topic_prefix)
    sink = start(secure, topic_prefix, PLAIN.replace("alice", "carol"), "secret-of-carol")

    def is_told(text: str) -> bool:  # a slow broker may not answer at all in the first two seconds
        return any(text in str(record.__dict__.get("error")) for record in caplog.records)

    wait_until(lambda: is_told(f"topic {topic_prefix}.frames"), 90)
    grant(secure[0], topic_prefix, ACLOperation.DESCRIBE)
    wait_until(lambda: is_told("this user may not use the topic: grant it on the broker"), 90)
    grant(secure[0], topic_prefix, ACLOperation.WRITE)

    assert len(read_count(secure[0].address, [f"{topic_prefix}.events"], 1)) == 1
    sink.close(5)


def grant(broker: Broker, prefix: str, operation: ACLOperation) -> None:
    """Let carol do something with all topics of a prefix."""
    pattern = ResourcePattern(ResourceType.TOPIC, f"{prefix}.", ACLResourcePatternType.PREFIXED)
    admin = KafkaAdminClient(bootstrap_servers=broker.address)
    admin.create_acls([ACL("User:carol", "*", operation, ACLPermissionType.ALLOW, pattern)])
    admin.close()
