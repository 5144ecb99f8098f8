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

from tests.chaos.agent_host import Order, write_records
from tests.chaos.outcome import outcome, read_tables
from tests.chaos.plays import Pace, Play, as_job, play_together
from tests.chaos.recordings import simulated
from tests.chaos.rounds import PREFIX, SETTLE_SECONDS, Told
from tests.chaos.settle import Chain
from tests.chaos.tables import write_embedded
from tests.chaos.up import JOB, cluster_up
from tests.conftest import ROOT
from tocsin.cli.cluster.process import Child, Program
from tocsin.pipeline.bus.client import consumer
from tocsin.pipeline.embedded import EmbeddedEngine
from tocsin.pipeline.recording.replay import ReplayConfig
from tocsin.pipeline.recording.stream import records_of
from tocsin.pipeline.stores.clickhouse_address import parse_address
from tocsin.schemas.codec import decode, encode
from tocsin.schemas.kafka_settings import KafkaSettings, kafka_settings
from tocsin.schemas.records import ModelAnnouncement, Record, Tick
from tocsin.schemas.topics import INPUTS, LATE, topic_name
from tocsin.schemas.verdicts import Verdict

AGENT = "agent sink"
KIND = "pcie_downgrade"
_LEAD_SECONDS = 0.6
"""The agent's clock is so much ahead of the player's ticks: at a high speed its records would be late."""
_FIRST_SECONDS = 4.0


@dataclass(frozen=True)
class AgentConfig:
    """How such a round goes.

    Attributes:
        seed: of the kills.
        is_exactly_once: verdicts leave in transactions.
        speed: recording seconds a second.
        stream_seconds: length of the recording.
        life_seconds: how long an agent lives, from and to.
        gap_seconds: how long it is away, from and to.
    """

    seed: int
    is_exactly_once: bool = False
    speed: float = 5.0
    stream_seconds: float = 600.0
    life_seconds: tuple[float, float] = (2.0, 5.0)
    gap_seconds: tuple[float, float] = (0.0, 2.0)


@dataclass
class Agent:
    """A process that is killed and started again until it has sent everything."""

    order: Order
    config: AgentConfig
    log: Path
    kill_count: int = 0
    longest_seconds: float = 0.0
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
            life_seconds += drawn.uniform(*self.config.life_seconds)
            status = child.wait(life_seconds)
            if status is None:
                child.crash()
                self.kill_count += 1
                away_seconds = drawn.uniform(*self.config.gap_seconds)
                self.longest_seconds = max(self.longest_seconds, away_seconds)
                time.sleep(away_seconds)
                life_seconds = 0.0
                continue
            child.kill()
            self.error = f"the agent ended with {status}: {child.log_tail()}" if status else ""
            return


def run_agent_round(config: AgentConfig, folder: Path) -> Told:
    """Play all hosts but one, whose agent is killed; compare with what the topics hold at last."""
    play = Play(f"{KIND}, an agent killed", as_job(simulated(KIND, 5, 6, config.stream_seconds), "job"), ReplayConfig())
    host, count = _innocent_host(play), 0
    flags = ["--exactly-once"] if config.is_exactly_once else []
    folder.mkdir(parents=True, exist_ok=True)
    with cluster_up(folder, PREFIX, *flags) as cluster:
        kafka, file = cluster.state.addresses["kafka"], folder / "records"
        settings = kafka_settings(kafka)
        count = write_records(file, (record for record in records_of(play.recording) if record.host == host))
        begun = time.time()
        order = Order(
            kafka,
            PREFIX,
            host,
            str(file),
            str(folder / "spool"),
            begun - _LEAD_SECONDS,
            play.recording.manifest.start_ns,
            config.speed,
        )
        agent = Agent(order, config, folder / "agent.log")
        agent.start()
        play_together([play], settings, PREFIX, Pace(config.speed).on_second, lambda record: record.host != host)
        agent.join()
        chain = Chain(settings, PREFIX, cluster.rest, JOB, f"{PREFIX}.flink")
        told = Told([], Counter({AGENT: agent.kill_count}), {AGENT: agent.longest_seconds})
        told.problems += [agent.error] if agent.error else []
        if not chain.wait_settled(SETTLE_SECONDS):
            told.problems.append(f"not settled within {SETTLE_SECONDS:.0f} s")
        lines = [line for _, line in chain.lines()]
        held = held_records(settings)
        verdicts = judged(held)
        write_embedded(folder / "data", verdicts)
        address = parse_address(cluster.state.addresses["clickhouse"])
        wanted, found = read_tables(folder / "data"), read_tables(folder / "data", address)
    told.outcomes = [outcome(play, verdicts, lines, wanted, found)]
    told.problems += _against(verdicts, host)
    nobodys = Tick | ModelAnnouncement
    sent_count = len({encode(record) for record in held if not isinstance(record, nobodys) and record.host == host})
    print(f"  {host}: {sent_count} of {count} records were in time")
    if sent_count == count:
        told.problems.append(f"{host} has no gap: nothing was tried")
    return told


def held_records(settings: KafkaSettings) -> list[Record]:
    """All records and ticks of the inputs that were not late, by time."""
    late = {(h["topic"].decode(), int(h["partition"]), int(h["offset"])) for h in map(_headers, _read(settings, LATE))}
    found = {
        (record.topic, record.partition, record.offset): decode(record.value)
        for name in INPUTS
        for record in _read(settings, name)
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


def _read(settings: KafkaSettings, name: str) -> list[Any]:
    topic, found = topic_name(name, PREFIX), list[Any]()
    with consumer(settings, isolation_level="read_committed") as client:
        places = [TopicPartition(topic, number) for number in client.partitions_for_topic(topic) or ()]
        client.assign(places)
        ends = client.end_offsets(places)
        while any(client.position(place) < ends[place] for place in places):
            for records in client.poll(timeout_ms=200).values():
                found += records
    return found


def _headers(record: Any) -> dict[str, bytes]:
    return dict(record.headers)
