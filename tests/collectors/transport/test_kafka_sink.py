"""The Kafka sink against a real broker."""

import logging
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType

from tests.collectors.peer import wait_until
from tests.kafka_kit import headers, make_topics, read_count, read_until
from tests.schemas.samples import FRAME, SAMPLES, TOPOLOGY
from tocsin.cli.cluster.broker import Broker
from tocsin.collectors.clock import SteadyClock, SystemClock
from tocsin.collectors.transport.kafka_client import KafkaSinkConfig
from tocsin.collectors.transport.kafka_sink import KafkaSink
from tocsin.collectors.transport.sign_in import TokenSearch
from tocsin.collectors.transport.sink import Probe, Refused
from tocsin.collectors.transport.spool import DiskSpool, MemorySpool
from tocsin.schemas.credential_store import write_credentials
from tocsin.schemas.credentials import Role, new_credential
from tocsin.schemas.errors import ConfigError
from tocsin.schemas.kafka.settings import kafka_settings
from tocsin.schemas.kafka.topics import key_of, topic_of
from tocsin.schemas.records import Event, EventSource, JobKey, ModelAnnouncement, Record, Severity, Tick
from tocsin.schemas.signatures import is_signed_by
from tocsin.schemas.wire.codec import decode, encode

AHEAD_NS = 600_000_000_000


class AheadClock(SystemClock):
    """A host whose clock is ten minutes ahead."""

    def wall_ns(self) -> int:
        return time.time_ns() + AHEAD_NS


def event(number: int, ts_ns: int = 0) -> Event:
    ts_ns = ts_ns or time.time_ns()
    return Event(JobKey("c", "j"), "h", ts_ns, -1, EventSource.JOB, "bye", Severity.INFO, {"n": number})


def numbers(address: str, prefix: str, count: int) -> list[int]:
    """The numbers of the events on the topic in their order, each once."""
    found: dict[int, None] = {}
    seen: list[int] = []

    def enough(records: list[Any]) -> bool:
        for record in records[len(seen) :]:
            event = decode(record.value)
            assert isinstance(event, Event)
            seen.append(event.payload["n"])
        found.update(dict.fromkeys(seen))
        return len(found) >= count

    read_until(address, [f"{prefix}.events"], enough)
    return list(found)


Start = Callable[..., KafkaSink]


@pytest.fixture
def start(tmp_path: Path, topic_prefix: str) -> Iterator[Start]:
    sinks = []

    def make(address: str, clock: SystemClock | None = None, **settings: Any) -> KafkaSink:
        config = KafkaSinkConfig(kafka_settings(address), "h", topic_prefix, **settings)
        spool = DiskSpool(str(tmp_path / "spool"), 1 << 22)
        sinks.append(KafkaSink(config, spool, SteadyClock(clock or SystemClock()), lambda: None))
        sinks[-1].start()
        return sinks[-1]

    yield make
    for one in sinks:
        one.close(0.2)
        wait_until(lambda one=one: not one.is_alive())  # type: ignore[misc]


