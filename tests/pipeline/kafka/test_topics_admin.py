"""Topics on a real broker: created, reconciled, grown, never shrunk."""

import pytest
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType

from tests.collectors.peer import wait_until
from tocsin.cli.cluster.broker import Broker
from tocsin.cli.main import main
from tocsin.pipeline.kafka.client import admin
from tocsin.pipeline.kafka.topics import WantedTopics, apply, check
from tocsin.schemas.errors import EngineError
from tocsin.schemas.kafka.settings import KafkaSettings, kafka_settings


@pytest.fixture
def settings(kafka_broker: Broker) -> KafkaSettings:
    return kafka_settings(kafka_broker.address)


def reported(differences: list[object]) -> list[str]:
    return [str(difference) for difference in differences]


def test_they_are_created_and_then_as_they_should_be(settings: KafkaSettings, topic_prefix: str) -> None:
    missing = check(settings, WantedTopics(topic_prefix))
    assert f"{topic_prefix}.frames: is missing" in reported(list(missing))
    assert apply(settings, WantedTopics(topic_prefix, 2)) == missing

    assert check(settings, WantedTopics(topic_prefix, 2)) == []
    assert apply(settings, WantedTopics(topic_prefix, 2)) == []
    assert check(settings, WantedTopics(topic_prefix)) == []  # a count that nobody named is right


def test_settings_that_differ_are_told_and_mended(settings: KafkaSettings, topic_prefix: str) -> None:
    apply(settings, WantedTopics(topic_prefix, 1))
    admin = KafkaAdminClient(bootstrap_servers=list(settings.servers))
    wrong = {"message.timestamp.after.max.ms": "3600000", "retention.ms": "60000"}
    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, f"{topic_prefix}.frames", wrong)])
    admin.close()

    expected = f"{topic_prefix}.frames: message.timestamp.after.max.ms is 3600000, should be 2000"
    wait_until(
        lambda: reported(list(check(settings, WantedTopics(topic_prefix)))) == [expected]
    )  # how long: nobody named it
    assert len(apply(settings, WantedTopics(topic_prefix, keep_seconds=0))) == 5  # four are kept for good now
    assert check(settings, WantedTopics(topic_prefix, keep_seconds=0)) == []


def test_they_grow_and_never_shrink(settings: KafkaSettings, topic_prefix: str) -> None:
    apply(settings, WantedTopics(topic_prefix, 2))
    apply(settings, WantedTopics(topic_prefix, 3))
    assert check(settings, WantedTopics(topic_prefix, 3)) == []
    before = check(settings, WantedTopics(topic_prefix, 1, keep_seconds=60))
    with pytest.raises(EngineError, match=r"has 3 partitions, 1 are wanted: Kafka cannot take partitions away"):
        apply(settings, WantedTopics(topic_prefix, 1, keep_seconds=60))

    assert check(settings, WantedTopics(topic_prefix, 1, keep_seconds=60)) == before  # nothing was changed


def test_the_log_of_models_must_have_one_partition(settings: KafkaSettings, topic_prefix: str) -> None:
    apply(settings, WantedTopics(topic_prefix))
    with admin(settings) as client:
        client.create_partitions({f"{topic_prefix}.models": 3})

    wait_until(
        lambda: (
            [(d.topic, d.what, d.found) for d in check(settings, WantedTopics(topic_prefix))]
            == [(f"{topic_prefix}.models", "partitions", "3")]
        )
    )


def test_the_command_says_what_differs_and_what_it_did(
    kafka_broker: Broker, topic_prefix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ["--kafka", kafka_broker.address, "--topic-prefix", topic_prefix]

    assert main(["topics", "check", *flags]) == 1
    assert f"{topic_prefix}.events: is missing\n" in capsys.readouterr().out
    assert main(["topics", "apply", "--partitions", "1", *flags]) == 0
    assert f"{topic_prefix}.events: created\n" in capsys.readouterr().out
    assert main(["topics", "check", *flags]) == 0
    assert capsys.readouterr().out == f"{len(WantedTopics(topic_prefix).topics())} topics are as they should be\n"


def test_a_broker_that_is_not_there_is_one_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tocsin.pipeline.kafka.client.CONNECT_SECONDS", 1.0)

    assert main(["topics", "check", "--kafka", "127.0.0.1:1"]) == 2
    reported = capsys.readouterr().err
    assert reported.startswith("tocsin topics: cannot ask Kafka at 127.0.0.1:1: no broker listens there")
    assert reported.count("\n") == 1


@pytest.mark.parametrize(
    "flags",
    [
        ["--partitions", "0"],
        ["--keep-hours", "-1"],
        ["--replication", "0"],
        ["--topic-prefix", "a b"],
        ["--kafka", "x"],
    ],
)
def test_wrong_flags_are_refused_before_anybody_is_asked(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topics", "apply", "--kafka", "127.0.0.1:1", *flags]) == 2
    assert "must be" in capsys.readouterr().err
