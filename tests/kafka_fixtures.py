"""A real Kafka broker for tests: one a session, topics of their own for each test."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tocsin.cli.cluster.broker import Broker, BrokerConfig
from tocsin.cli.cluster.jars import missing


def need_java() -> None:
    """Skip where no Java program can be started."""
    why = missing()
    if why:
        pytest.skip(why)


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """The session's broker. Whoever stops it must start it again: ``private_broker`` is better for that."""
    need_java()
    broker = Broker(BrokerConfig(tmp_path_factory.mktemp("kafka")))
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture
def private_broker(tmp_path: Path) -> Iterator[Callable[..., Broker]]:
    """Make brokers of a test's own: to be killed, or with listeners that ask for a password."""
    need_java()
    made: list[Broker] = []

    def make(**settings: object) -> Broker:
        broker = Broker(BrokerConfig(tmp_path / f"kafka{len(made)}", **settings))  # type: ignore[arg-type]
        made.append(broker)
        broker.start()
        return broker

    yield make
    for broker in made:
        broker.stop()


@pytest.fixture
def topic_prefix() -> str:
    """Names that no other test uses."""
    return f"t{uuid.uuid4().hex[:12]}"
