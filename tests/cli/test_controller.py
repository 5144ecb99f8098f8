"""``tocsin controller`` on a real broker: it judges the fleet; killed or paused, another one goes on."""

from __future__ import annotations

import os
import signal
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from tests.collectors.peer import wait_until
from tests.pipeline.kafka.fleet_kit import lines_of, second_of
from tocsin.cli.cluster.broker import Broker
from tocsin.cli.cluster.process import Child, Program, free_port
from tocsin.cli.main import main
from tocsin.schemas.kafka.topics import key_of, timestamp_ms
from tocsin.schemas.records import NS_PER_SECOND, Tick
from tocsin.schemas.wire.codec import encode

HOSTS = 6


class Fleet:
    """The topics of a fleet, and a hand that writes its seconds."""

    def __init__(self, broker: Broker, prefix: str) -> None:
        self.broker, self.prefix = broker, prefix
        arguments = ["--kafka", broker.address, "--topic-prefix", prefix, "--partitions", "2"]
        assert main(["topics", "apply", *arguments]) == 0
        self.producer = KafkaProducer(bootstrap_servers=broker.address, linger_ms=0)
        self.reader = KafkaConsumer(
            bootstrap_servers=broker.address, auto_offset_reset="earliest", isolation_level="read_committed"
        )
        self.reader.assign([TopicPartition(f"{prefix}.verdicts", index) for index in (0, 1)])
        self.begin_ns = time.time_ns() - 120 * NS_PER_SECOND
        self.second = 0
        self.values: list[bytes | None] = []

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            for record in second_of(self.second, self.begin_ns, HOSTS):
                where = range(2) if isinstance(record, Tick) else (None,)
                for partition in where:
                    self.producer.send(
                        f"{self.prefix}.events", encode(record), key_of(record), None, partition, timestamp_ms(record)
                    )
            self.second += 1
        self.producer.flush()

    def lines(self) -> list[tuple[str, int, str]]:
        for records in self.reader.poll(timeout_ms=200).values():
            self.values += [record.value for record in records]
        return lines_of(self.values)

    def opened(self) -> list[str]:
        return sorted(job for job, update, _ in self.lines() if update == 0)

    def close(self) -> None:
        self.producer.close()
        self.reader.close()


class Controller:
    """A ``tocsin controller`` process."""

    def __init__(self, fleet: Fleet, folder: Path, name: str) -> None:
        self._port = free_port()
        command = [sys.executable, "-m", "tocsin", "controller", "--kafka", fleet.broker.address]
        command += ["--topic-prefix", fleet.prefix, "--metrics-listen", f"127.0.0.1:{self._port}"]
        self.child = Child(Program(name, command, folder / f"{name}.log", folder=folder))
        self.child.start()

    def metric(self, name: str) -> float:
        """The value of a metric without labels, or of the label that the name ends with; -1: no page."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=10) as answer:
                lines = answer.read().decode().splitlines()
        except OSError:
            return -1.0
        return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(f"{name} ")), 0.0)

    def is_active(self) -> bool:
        return self.metric('tocsin_active{role="controller"}') == 1

    def is_up(self) -> bool:
        return self.metric('tocsin_active{role="controller"}') >= 0

    def signal(self, number: int) -> None:
        os.kill(self.child.pid, number)


@pytest.fixture
def fleet(kafka_broker: Broker, topic_prefix: str) -> Iterator[Fleet]:
    made = Fleet(kafka_broker, topic_prefix)
    yield made
    made.close()


@pytest.fixture
def controllers(fleet: Fleet, tmp_path: Path) -> Iterator[tuple[Controller, Controller]]:
    first = Controller(fleet, tmp_path, "first")
    wait_until(first.is_active, 60)
    second = Controller(fleet, tmp_path, "second")
    wait_until(second.is_up, 60)
    yield first, second
    for one in (first, second):
        one.child.kill()


def test_killed_in_the_middle_another_one_goes_on_and_no_line_is_lost_or_doubled(
    fleet: Fleet, controllers: tuple[Controller, Controller]
) -> None:
    first, second = controllers
    fleet.run(6)
    wait_until(lambda: len(fleet.opened()) >= 3, 60)
    assert first.is_active()
    assert not second.is_active()
    fleet.run(1)
    first.child.kill()
    fleet.run(HOSTS)
    wait_until(second.is_active, 60)
    wait_until(lambda: fleet.opened() == ["fleet", *["idle"] * HOSTS], 60)
    assert len(fleet.lines()) == len(set(fleet.lines()))


def test_one_that_was_paused_is_shut_out_and_stands_by(
    fleet: Fleet, controllers: tuple[Controller, Controller]
) -> None:
    first, second = controllers
    fleet.run(5)
    wait_until(lambda: len(fleet.opened()) >= 2, 60)
    first.signal(signal.SIGSTOP)
    wait_until(second.is_active, 60)
    fleet.run(HOSTS + 3)
    wait_until(lambda: fleet.opened() == ["fleet", *["idle"] * HOSTS], 60)
    first.signal(signal.SIGCONT)
    wait_until(lambda: first.metric('tocsin_active_events_total{event="taken_over",role="controller"}') >= 1, 60)
    assert not first.is_active()
    assert second.is_active()
    assert second.metric('tocsin_active_events_total{event="takeovers",role="controller"}') == 1
    assert fleet.opened() == ["fleet", *["idle"] * HOSTS]
    second.signal(signal.SIGTERM)  # in order: it gives the seat back at once
    wait_until(first.is_active, 60)


def test_a_broker_that_dies_and_comes_back_costs_nothing_but_time(
    private_broker: Callable[..., Broker], topic_prefix: str, tmp_path: Path
) -> None:
    broker = private_broker()
    fleet = Fleet(broker, topic_prefix)
    only = Controller(fleet, tmp_path, "only")
    wait_until(only.is_active, 60)
    fleet.run(5)
    wait_until(lambda: len(fleet.opened()) >= 2, 60)
    broker.crash()
    broker.start()
    fleet.close()
    again = Fleet(broker, topic_prefix)
    again.begin_ns, again.second = fleet.begin_ns, fleet.second
    again.run(HOSTS + 3)
    wait_until(lambda: again.opened() == ["fleet", *["idle"] * HOSTS], 90)
    assert only.child.is_running()
    only.child.kill()
    again.close()
