"""Ticks on a real broker."""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.collectors.peer import wait_until
from tests.kafka_kit import headers, make_topics, read_until
from tocsin.cli.cluster.broker import Broker
from tocsin.pipeline.kafka.ticker import Ticker
from tocsin.pipeline.kafka.topics import WantedTopics, apply
from tocsin.schemas.kafka.settings import kafka_settings
from tocsin.schemas.kafka.topics import TICKED, tick_key
from tocsin.schemas.records import Tick
from tocsin.schemas.wire.codec import decode

Start = Callable[..., Ticker]


@pytest.fixture
def start() -> Iterator[Start]:
    running: list[tuple[Ticker, threading.Thread]] = []

    def make(address: str, prefix: str, now_ns: Callable[[], int] = time.time_ns) -> Ticker:
        ticker = Ticker(kafka_settings(address), prefix, now_ns)
        thread = threading.Thread(target=ticker.run)
        thread.start()
        running.append((ticker, thread))
        return ticker

    yield make
    for ticker, _ in running:
        ticker.stop()
    for _, thread in running:
        thread.join(60)
        assert not thread.is_alive()


def ticks_of(address: str, prefix: str, enough: Callable[[dict[tuple[str, int], list[int]]], object]) -> Any:
    """Times of the ticks in each partition."""
    ticks: dict[tuple[str, int], list[int]] = {}
    seen = 0

    def look(found: list[Any]) -> object:
        nonlocal seen
        for record in found[seen:]:
            assert (record.key, headers(record)) == (tick_key(record.topic), {"kind": b"tick"})
            assert decode(record.value) == Tick(record.timestamp * 1_000_000)
            ticks.setdefault((record.topic, record.partition), []).append(record.timestamp)
        seen = len(found)
        return enough(ticks)

    read_until(address, [f"{prefix}.{name}" for name in TICKED], look)
    return ticks


def test_every_partition_of_every_input_topic_and_of_the_models_gets_the_same_tick_a_second(
    kafka_broker: Broker, topic_prefix: str, start: Start
) -> None:
    make_topics(kafka_broker, topic_prefix, 2)
    start(kafka_broker.address, topic_prefix)
    ticks = ticks_of(
        kafka_broker.address, topic_prefix, lambda found: len(found) == 9 and min(map(len, found.values())) >= 3
    )
    first = {tuple(times[:3]) for times in ticks.values()}

    assert len(first) == 1
    assert all(time_ms % 1000 == 0 for time_ms in first.pop())
    assert all(abs(times[-1] / 1000 - time.time()) < 60 for times in ticks.values())


def test_two_tickers_say_the_same(kafka_broker: Broker, topic_prefix: str, start: Start) -> None:
    make_topics(kafka_broker, topic_prefix)
    for _ in range(2):
        start(kafka_broker.address, topic_prefix)
    ticks = ticks_of(
        kafka_broker.address, topic_prefix, lambda found: found and any(len(t) > len(set(t)) for t in found.values())
    )

    assert all(time_ms % 1000 == 0 for times in ticks.values() for time_ms in times)


def test_partitions_that_are_new_get_ticks_without_a_restart(
    kafka_broker: Broker, topic_prefix: str, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tocsin.pipeline.kafka.ticker.LOOK_SECONDS", 1.0)
    make_topics(kafka_broker, topic_prefix)
    ticker = start(kafka_broker.address, topic_prefix)
    wait_until(lambda: ticker.tick_count, 60)
    apply(kafka_settings(kafka_broker.address), WantedTopics(topic_prefix, 3, keep_seconds=0))

    ticks_of(kafka_broker.address, topic_prefix, lambda found: len(found) == 13)


def test_a_broker_that_was_killed_gets_ticks_again(
    private_broker: Callable[..., Broker], topic_prefix: str, start: Start
) -> None:
    broker = private_broker()
    make_topics(broker, topic_prefix)
    ticker = start(broker.address, topic_prefix)
    wait_until(lambda: ticker.tick_count > 1, 60)
    broker.crash()
    killed_ms = time.time_ns() // 1_000_000
    broker.start()

    ticks_of(broker.address, topic_prefix, lambda found: any(t[-1] > killed_ms + 1000 for t in found.values()))


def test_a_host_whose_clock_is_wrong_ticks_with_the_broker_s(
    kafka_broker: Broker, topic_prefix: str, start: Start
) -> None:
    make_topics(kafka_broker, topic_prefix)
    start(kafka_broker.address, topic_prefix, lambda: time.time_ns() - 600 * 10**9)

    ticks = ticks_of(kafka_broker.address, topic_prefix, lambda found: found)
    assert all(abs(times[0] / 1000 - time.time()) < 60 for times in ticks.values()), "from the first tick on"


def test_topics_that_are_missing_are_told_once_and_waited_for(
    kafka_broker: Broker,
    topic_prefix: str,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("tocsin.pipeline.kafka.client.CONNECT_SECONDS", 3.0)  # a slow broker answers in it
    caplog.set_level(logging.WARNING)
    ticker = start(kafka_broker.address, topic_prefix)
    wait_until(lambda: any(record.getMessage() == "no ticks" for record in caplog.records), 60)
    make_topics(kafka_broker, topic_prefix)
    wait_until(lambda: ticker.tick_count, 60)

    reported = [record.__dict__["error"] for record in caplog.records if record.getMessage() == "no ticks"]
    assert reported == [f"topic {topic_prefix}.frames is not found: run 'tocsin topics apply'"]
