"""``tocsin alerts run`` on a real broker: killed and taken over, each incident pages once and is resolved once."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from tests.collectors.peer import wait_until
from tests.pipeline.alerts.adapters.receiver import Receiver, Reply, receiving
from tests.pipeline.stores.samples import SECOND, verdict
from tocsin.cli.cluster.broker import Broker
from tocsin.cli.cluster.process import Child, Program
from tocsin.cli.main import main
from tocsin.pipeline.stores.alert_codec import decode_alert
from tocsin.schemas.cloudevents import encode_verdict
from tocsin.schemas.kafka.topics import job_key
from tocsin.schemas.verdicts import VerdictState

_ROUTES = """version: 1
receivers:
  hook: {{kind: webhook, url: '{url}/', signing_key_env: TEST_HOOK_KEY}}
routes:
  - {{name: all, receiver: hook}}
"""


@pytest.fixture
def hook() -> Iterator[Receiver]:
    with receiving(lambda _: Reply(204)) as made:
        yield made


@pytest.fixture
def start(
    kafka_broker: Broker, topic_prefix: str, tmp_path: Path, hook: Receiver, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str], Child]]:
    monkeypatch.setenv("TEST_HOOK_KEY", "k" * 40)
    arguments = ["--kafka", kafka_broker.address, "--topic-prefix", topic_prefix]
    assert main(["topics", "apply", *arguments]) == 0
    routes = tmp_path / "alerts.yaml"
    routes.write_text(_ROUTES.format(url=hook.url))
    made: list[Child] = []

    def start_one(name: str) -> Child:
        command = [sys.executable, "-m", "tocsin", "alerts", "run", "--alerts", str(routes), *arguments]
        made.append(Child(Program(name, command, tmp_path / f"{name}.log", folder=tmp_path)))
        made[-1].start()
        return made[-1]

    yield start_one
    for child in made:
        child.kill()


def test_killed_and_taken_over_each_incident_is_told_once(
    kafka_broker: Broker,
    topic_prefix: str,
    hook: Receiver,
    start: Callable[[str], Child],
    capsys: pytest.CaptureFixture[str],
) -> None:
    producer = KafkaProducer(bootstrap_servers=kafka_broker.address, linger_ms=0)
    now_ns = time.time_ns()

    def say(name: str, update: int, state: VerdictState) -> None:
        at_ns = now_ns + update * SECOND
        one = verdict(name, update, state=state, onset_ns=at_ns, detected_ns=at_ns, expires_ns=at_ns + 600 * SECOND)
        producer.send(f"{topic_prefix}.verdicts", encode_verdict(one), job_key(one.job)).get(60)

    def told() -> list[tuple[str, str]]:
        messages = {one.json["delivery"]: one.json for one in list(hook.asked)}  # as every receiver does
        return [(one["incident"], one["kind"]) for one in messages.values()]

    first = start("first")
    wait_until(lambda: first.said("active"), 60)
    second = start("second")
    wait_until(lambda: second.said("tocsin alerts"), 60)
    say("v1", 0, VerdictState.CONFIRMED)
    wait_until(lambda: told() == [("v1", "firing")], 60)
    say("v2", 0, VerdictState.CONFIRMED)
    say("v1", 1, VerdictState.CONFIRMED)
    first.kill()
    wait_until(lambda: second.said("active"), 60)
    wait_until(lambda: ("v2", "firing") in told(), 60)

    def listed() -> list[str]:
        capsys.readouterr()
        assert main(["alerts", "list", "--kafka", kafka_broker.address, "--topic-prefix", topic_prefix]) == 0
        return [line.split()[0] for line in capsys.readouterr().out.splitlines()]

    wait_until(lambda: listed() == ["standing", "standing"], 60)  # the delivery is told first, and committed then
    say("v1", 2, VerdictState.RESOLVED)
    say("v2", 2, VerdictState.RESOLVED)
    wait_until(lambda: len(told()) >= 4, 60)
    assert sorted(told()) == sorted((name, kind) for name in ("v1", "v2") for kind in ("firing", "resolved"))
    assert second.is_running()
    producer.close()

    reader = KafkaConsumer(bootstrap_servers=kafka_broker.address, auto_offset_reset="earliest")
    reader.assign([TopicPartition(f"{topic_prefix}.alerts-sent", 0)])
    rows: set[tuple[str, str]] = set()

    def all_there() -> bool:
        for records in reader.poll(timeout_ms=200).values():
            rows.update((row.verdict_id, row.kind) for row in map(decode_alert, (one.value for one in records)))
        return len(rows) == 4

    wait_until(all_there, 60)
    reader.close()