def test_each_kind_goes_to_its_topic_with_key_headers_and_event_time(
    kafka_broker: Broker, topic_prefix: str, start: Start
) -> None:
    make_topics(kafka_broker, topic_prefix)
    one = start(kafka_broker.address)
    ts_ns = time.time_ns()
    sent: list[Record] = [
        replace(r, ts_ns=ts_ns) for r in SAMPLES.values() if not isinstance(r, Tick | ModelAnnouncement)
    ]
    for record in sent:
        one.put(record)
    wait_until(lambda: one.status().acked_count == len(sent), 60)
    topics = sorted({topic_of(record, topic_prefix) for record in sent})
    found = read_count(kafka_broker.address, topics, len(sent))

    assert {(r.topic, r.key, r.timestamp) for r in found} == {
        (topic_of(record, topic_prefix), key_of(record), ts_ns // 1_000_000) for record in sent
    }
    assert {r.value for r in found} == set(map(encode, sent))
    assert {headers(r)["kind"] for r in found} == {b"frame", b"steps", b"collectives", b"record"}
    wait_until(lambda: one.status().offset.is_known)  # a slow broker may say its time after it took the records
    status = one.status()
    assert (status.is_connected, status.spooled_count, status.refused_count) == (True, 0, 0)
    assert abs(status.offset.offset_ns) < status.offset.error_ns + 2_000_000


def test_each_record_is_signed_with_the_credential_that_the_file_holds_now(
    kafka_broker: Broker, topic_prefix: str, start: Start, tmp_path: Path
) -> None:
    make_topics(kafka_broker, topic_prefix)
    key, path = new_credential(Role.AGENT, "h", time.time_ns()), tmp_path / "keys" / "token.json"
    write_credentials(path, (key,))
    one = start(kafka_broker.address, tokens=TokenSearch(str(path)))
    for number in range(5):
        one.put(event(number))
    wait_until(lambda: one.status().acked_count == 5, 60)
    found = read_count(kafka_broker.address, [f"{topic_prefix}.events"], 5)

    assert [is_signed_by(record.value, key) for record in found] == [True] * 5
    assert numbers(kafka_broker.address, topic_prefix, 5) == list(range(5))


def test_what_came_while_the_broker_was_away_comes_first_and_in_order(
    private_broker: Callable[..., Broker], topic_prefix: str, start: Start
) -> None:
    broker = private_broker()
    make_topics(broker, topic_prefix)
    broker.stop()
    one = start(broker.address)
    for number in range(10):
        one.put(event(number))
    wait_until(lambda: one.status().spooled_count == 10)
    assert not one.status().is_connected
    broker.start()
    for number in range(10, 20):
        one.put(event(number))
    wait_until(lambda: one.status().acked_count == 20, 60)

    assert numbers(broker.address, topic_prefix, 20) == list(range(20))
    wait_until(lambda: one.status().spooled_count == 0)


@pytest.mark.parametrize("is_long", [False, True], ids=["restarted at once", "away until the spool has taken over"])
def test_a_broker_killed_while_records_are_sent_loses_none_and_keeps_their_order(
    private_broker: Callable[..., Broker],
    topic_prefix: str,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    is_long: bool,
) -> None:
    monkeypatch.setattr("tocsin.collectors.transport.kafka_session.SILENCE_SECONDS", 2.0 if is_long else 60.0)
    broker = private_broker()
    make_topics(broker, topic_prefix)
    one = start(broker.address)

    def put(first: int) -> None:
        for number in range(first, first + 100):
            one.put(event(number))
            time.sleep(0.002)  # so that they are not one batch

    put(0)
    wait_until(lambda: one.status().acked_count > 0, 60)
    put(100)
    broker.crash()
    put(200)
    if is_long:
        wait_until(lambda: one.status().spooled_count > 0, 60)
    put(300)
    broker.start()
    put(400)
    wait_until(lambda: one.status().spooled_count == 0 and one.status().is_connected, 60)

    assert numbers(broker.address, topic_prefix, 500) == list(range(500))
    assert one.status().dropped_count == 0


def test_a_broker_that_stands_still_does_not_block_the_host(
    private_broker: Callable[..., Broker], topic_prefix: str, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tocsin.collectors.transport.kafka_session.SILENCE_SECONDS", 2.0)
    broker = private_broker()
    make_topics(broker, topic_prefix)
    one = start(broker.address)
    one.put(event(0))
    wait_until(lambda: one.status().acked_count == 1, 60)
    os.kill(broker.child.pid, signal.SIGSTOP)
    for number in range(1, 3000):
        one.put(event(number))  # would wait for good
    wait_until(lambda: one.status().spooled_count > 2000, 60)
    os.kill(broker.child.pid, signal.SIGCONT)

    assert numbers(broker.address, topic_prefix, 3000) == list(range(3000))


def test_the_spool_outlives_the_agent(private_broker: Callable[..., Broker], topic_prefix: str, start: Start) -> None:
    broker = private_broker()
    make_topics(broker, topic_prefix)
    broker.stop()
    first = start(broker.address)
    for number in range(7):
        first.put(event(number))
    first.close(0.1)
    wait_until(lambda: not first.is_alive())
    broker.start()
    second = start(broker.address)
    second.put(event(7))
    second.close(60)

    assert numbers(broker.address, topic_prefix, 8) == list(range(8))


def test_what_comes_while_a_long_spool_is_sent_waits_on_the_disk(
    private_broker: Callable[..., Broker],
    topic_prefix: str,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr("tocsin.collectors.transport.kafka_session.WINDOW_RECORDS", 1)  # so that it takes a while
    broker = private_broker()
    make_topics(broker, topic_prefix)
    broker.stop()
    one = start(broker.address)
    for number in range(400):
        one.put(event(number))
    wait_until(lambda: one.status().spooled_count == 400)
    broker.start()
    wait_until(lambda: one.status().acked_count > 0, 60)
    new = event(400, time.time_ns())
    one.put(new)

    def is_on_disk() -> bool:
        return any(encode(new) in path.read_bytes() for path in (tmp_path / "spool").glob("*.spool"))

    wait_until(is_on_disk, 60)
    assert one.status().spooled_count > 1
    assert numbers(broker.address, topic_prefix, 401) == list(range(401))


def test_closing_sends_what_waits(kafka_broker: Broker, topic_prefix: str, start: Start) -> None:
    make_topics(kafka_broker, topic_prefix)
    one = start(kafka_broker.address)
    wait_until(lambda: one.status().is_connected, 60)
    for number in range(2000):
        one.put(event(number))
    one.close(60.0)

    assert numbers(kafka_broker.address, topic_prefix, 2000) == list(range(2000))
    assert one.status().spooled_count == 0


def test_a_clock_ten_minutes_ahead_is_noticed_and_its_records_are_refused(
    kafka_broker: Broker, topic_prefix: str, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = "tocsin.collectors.transport.kafka_session"
    monkeypatch.setattr(f"{session}.CLOCK_WAIT_SECONDS", 60.0)  # a slow broker says its time later than others
    monkeypatch.setattr(f"{session}._WARN_SECONDS", 60.0)
    make_topics(kafka_broker, topic_prefix)
    one = start(kafka_broker.address, AheadClock())
    begun_ns = time.time_ns()
    for number in range(5):
        one.put(event(number, time.time_ns() + AHEAD_NS))
    wait_until(lambda: one.status().refused_count == 5, 60)
    age_ns = time.time_ns() - begun_ns  # no record was older when it was refused
    one.put(event(5))  # stamped rightly, as the agent does from now on
    wait_until(lambda: one.status().acked_count == 1, 60)
    offset, said = one.status().offset, one.poll()

    assert numbers(kafka_broker.address, topic_prefix, 1) == [5]
    assert abs(offset.offset_ns - AHEAD_NS) < offset.error_ns + 2_000_000
    assert [found.reason for found in said if isinstance(found, Refused)] == ["clock_ahead"]
    assert isinstance(said[0], Refused)
    assert AHEAD_NS - 5e9 - age_ns < said[0].ahead_ns < AHEAD_NS
    assert one.status().reconnect_count == 1  # the broker was not even asked


def test_without_a_clock_topic_the_broker_s_own_refusal_counts_and_the_others_arrive(
    kafka_broker: Broker, topic_prefix: str, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    make_topics(kafka_broker, topic_prefix)
    admin = KafkaAdminClient(bootstrap_servers=kafka_broker.address)
    admin.delete_topics([f"{topic_prefix}.clock"])
    wait_until(lambda: f"{topic_prefix}.clock" not in admin.list_topics())  # it answers before the topic is gone
    admin.close()
    one = start(kafka_broker.address)
    for number in range(30):
        one.put(event(number, time.time_ns() + (AHEAD_NS if number % 10 == 5 else 0)))
    heard: list[Refused | Probe] = []
    wait_until(lambda: one.status().acked_count + one.status().refused_count >= 30, 60)
    heard += one.poll()

    assert numbers(kafka_broker.address, topic_prefix, 27) == [n for n in range(30) if n % 10 != 5]
    assert one.status().refused_count == 3
    assert heard == [Refused("clock_ahead", 0)] * 3
    assert not one.status().offset.is_known
    wait_until(lambda: one.status().spooled_count == 0)
    assert "tocsin topics apply" in next(r for r in caplog.records if "clocks" in r.getMessage()).__dict__["error"]


def test_a_record_that_the_broker_finds_too_large_is_counted_and_the_rest_goes_on(
    kafka_broker: Broker, topic_prefix: str, start: Start
) -> None:
    make_topics(kafka_broker, topic_prefix)
    admin = KafkaAdminClient(bootstrap_servers=kafka_broker.address)
    small = {"max.message.bytes": "20000"}
    admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, f"{topic_prefix}.events", small)])
    wait_until(lambda: small["max.message.bytes"] in str(describe(admin, f"{topic_prefix}.events")))
    admin.close()
    one = start(kafka_broker.address, compression="none")
    for number in range(10):
        large = {"n": number, "text": "x" * 50_000} if number == 4 else {"n": number}
        one.put(replace(event(number), payload=large))
    wait_until(lambda: one.status().acked_count >= 9 and one.status().spooled_count == 0, 60)

    assert numbers(kafka_broker.address, topic_prefix, 9) == [0, 1, 2, 3, 5, 6, 7, 8, 9]
    assert one.status().refused_count == 1


def describe(admin: Any, topic: str) -> Any:
    found = admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)], config_filter="all")
    return found["topic"][topic]["max.message.bytes"]


