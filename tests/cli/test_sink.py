"""``tocsin sink clickhouse`` on a real broker and a server that embeds the real engine: killed, shared, refused."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from tests.collectors.peer import wait_until
from tests.pipeline.stores.samples import JOB, ONSET, SECOND, verdict
from tocsin.cli.cluster.broker import Broker
from tocsin.cli.cluster.clickhouse import ClickHouseEndpoint
from tocsin.cli.cluster.process import Child, Program, free_port
from tocsin.cli.main import main
from tocsin.pipeline.kafka.consumer_api import Message, RefusedMessage
from tocsin.pipeline.kafka.verdicts import KafkaDeadLetters, verdict_source
from tocsin.pipeline.stores.clickhouse_address import parse_address
from tocsin.pipeline.stores.clickhouse_store import ClickHouseBackend, ClickHouseStore
from tocsin.pipeline.stores.rows import Row
from tocsin.schemas.cloudevents import encode_verdict
from tocsin.schemas.kafka.settings import kafka_settings
from tocsin.schemas.kafka.topics import job_key
from tocsin.schemas.migrations import migrations
from tocsin.schemas.records import JobKey
from tocsin.schemas.verdicts import ActionKind, Verdict, VerdictState

MakeEndpoint = Callable[..., ClickHouseEndpoint]
_TABLES = {
    "incidents": "SELECT * EXCEPT updated FROM tocsin.incidents FINAL ORDER BY verdict_id",
    "actions": "SELECT * EXCEPT written FROM tocsin.actions FINAL ORDER BY verdict_id, update_number, kind, target",
}


def make_topics(broker: Broker, prefix: str) -> None:
    assert main(["topics", "apply", "--kafka", broker.address, "--topic-prefix", prefix]) == 0


def lives(jobs_count: int = 8, verdicts_count: int = 4, seed: int = 0) -> list[Verdict]:
    """Verdicts of several jobs that open, are confirmed, and mostly close; interleaved as an engine says them."""
    said: list[tuple[int, Verdict]] = []
    drawn = random.Random(seed)
    for job in range(jobs_count):
        for number in range(verdicts_count):
            opened = drawn.randrange(600)
            for update in range(drawn.randint(1, 4)):
                closing = update == 3
                one = verdict(
                    f"j{job}-v{number}",
                    update,
                    job=JobKey(JOB.cluster, f"job-{job}", 0),
                    state=VerdictState.RESOLVED if closing else VerdictState.OPEN,
                    action=ActionKind.NONE if closing else ActionKind.RESTART,
                    confidence=0.5,
                    detected_ns=ONSET + (opened + 30 * update) * SECOND,
                )
                said.append((one.detected_ns, one))
    return [one for _, one in sorted(said, key=lambda pair: (pair[0], pair[1].verdict_id))]


class Topic:
    """The writer of a verdicts topic."""

    def __init__(self, broker: Broker, prefix: str) -> None:
        self.broker, self.prefix = broker, prefix
        make_topics(broker, prefix)
        options = {"compression_type": "zstd", "max_request_size": 100 << 20}
        self._producer = KafkaProducer(bootstrap_servers=broker.address, **options)

    def say(self, *verdicts: Verdict) -> None:
        sent = [self._producer.send(f"{self.prefix}.verdicts", encode_verdict(v), job_key(v.job)) for v in verdicts]
        for future in sent:
            future.get(60)

    def say_bytes(self, value: bytes | None, key: bytes | None = None) -> None:
        self._producer.send(f"{self.prefix}.verdicts", value, key, partition=0).get(60)

    def dead_letters(self, count: int) -> list[tuple[dict[str, str], bytes | None]]:
        consumer = KafkaConsumer(bootstrap_servers=self.broker.address, auto_offset_reset="earliest")
        consumer.assign([TopicPartition(f"{self.prefix}.dead-letter", 0)])
        found: list[Any] = []

        def all_there() -> bool:
            for records in consumer.poll(timeout_ms=200).values():
                found.extend(records)
            return len(found) >= count

        wait_until(all_there, 60)
        consumer.close()
        return [({name: value.decode() for name, value in r.headers}, r.value) for r in found]

    def close(self) -> None:
        self._producer.close()


class Sink:
    """A ``tocsin sink clickhouse`` process."""

    def __init__(self, topic: Topic, endpoint: ClickHouseEndpoint, folder: Path, name: str = "sink") -> None:
        self.metrics_port = free_port()
        command = [sys.executable, "-m", "tocsin", "sink", "clickhouse", "--kafka", topic.broker.address]
        command += ["--topic-prefix", topic.prefix, "--clickhouse", endpoint.url]
        command += ["--metrics-listen", f"127.0.0.1:{self.metrics_port}"]
        self.child = Child(Program(name, command, folder / f"{name}.log"))

    def start(self) -> None:
        self.child.start()

    def page(self, path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.metrics_port}{path}", timeout=10) as answer:
            return str(answer.read().decode())

    def partitions(self) -> list[int]:
        """What it said last of its partitions of the verdicts."""
        lines = [line for line in self.child.log_tail().splitlines() if '.verdicts" ours=' in line]
        return list(json.loads(lines[-1].rpartition(" ours=")[2])) if lines else []


@pytest.fixture
def topic(kafka_broker: Broker, topic_prefix: str) -> Iterator[Topic]:
    made = Topic(kafka_broker, topic_prefix)
    yield made
    made.close()


@pytest.fixture
def endpoint(private_endpoint: MakeEndpoint) -> ClickHouseEndpoint:
    made = private_endpoint()
    made.start()
    return made


@pytest.fixture
def sinks(endpoint: ClickHouseEndpoint, tmp_path: Path) -> Iterator[Callable[..., Sink]]:
    made: list[Sink] = []

    def make(topic: Topic) -> Sink:
        made.append(Sink(topic, endpoint, tmp_path, f"sink{len(made)}"))
        made[-1].start()
        return made[-1]

    yield make
    for sink in made:
        sink.child.kill()


def tables(endpoint: ClickHouseEndpoint) -> dict[str, list[dict[str, Any]]]:
    store = ClickHouseStore(parse_address(endpoint.url))
    try:
        return {
            name: [json.loads(line) for line in store.query(sql, "JSONEachRow").splitlines()]
            for name, sql in _TABLES.items()
        }
    finally:
        store.close()


def wanted_tables(verdicts: Sequence[Verdict], make: MakeEndpoint) -> dict[str, list[dict[str, Any]]]:
    """What an undisturbed sink writes: without a broker, in one go."""
    from tests.pipeline.kafka.kit import drained, topic

    undisturbed = make()
    undisturbed.start()
    store = ClickHouseStore(parse_address(undisturbed.url))
    drained(topic(*verdicts), store)
    store.close()
    found = tables(undisturbed)
    undisturbed.stop()
    return found


def committed(topic: Topic) -> Callable[[], bool]:
    """Whether the group has committed to the end of every partition."""
    group = f"{topic.prefix}.sink-clickhouse"
    consumer = KafkaConsumer(bootstrap_servers=topic.broker.address, group_id=group, enable_auto_commit=False)
    partitions = [TopicPartition(f"{topic.prefix}.verdicts", n) for n in range(4)]

    def is_done() -> bool:
        ends = consumer.end_offsets(partitions)
        return all((consumer.committed(p) or 0) >= ends[p] for p in partitions)

    return is_done


# --- the good way --------------------------------------------------------------------------------


def test_verdicts_become_incidents_and_poison_becomes_dead_letters(
    topic: Topic, endpoint: ClickHouseEndpoint, sinks: Callable[..., Sink], private_endpoint: MakeEndpoint
) -> None:
    said = lives()
    wanted = wanted_tables(said, private_endpoint)
    topic.say_bytes(b"no verdict", b"c1/job-0")
    topic.say(*said[: len(said) // 2])
    sink = sinks(topic)
    topic.say_bytes(None, b"c1/job-0")
    topic.say_bytes(bytes(40 << 20), b"c1/job-0")  # a few kilobytes on their way
    topic.say(*said[len(said) // 2 :])
    topic.say(*said[-20:])  # at least once
    wait_until(committed(topic), 60)

    assert tables(endpoint) == wanted
    assert wanted["incidents"]
    assert wanted["actions"]
    dead_letters = topic.dead_letters(3)
    assert [(headers["reason"], value) for headers, value in dead_letters] == [
        ("undecodable", b"no verdict"),
        ("no_value", None),
        ("undecodable", bytes(65536)),
    ]
    assert dead_letters[2][0]["detail"].startswith("41943040 bytes, the first 65536 are here: ")
    assert dead_letters[0][0]["topic"] == f"{topic.prefix}.verdicts"
    assert dead_letters[0][0]["partition"] == "0"
    assert dead_letters[0][0]["offset"] == "0"
    assert sink.partitions() == [0, 1, 2, 3]
    wait_until(lambda: "tocsin_sink_lag_messages 0\n" in sink.page("/metrics"), 60)
    page = sink.page("/metrics")
    assert 'tocsin_sink_dead_letters_total{reason="no_value"} 1\n' in page
    assert sink.page("/healthz") == "ok\n"
    os.kill(sink.child.pid, signal.SIGTERM)
    wait_until(lambda: not sink.child.is_running(), 60)
    log = sink.child.program.log.read_text()
    assert "Traceback" not in log
    assert "ERROR" not in log


def test_what_a_transaction_aborts_is_never_seen(
    topic: Topic, endpoint: ClickHouseEndpoint, sinks: Callable[..., Sink]
) -> None:
    producer = KafkaProducer(bootstrap_servers=topic.broker.address, transactional_id=f"{topic.prefix}-tx")
    producer.init_transactions()
    for name, is_good in (("aborted", False), ("good", True)):
        producer.begin_transaction()
        one = verdict(name)
        producer.send(f"{topic.prefix}.verdicts", encode_verdict(one), job_key(one.job)).get(60)
        producer.commit_transaction() if is_good else producer.abort_transaction()
    producer.close()
    sinks(topic)
    wait_until(lambda: bool(_ids(endpoint)), 60)
    assert _ids(endpoint) == {"good"}


def _ids(endpoint: ClickHouseEndpoint) -> set[str]:
    backend = ClickHouseBackend(parse_address(endpoint.url))
    try:
        if not int(backend.select("EXISTS TABLE tocsin.incidents")[0]["result"]):
            return set()
        return {str(row["verdict_id"]) for row in backend.select("SELECT verdict_id FROM tocsin.incidents")}
    finally:
        backend.close()


def test_a_letter_of_a_message_without_key_and_value_can_be_kept(topic: Topic) -> None:
    dead_letters = KafkaDeadLetters(kafka_settings(topic.broker.address), topic.prefix)
    dead_letters.write([RefusedMessage(Message("t", 3, 7, None, None), "no_value", "x" * 5000 + "\ud800")])
    dead_letters.close()
    ((headers, value),) = topic.dead_letters(1)
    assert (headers["reason"], headers["partition"], headers["offset"], value) == ("no_value", "3", "7", b"")


# --- killed --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kills_count", [4, pytest.param(40, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_killed_again_and_again_the_tables_are_equal(
    topic: Topic,
    endpoint: ClickHouseEndpoint,
    sinks: Callable[..., Sink],
    private_endpoint: MakeEndpoint,
    kills_count: int,
) -> None:
    """The sink and the database in turn, with -9, at random moments while verdicts come."""
    said = lives(jobs_count=2 * kills_count, seed=1)
    wanted = wanted_tables(said, private_endpoint)
    drawn = random.Random(2)
    sink = sinks(topic)
    share = -(-len(said) // kills_count)
    for number in range(kills_count):
        until = time.monotonic() + drawn.uniform(0.0, 3.0)  # a random moment is the point
        for one in said[number * share : (number + 1) * share]:
            topic.say(one)
        while time.monotonic() < until:
            time.sleep(0.01)
        if number % 2:
            endpoint.crash()
            endpoint.start()
        else:
            sink.child.crash()
            sink.start()
    wait_until(committed(topic), 90)
    assert tables(endpoint) == wanted


def test_a_broker_that_dies_and_comes_back_is_gone_on_with(
    private_broker: Callable[..., Broker], topic_prefix: str, endpoint: ClickHouseEndpoint, sinks: Callable[..., Sink]
) -> None:
    broker = private_broker()
    topic = Topic(broker, topic_prefix)
    sinks(topic)
    topic.say(verdict("before"))
    wait_until(lambda: _ids(endpoint) == {"before"}, 60)
    broker.crash()
    broker.start()
    topic.say(verdict("after"))
    wait_until(lambda: _ids(endpoint) == {"before", "after"}, 60)
    topic.close()


def test_two_share_the_work_and_one_takes_over(
    topic: Topic, endpoint: ClickHouseEndpoint, sinks: Callable[..., Sink], private_endpoint: MakeEndpoint
) -> None:
    said = lives(seed=3)
    wanted = wanted_tables(said, private_endpoint)
    one, other = sinks(topic), sinks(topic)
    wait_until(lambda: len(one.partitions()) == len(other.partitions()) == 2, 60)
    assert sorted(one.partitions() + other.partitions()) == [0, 1, 2, 3]
    topic.say(*said[: len(said) // 2])
    one.child.crash()
    topic.say(*said[len(said) // 2 :])
    wait_until(committed(topic), 60)
    assert tables(endpoint) == wanted
    assert other.partitions() == [0, 1, 2, 3]


def test_while_the_database_is_away_what_waits_is_counted_and_a_dropped_table_is_made_again(
    topic: Topic, endpoint: ClickHouseEndpoint, sinks: Callable[..., Sink]
) -> None:
    sink = sinks(topic)
    topic.say(verdict("before"))
    wait_until(committed(topic), 60)
    backend = ClickHouseBackend(parse_address(endpoint.url))
    for name in ("incidents", "actions"):
        backend.execute(f"DROP TABLE tocsin.{name}")
    backend.close()
    topic.say(verdict("dropped"))
    wait_until(lambda: _ids(endpoint) == {"dropped"}, 60)
    wait_until(committed(topic), 60)  # its actions are written after its incident: else it is still in hand

    endpoint.stop()
    topic.say(verdict("held"))
    wait_until(lambda: "tocsin_sink_waiting 1\n" in sink.page("/metrics"), 60)
    topic.say(*(verdict(f"waits-{number}") for number in range(5)))
    wait_until(lambda: "tocsin_sink_lag_messages 6\n" in sink.page("/metrics"), 60)  # the one in hand, too
    endpoint.start()
    wait_until(committed(topic), 60)
    assert len(_ids(endpoint)) == 7
    wait_until(lambda: "tocsin_sink_lag_messages 0\n" in sink.page("/metrics"), 60)


def test_what_a_transaction_leaves_behind_its_messages_is_done_with_them(
    topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tocsin.pipeline.kafka.verdicts.LOOK_SECONDS", 0.2)
    producer = KafkaProducer(bootstrap_servers=topic.broker.address, transactional_id=f"{topic.prefix}-tx")
    producer.init_transactions()
    producer.begin_transaction()
    sent = [producer.send(f"{topic.prefix}.verdicts", b"", partition=0) for _ in range(3)]
    assert [future.get(60).offset for future in sent] == [0, 1, 2]
    producer.commit_transaction()
    producer.close()
    name = f"{topic.prefix}.reader"
    asking = KafkaConsumer(bootstrap_servers=topic.broker.address, group_id=name, enable_auto_commit=False)
    brought: list[Message] = []
    with verdict_source(kafka_settings(topic.broker.address), topic.prefix, name) as source:

        def stands_at(offset: int) -> Callable[[], bool]:
            def look() -> bool:
                brought.extend(source.poll(0.2))
                return bool(asking.committed(TopicPartition(f"{topic.prefix}.verdicts", 0)) == offset)

            return look

        wait_until(lambda: len(brought) == 3 or stands_at(-1)(), 60)
        source.commit(brought[:2])
        wait_until(stands_at(2), 60)
        source.commit(brought[2:])
        wait_until(stands_at(4), 60)
    asking.close()
    assert len(brought) == 3


# --- refused -------------------------------------------------------------------------------------


def sink_says(*flags: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "tocsin", "sink", "clickhouse", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    return done.returncode, done.stderr


def test_what_is_missing_or_refused_is_one_clear_line(
    kafka_broker: Broker, topic_prefix: str, endpoint: ClickHouseEndpoint
) -> None:
    kafka, url = ("--kafka", kafka_broker.address), ("--clickhouse", endpoint.url)
    prefix = ("--topic-prefix", topic_prefix)
    nobody = ("--kafka", f"127.0.0.1:{free_port()}")
    with ThreadPoolExecutor() as pool:  # side by side: two of them wait for a while
        asked = [kafka, url, (*kafka, *url, *prefix), (*nobody, *url, *prefix)]
        no_url, no_broker, no_topic, refused = pool.map(lambda flags: sink_says(*flags), asked)
    assert no_url[1].startswith("tocsin sink: --clickhouse = '': must be the server's URL")
    assert "the brokers, HOST:PORT" in no_broker[1]
    assert no_topic == (2, f"tocsin sink: the topic {topic_prefix}.verdicts is missing: run 'tocsin topics apply'\n")
    assert refused[0] == 2
    assert "no broker listens there" in refused[1]
    make_topics(kafka_broker, topic_prefix)
    status, said = sink_says(*kafka, "--clickhouse", endpoint.url.replace("//", "//nobody:x@"), *prefix)
    assert status == 2
    assert "Authentication failed" in said.splitlines()[-1]
    store = ClickHouseStore(parse_address(endpoint.url))
    store.migrate()
    store.close()
    backend = ClickHouseBackend(parse_address(endpoint.url))
    newer: Row = {"number": 99, "name": "of_the_future", "sha256": "0" * 64}
    backend.insert("tocsin.schema_migrations", tuple(newer), [newer])
    backend.close()
    status, said = sink_says(*kafka, *url, *prefix)
    assert status == 2
    newest = migrations()[-1].number
    assert f"schema version 99, this program knows versions up to {newest}: use a newer tocsin" in said.splitlines()[-1]
