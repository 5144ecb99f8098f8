"""maintenance, feedback and incidents close over a real broker, answered by a controller."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.collectors.peer import wait_until
from tests.kafka_kit import headers, make_topics, read_count
from tests.pipeline.kafka.notes_kit import ANN, placed_hosts
from tocsin.cli.cluster.broker import Broker
from tocsin.cli.main import main
from tocsin.pipeline.identity.operator_check import OperatorChecker
from tocsin.pipeline.kafka import operator_client
from tocsin.pipeline.kafka.active import ActiveConfig, ActiveProcess
from tocsin.pipeline.kafka.client import producer
from tocsin.pipeline.kafka.fleet_work import FleetWork
from tocsin.pipeline.kafka.seat import SeatConfig, kafka_seat
from tocsin.schemas.credential_store import CredentialStore, write_credentials
from tocsin.schemas.kafka.settings import kafka_settings
from tocsin.schemas.kafka.topics import CONTROLLER_STATE, DEAD_LETTER, EVENTS, NOTES_TAKEN, key_of, topic_name
from tocsin.schemas.operator_requests import decode_taken
from tocsin.schemas.records import Tick
from tocsin.schemas.wire.codec import encode

Captured = pytest.CaptureFixture[str]


class Ground:
    """A broker with topics, and a controller in a thread that knows one operator.

    Attributes:
        flags: the flags of a command that asks as this operator.
    """

    def __init__(self, broker: Broker, prefix: str, folder: Path) -> None:
        self.broker, self.prefix = broker, prefix
        make_topics(broker, prefix)
        write_credentials(folder / "all.json", (ANN,))
        self.bare = ["--kafka", broker.address, "--topic-prefix", prefix]
        self.flags = [*self.bare, "--token-file", str(folder / "all.json")]
        self.work = FleetWork(operators=OperatorChecker(CredentialStore(folder / "all.json")))
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        settings, seat = (
            kafka_settings(self.broker.address),
            SeatConfig(self.prefix, CONTROLLER_STATE, "controller", self.work.inputs),
        )
        with kafka_seat(settings, seat) as opened:
            ActiveProcess("controller", opened, self.work, ActiveConfig(poll_seconds=0.05)).run(self._stop)

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(60)

    def hear_hosts(self, **leaves: str) -> None:
        """Idle hosts report, and the controller has heard them."""
        now_ns = time.time_ns()
        with producer(kafka_settings(self.broker.address), linger_ms=0) as client:
            for record in (*placed_hosts(now_ns, leaves), Tick(now_ns)):
                key = None if isinstance(record, Tick) else key_of(record)
                client.send(topic_name(EVENTS, self.prefix), encode(record), key, partition=0)
        wait_until(lambda: self.work.views and self.work.views["c1"].hosts.count == len(leaves), 60)


@pytest.fixture
def ground(kafka_broker: Broker, topic_prefix: str, tmp_path: Path) -> Iterator[Ground]:
    made = Ground(kafka_broker, topic_prefix, tmp_path)
    yield made
    made.stop()


def test_work_is_planned_listed_and_ended(ground: Ground, capsys: Captured) -> None:
    ground.start()
    ground.hear_hosts(n1="leaf1", n2="leaf1")
    planned = ["maintenance", "leaf1", "--for", "2h", "--reason", "new optics", "--json", *ground.flags]
    assert main(planned) == 0
    work = json.loads(capsys.readouterr().out)
    assert (work["target_kind"], work["target"], work["state"], work["actor"]) == (
        "leaf",
        "leaf1",
        "on",
        "operator:ann",
    )
    assert main(["maintenance", "list", *ground.bare]) == 0
    assert "goes on: leaf leaf1" in capsys.readouterr().out
    assert main(["maintenance", "end", work["maintenance_id"][:8], *ground.flags]) == 0
    assert "over: leaf leaf1" in capsys.readouterr().out
    assert main(["maintenance", "list", "--json", *ground.bare]) == 0
    assert json.loads(capsys.readouterr().out)["state"] == "over"
    notes = [
        decode_taken(one.value) for one in read_count(ground.broker.address, [f"{ground.prefix}.{NOTES_TAKEN}"], 2)
    ]
    assert [one.hosts for one in notes] == [("n1", "n2")] * 2


def test_what_nobody_signed_who_may_ask_is_a_dead_letter(ground: Ground, capsys: Captured) -> None:
    ground.start()
    ground.hear_hosts(n1="leaf1")
    assert main(["maintenance", "n1", "--for", "2h", "--reason", "mine", *ground.bare]) != 0
    assert "no signature" in capsys.readouterr().err
    [letter] = read_count(ground.broker.address, [f"{ground.prefix}.{DEAD_LETTER}"], 1)
    assert headers(letter)["reason"] == b"unsigned"
    assert main(["feedback", "81ab", "true", "--note", "seen", *ground.flags]) != 0
    assert "no incident's id begins with '81ab'" in capsys.readouterr().err
    assert main(["incidents", "close", "81ab", "--note", "seen", *ground.flags]) != 0
    assert "no incident that stands now begins with '81ab'" in capsys.readouterr().err


def test_without_a_controller_what_is_asked_waits(
    ground: Ground, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operator_client, "ANSWER_SECONDS", 1.0)
    asked = ["maintenance", "n1", "--kind", "host", "--cluster", "c1", "--for", "2h", "--reason", "x", *ground.flags]
    assert main(asked) != 0
    assert "no controller answered within 1 s" in capsys.readouterr().err
    monkeypatch.setattr(operator_client, "ANSWER_SECONDS", 60.0)
    ground.start()

    def is_listed() -> bool:
        return main(["maintenance", "list", *ground.bare]) == 0 and "goes on: host n1" in capsys.readouterr().out

    wait_until(is_listed, 60)


def test_brokers_beside_an_engine_are_refused(ground: Ground, capsys: Captured) -> None:
    assert main(["maintenance", "list", *ground.bare, "--engine", "host:1"]) != 0
    assert "left out where --kafka is given" in capsys.readouterr().err
    assert main(["incidents", "list", *ground.bare]) != 0
    assert "used with 'close ID'" in capsys.readouterr().err
