"""One host's agent sink killed again and again, the others unharmed: judged as what the topics hold of that host."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kafka import TopicPartition

from tests.chaos.agent_host import SENDING, Order, write_records
from tests.chaos.engine import Distributed
from tests.chaos.outcome import outcome, read_tables
from tests.chaos.plays import Play, PlayPace, as_job, play_together
from tests.chaos.recordings import simulated
from tests.chaos.rounds import SETTLE_SECONDS, Reported
from tests.chaos.tables import write_embedded
from tests.conftest import ROOT
from tocsin.cli.cluster.process import Child, Program
from tocsin.pipeline.kafka.client import consumer
from tocsin.pipeline.recording.replay import ReplayConfig
from tocsin.pipeline.recording.stream import records_of
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine
from tocsin.schemas.errors import EngineError
from tocsin.schemas.kafka.settings import KafkaSettings
from tocsin.schemas.kafka.topics import INPUTS, LATE, topic_name
from tocsin.schemas.records import ModelAnnouncement, Record, Tick
from tocsin.schemas.verdicts import Verdict
from tocsin.schemas.wire.codec import decode, encode

AGENT = "agent sink"
KIND, SEED, HOSTS_COUNT = "pcie_downgrade", 4, 6
_LEAD_SECONDS = 0.6
"""The agent's clock is so much ahead of the player's ticks: at a high speed its records would be late."""
_FIRST_SECONDS = 4.0
_START_SECONDS = 120.0
"""A process starts slowly on a loaded machine: its life is counted from when it sends."""


@dataclass(frozen=True)
class AgentConfig:
    """How such a round goes.

    Attributes:
        seed: of the kills.
        is_exactly_once: verdicts leave in transactions.
        speed: recording seconds a second.
        stream_seconds: length of the recording.
        life_seconds: how long an agent sends before it is killed, from and to.
        gap_seconds: how long it is away, from and to.
        crashes_count: how often the broker is killed, so that records go through the spool.
    """

    seed: int
    is_exactly_once: bool = False
    speed: float = 5.0
    stream_seconds: float = 600.0
    life_seconds: tuple[float, float] = (2.0, 5.0)
    gap_seconds: tuple[float, float] = (0.0, 2.0)
    crashes_count: int = 0


@dataclass
class Agent:
    """A process that is killed and started again until it has sent everything."""

    order: Order
    config: AgentConfig
    log: Path
    kill_count: int = 0
    error: str = ""
    _thread: threading.Thread = field(init=False)

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        drawn, life_seconds = random.Random(self.config.seed), _FIRST_SECONDS
        child = Child(Program("an agent", self.order.command(), self.log, folder=ROOT))
        while True:
            child.start()
            try:
                child.wait_ready(lambda: child.said(SENDING), _START_SECONDS)
            except EngineError as error:
                self.error = str(error)
                return
            life_seconds += drawn.uniform(*self.config.life_seconds)
            status = child.wait(life_seconds)
            if status is None:
                child.crash()
                self.kill_count += 1
                time.sleep(drawn.uniform(*self.config.gap_seconds))
                life_seconds = 0.0
                continue
            child.kill()
            self.error = f"the agent ended with {status}: {child.log_tail()}" if status else ""
            return


def run_agent_round(config: AgentConfig, distributed: Distributed, prefix: str) -> Reported:
    """Play all hosts but one, whose agent is killed; compare with what the topics hold at last."""
    recording = as_job(simulated(KIND, SEED, HOSTS_COUNT, config.stream_seconds), f"{prefix}-job")
    play, folder = Play(f"{KIND}, an agent killed", recording, ReplayConfig()), distributed.folder / prefix
    folder.mkdir(parents=True)
    host, file = _innocent_host(play), folder / "records"
    count = write_records(file, (record for record in records_of(recording) if record.host == host))
    with distributed.job(prefix, *(["--exactly-once"] if config.is_exactly_once else [])) as chain:
        begun = time.time() - _LEAD_SECONDS
        start_ns, spool = recording.manifest.start_ns, str(folder / "spool")
        order = Order(distributed.kafka, prefix, host, str(file), spool, begun, start_ns, config.speed)
        agent = Agent(order, config, folder / "agent.log")
        agent.start()
        crashes = threading.Thread(target=_crash, args=(config, distributed), daemon=True)
        crashes.start()
        play_together([play], chain.settings, prefix, PlayPace(config.speed).on_second, lambda one: one.host != host)
        agent.join()
        crashes.join()
        reported = Reported([], Counter({AGENT: agent.kill_count}))
        reported.problems += [agent.error] if agent.error else []
        if not chain.wait_settled(SETTLE_SECONDS):
            reported.problems.append(f"not settled within {SETTLE_SECONDS:.0f} s")
        if chain.rest.failures(chain.job_id()):
            reported.problems.append("the Flink job was restarted: what was late is not known (docs/chaos.md)")
        lines = [line for _, line in chain.lines()]
        held = held_records(chain.settings, prefix)
    verdicts = judged(held)
    write_embedded(folder / "data", verdicts)
    wanted, found = read_tables(folder / "data"), read_tables(folder / "data", distributed.clickhouse)
    reported.outcomes = [outcome(play, verdicts, lines, wanted, found)]
    reported.problems += _against(verdicts, host)
    nobodys = Tick | ModelAnnouncement
    sent_count = len({encode(record) for record in held if not isinstance(record, nobodys) and record.host == host})
    print(f"  {host}: {sent_count} of {count} records were in time")
    if sent_count == count:
        reported.problems.append(f"{host} has no gap: nothing was tried")
    return reported


def _crash(config: AgentConfig, distributed: Distributed) -> None:
    """Spread over the recording."""
    for _ in range(config.crashes_count):
        time.sleep(config.stream_seconds / config.speed / (config.crashes_count + 1))
        distributed.crash_broker(1.0)


def held_records(settings: KafkaSettings, prefix: str) -> list[Record]:
    """All records and ticks of the inputs that were not late, by time."""
    headers = [dict(dead_letter.headers) for dead_letter in _read(settings, prefix, LATE)]
    late = {(reported["topic"].decode(), int(reported["partition"]), int(reported["offset"])) for reported in headers}
    found = {
        (record.topic, record.partition, record.offset): decode(record.value)
        for name in INPUTS
        for record in _read(settings, prefix, name)
    }
    held = [record for place, record in found.items() if place not in late]
    return sorted(held, key=lambda one: one.ts_ns)


def judged(held: list[Record]) -> list[Verdict]:
    """What the embedded engine says of them."""
    engine = EmbeddedEngine(ReplayConfig().engine)
    verdicts: list[Verdict] = []
    waiting = [record for record in held if not isinstance(record, Tick)][::-1]
    for tick_ns in sorted({record.ts_ns for record in held if isinstance(record, Tick)}):
        while waiting and waiting[-1].ts_ns < tick_ns:
            engine.take_record(waiting.pop())
        verdicts += engine.tick(tick_ns).verdicts
    return verdicts


def _innocent_host(play: Play) -> str:
    """A host that the recording's verdicts do not name, and that announces nothing for the others."""
    named = {suspect.component.name for verdict in play.embedded() for suspect in verdict.suspects}
    hosts = sorted({record.host for record in records_of(play.recording)})
    return next(host for host in hosts[1:] if host not in named)


def _against(verdicts: list[Verdict], host: str) -> list[str]:
    return [
        f"{verdict.verdict_id} names {host}: {verdict.cause}"
        for verdict in verdicts
        if any(suspect.component.name == host for suspect in verdict.suspects)
    ]


def _read(settings: KafkaSettings, prefix: str, name: str) -> list[Any]:
    topic, found = topic_name(name, prefix), list[Any]()
    with consumer(settings, isolation_level="read_committed") as client:
        places = [TopicPartition(topic, number) for number in client.partitions_for_topic(topic) or ()]
        client.assign(places)
        ends = client.end_offsets(places)
        while any(client.position(place) < ends[place] for place in places):
            for records in client.poll(timeout_ms=200).values():
                found += records
    return found
