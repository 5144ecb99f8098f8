"""The agent as a whole, with Kafka behind it."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tests.collectors.peer import FakeHook, wait_until
from tests.collectors.transport.test_kafka_sink import AHEAD_NS, AheadClock
from tests.kafka_kit import make_topics, read_until
from tocsin.cli.cluster.broker import Broker
from tocsin.collectors.agent.agent import (
    Agent,
    AgentConfig,
    Parts,
    Wakeup,
)
from tocsin.collectors.agent.core import CoreConfig
from tocsin.collectors.agent.job_state import HostPlace
from tocsin.collectors.clock import SteadyClock
from tocsin.collectors.sources.process import ProcessWatcher
from tocsin.collectors.sources.procfs import Roots
from tocsin.collectors.transport.kafka_client import KafkaSinkConfig
from tocsin.collectors.transport.kafka_sink import KafkaSink
from tocsin.collectors.transport.spool import MemorySpool
from tocsin.schemas.kafka.settings import kafka_settings
from tocsin.schemas.records import Event, Record, StepBatch, Tick
from tocsin.schemas.wire.codec import decode

ROOT = Path(__file__).resolve().parents[3]


def test_from_hooks_to_topics_and_a_clean_end(kafka_broker: Broker, topic_prefix: str, tmp_path: Path) -> None:
    make_topics(kafka_broker, topic_prefix, 2)
    flags = [f"--kafka={kafka_broker.address}", f"--topic-prefix={topic_prefix}", f"--socket={tmp_path}/agent"]
    command = [sys.executable, "-m", "tocsin", "agent", "--host=h", f"--spool-dir={tmp_path}/spool", *flags]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT / "src")})
    try:
        wait_until((tmp_path / "agent").exists, 60)
        hook = FakeHook(tmp_path / "agent")
        hook.send("hello", pid=1, world_size=1)
        for step in range(5):
            now = time.time_ns()
            hook.send("step", step=step, dur=0.01, coll=[["w", "all_reduce", step, 8, now - 9, now]])
        topics = {f"{topic_prefix}.{name}" for name in ("frames", "steps", "collectives", "events")}
        read_until(kafka_broker.address, sorted(topics), lambda found: {record.topic for record in found} == topics)
        process.send_signal(signal.SIGTERM)

        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
    read_until(kafka_broker.address, [f"{topic_prefix}.events"], lambda found: "stop" in edges(found))
    steps = decoded(read_until(kafka_broker.address, [f"{topic_prefix}.steps"], lambda found: found))
    assert [row.step for batch in steps if isinstance(batch, StepBatch) for row in batch.rows] == list(range(5))


def decoded(found: list[Any]) -> list[Record]:
    return [decode(record.value) for record in found]


def edges(found: list[Any]) -> list[object]:
    return [e.payload["edge"] for e in decoded(found) if isinstance(e, Event) and e.name == "agent"]


def test_an_agent_whose_clock_is_ahead_says_so_and_stamps_with_the_broker_s(
    kafka_broker: Broker, topic_prefix: str, tmp_path: Path
) -> None:
    make_topics(kafka_broker, topic_prefix)
    system, wake = AheadClock(), Wakeup()
    clock, watcher = SteadyClock(system), ProcessWatcher(system, Roots())
    config = KafkaSinkConfig(kafka_settings(kafka_broker.address), "h", topic_prefix)
    sink = KafkaSink(config, MemorySpool(1 << 20), clock, wake)
    agent = Agent(
        AgentConfig(CoreConfig(HostPlace("h")), str(tmp_path / "agent")), Parts(sink, watcher, [watcher]), clock, wake
    )
    thread = threading.Thread(target=agent.run)
    thread.start()
    found: list[Record] = []

    def reported(records: list[Any]) -> object:
        found[:] = decoded(records)
        return any(isinstance(event, Event) and event.name == "clock_ahead" for event in found)

    try:
        read_until(kafka_broker.address, [f"{topic_prefix}.events"], reported)
    finally:
        agent.stop()
        thread.join(60)
    (event,) = [event for event in found if isinstance(event, Event) and event.name == "clock_ahead"]

    assert abs(event.payload["ahead_seconds"] - AHEAD_NS / 1e9) < 1
    assert all(abs(record.ts_ns - time.time_ns()) < 60e9 for record in found if not isinstance(record, Tick))