def test_topics_that_are_missing_are_told_and_found_when_they_come(
    kafka_broker: Broker,
    topic_prefix: str,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("tocsin.collectors.transport.kafka_client.CONNECT_SECONDS", 2.0)
    one = start(kafka_broker.address)
    one.put(event(0))
    told = f"topic {topic_prefix}.frames is not found: run 'tocsin topics apply'"

    def is_told() -> bool:
        away = [record.__dict__["error"] for record in caplog.records if "broker away" in record.getMessage()]
        return told in away  # a slow broker may not answer at all in the first two seconds

    wait_until(is_told, 60)
    make_topics(kafka_broker, topic_prefix)

    assert numbers(kafka_broker.address, topic_prefix, 1) == [0]


def test_a_record_that_cannot_be_sent_is_counted_and_the_rest_goes_on(
    kafka_broker: Broker, topic_prefix: str, start: Start
) -> None:
    make_topics(kafka_broker, topic_prefix)
    one = start(kafka_broker.address)
    for record in (Tick(-1), Tick(5), event(1)):
        one.put(record)
    wait_until(lambda: one.status().acked_count == 1, 60)

    assert one.status().unencodable_count == 2


@pytest.mark.parametrize("compression", ["lz4", "none"])
def test_other_compressions_work(kafka_broker: Broker, topic_prefix: str, start: Start, compression: str) -> None:
    make_topics(kafka_broker, topic_prefix)
    one = start(kafka_broker.address, compression=compression)
    one.put(event(1))

    assert numbers(kafka_broker.address, topic_prefix, 1) == [1]


def test_a_very_large_job_s_frames_are_cut_by_metric_group(
    kafka_broker: Broker, topic_prefix: str, start: Start
) -> None:
    make_topics(kafka_broker, topic_prefix)
    one = start(kafka_broker.address, split_above_size=1000)
    ts_ns = time.time_ns()
    places = tuple(replace(place, world_size=1001) for place in TOPOLOGY.places)
    small = replace(FRAME, ts_ns=ts_ns, job=JobKey("c", "small"))
    for record in (replace(TOPOLOGY, ts_ns=ts_ns, places=places), replace(FRAME, ts_ns=ts_ns), small):
        one.put(record)
    found = read_count(kafka_broker.address, [f"{topic_prefix}.frames"], 4)
    groups = [record.key.rpartition(b"/")[2] for record in found]

    assert groups == [b"compute", b"device", b"network", b"all"]


@pytest.mark.parametrize("wrong", [{"compression": "rar"}, {"split_above_size": -1}])
def test_settings_that_are_none_are_refused(start: Start, wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="must be"):
        start("h:1", **wrong)


def test_names_that_nobody_knows_are_told_once_and_cost_nothing(
    start: Start, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tocsin.collectors.transport.kafka_client.CONNECT_SECONDS", 0.5)
    caplog.set_level(logging.WARNING)
    one = start(f"{'x' * 70}..b:80")
    one.put(event(0))
    wait_until(lambda: any("broker away" in record.getMessage() for record in caplog.records), 60)
    wait_until(lambda: one.status().spooled_count == 1)

    assert one.is_alive()


def test_when_the_spool_is_full_the_oldest_go_and_are_counted(start: Start, tmp_path: Path, topic_prefix: str) -> None:
    config = KafkaSinkConfig(kafka_settings("127.0.0.1:1"), "h", topic_prefix)
    spool = MemorySpool(20_000)
    one = KafkaSink(config, spool, SteadyClock(SystemClock()), lambda: None)
    one.start()
    for number in range(1000):
        one.put(event(number))
    wait_until(lambda: one.status().spooled_count + one.status().dropped_count == 1000, 60)
    found = spool.read()
    dropped_count = one.status().dropped_count
    one.close(0.1)

    assert found is not None
    assert dropped_count > 0
    oldest = decode(found[0])
    assert isinstance(oldest, Event)
    assert oldest.payload["n"] == dropped_count
