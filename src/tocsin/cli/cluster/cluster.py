"""Broker, Flink with the job, ClickHouse endpoint, ticker and consumer on one machine, looked after."""

from __future__ import annotations

import logging
import shutil
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from tocsin.cli.cluster.broker import Broker, BrokerConfig
from tocsin.cli.cluster.clickhouse import ClickHouseEndpoint, EndpointConfig
from tocsin.cli.cluster.endpoint_users import READER, WRITER, address_of, make_users
from tocsin.cli.cluster.flink import Flink
from tocsin.cli.cluster.flink_conf import FlinkConfig
from tocsin.cli.cluster.keeper import JobKeeper
from tocsin.cli.cluster.process import Child, Program
from tocsin.cli.cluster.signing import engine_keys
from tocsin.cli.cluster.submit import Submission, submit, wait_running
from tocsin.pipeline.identity.signed import SignatureConfig
from tocsin.pipeline.runtime.flink.options import JobOptions
from tocsin.pipeline.runtime.flink.sql import StreamOptions
from tocsin.schemas.errors import EngineError, TocsinError
from tocsin.schemas.kafka.settings import kafka_settings

_LOG = logging.getLogger("tocsin.cluster")
_READY_SECONDS: Final = 60.0
_LOOK_SECONDS: Final = 0.5
_BACKOFF_SECONDS: Final = (1.0, 30.0)
_CALM_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """What is started.

    Attributes:
        folder: all that it keeps.
        flink: the Flink cluster.
        prefix: of the topics.
        kafka_port: 0: a free one is chosen.
        clickhouse_port: 0: a free one is chosen.
        partition_count: of new input topics, None: as ``tocsin topics apply`` does.
        is_ticking: whether a ticker runs; a recording that is replayed brings ticks of its own.
        start: where the job begins to read.
        checkpoint_seconds: between two checkpoints of the job.
        job_slot_count: slots that the job uses.
        is_exactly_once: verdicts leave in transactions.
        credentials: file of all hosts' credentials: records that none of them signed are refused; "" = not asked for.
        is_player_allowed: whether a player's signature counts, for any host.
    """

    folder: Path
    flink: FlinkConfig
    prefix: str
    kafka_port: int = 0
    clickhouse_port: int = 0
    partition_count: int | None = None
    is_ticking: bool = True
    start: str = "latest"
    checkpoint_seconds: float = 5.0
    job_slot_count: int = 1
    is_exactly_once: bool = False
    credentials: str = ""
    is_player_allowed: bool = False


@dataclass(frozen=True, slots=True)
class Unit:
    """One process of the cluster.

    Attributes:
        name: of its log and in ``status``.
        child: it, None: not started yet.
        restart: starts it again.
    """

    name: str
    child: Callable[[], Child | None]
    restart: Callable[[], None]


class Cluster:
    """Starts all parts side by side, starts again what dies, and ends them."""

    def __init__(self, config: ClusterConfig) -> None:
        """Start nothing yet."""
        self._config = config
        folder = config.folder
        self.broker = Broker(BrokerConfig(folder / "kafka", config.kafka_port))
        self.flink = Flink(config.flink)
        self._signing_key, self._verdict_keys = engine_keys(folder / "keys")
        self._users = folder / "clickhouse"
        users_file = make_users(self._users)
        self.clickhouse = ClickHouseEndpoint(EndpointConfig(self._users, config.clickhouse_port, users_file))
        self.keeper = JobKeeper(lambda: self.flink.rest, config.flink.checkpoints)
        self._commands: dict[str, Child] = {}
        self._ending = threading.Event()
        self.units: list[Unit] = [
            Unit("kafka", lambda: self.broker.child, self.broker.start),
            Unit("jobmanager", lambda: self.flink.job_manager, self.flink.start_job_manager),
            Unit("clickhouse", lambda: self.clickhouse.child, self.clickhouse.start),
        ]
        for index in range(config.flink.task_manager_count):
            self.units.append(Unit(f"taskmanager-{index}", self._worker(index), self._restart_worker(index)))
        names = (["ticker"] if config.is_ticking else []) + ["sink"]
        self.units += [Unit(name, self._command(name), self._restart_command(name)) for name in names]

    @property
    def addresses(self) -> dict[str, str]:
        """Return where to reach the parts that have been started."""
        found = {}
        if self.broker.is_running():
            found["kafka"] = self.broker.address
        if self.flink.job_manager is not None:
            found["flink"] = self.flink.url
        if self.clickhouse.is_running():
            found["clickhouse"] = address_of(self.clickhouse.url, self._users, READER)
        return found

    def job_options(self) -> JobOptions:
        """Return the job's options."""
        config, prefix = self._config, self._config.prefix
        stream = StreamOptions(self.broker.address, prefix, group=f"{prefix}.flink", start=config.start)
        stream = replace(stream, is_exactly_once=config.is_exactly_once)
        signatures = SignatureConfig(config.credentials, config.is_player_allowed, str(self._signing_key))
        return JobOptions(stream, "tocsin", config.checkpoint_seconds, config.job_slot_count, signatures=signatures)

    def start_broker(self) -> None:
        """Start the broker, and make the topics."""
        from tocsin.pipeline.kafka import topics

        self.broker.start()
        config = self._config
        wish = topics.WantedTopics(config.prefix, config.partition_count, is_for_replays=not config.is_ticking)
        topics.apply(kafka_settings(self.broker.address), wish)

    def start_flink(self) -> None:
        """Start Flink; what an earlier cluster's jobs left is of no use, their time is over."""
        shutil.rmtree(self._config.flink.checkpoints, ignore_errors=True)
        self.flink.start()

    def start_job(self) -> str:
        """Submit the job and wait until it runs."""
        job_id = submit(Submission(self.job_options().to_json(), self.flink.url))
        wait_running(self.flink.rest, job_id)
        self.keeper.start()
        return job_id

    def start_command(self, name: str) -> None:
        """Start the ticker or the consumer, and wait until it works."""
        child, works = self._begin_command(name)
        child.wait_ready(lambda: child.said(works), _READY_SECONDS)

    def _begin_command(self, name: str) -> tuple[Child, str]:
        writer = address_of(self.clickhouse.url, self._users, WRITER)
        kafka = [f"--kafka={self.broker.address}", f"--topic-prefix={self._config.prefix}"]
        arguments, works = {
            "ticker": (["ticker", *kafka], "ticking"),
            "sink": (
                ["sink", "clickhouse", *kafka, f"--clickhouse={writer}", f"--verdict-keys={self._verdict_keys}"],
                "tocsin sink: ",
            ),
        }[name]
        command = [sys.executable, "-m", "tocsin", *arguments]
        log = self._config.folder / "logs" / f"{name}.log"
        if (old := self._commands.get(name)) is not None:
            old.kill()
        child = self._commands[name] = Child(Program(f"tocsin {name}", command, log))
        child.start()
        return child, works

    def logs(self) -> dict[str, str]:
        """Return the log files that there are."""
        found = {unit.name: child.program.log for unit in self.units if (child := _child(unit))}
        return {name: str(path) for name, path in found.items()}

    def processes(self) -> dict[str, int]:
        """Return the processes that run."""
        return {unit.name: child.pid for unit in self.units if (child := _child(unit)) and child.is_running()}

    def supervise(self, stop: threading.Event, on_change: Callable[[], None]) -> None:
        """Start again what dies, until ``stop``; each part by itself: one may have to wait for another."""
        for unit in self.units:
            threading.Thread(target=self._supervise, args=(unit, stop, on_change), name=unit.name, daemon=True).start()
        stop.wait()

    def stop(self) -> None:
        """End all: first those who would complain about the others."""
        self._ending.set()
        self.keeper.stop()
        for child in self._commands.values():
            child.stop()
        self.flink.stop()
        for part in (self.clickhouse, self.broker):
            part.stop()

    def _supervise(self, unit: Unit, stop: threading.Event, on_change: Callable[[], None]) -> None:
        since, wait_seconds = time.monotonic(), _BACKOFF_SECONDS[0]
        while not self._is_over(stop, _LOOK_SECONDS):
            child = _child(unit)
            if child is None or child.is_running():
                continue
            if time.monotonic() - since > _CALM_SECONDS:
                wait_seconds = _BACKOFF_SECONDS[0]
            _LOG.error("a process ended: starting it again", extra={"part": unit.name, "log": str(child.program.log)})
            on_change()
            if self._is_over(stop, wait_seconds):
                return
            since, wait_seconds = time.monotonic(), min(_BACKOFF_SECONDS[1], wait_seconds * 2)
            try:
                unit.restart()
            except TocsinError as error:
                if not self._is_over(stop, 0):
                    _LOG.error("it did not start", extra={"part": unit.name, "error": str(error)})  # a sentence
                continue
            _LOG.info("it runs again", extra={"part": unit.name})
            on_change()

    def _is_over(self, stop: threading.Event, seconds: float) -> bool:
        return stop.wait(seconds) or self._ending.is_set()

    def _worker(self, index: int) -> Callable[[], Child | None]:
        return lambda: self.flink.task_managers[index] if index < len(self.flink.task_managers) else None

    def _restart_worker(self, index: int) -> Callable[[], None]:
        return lambda: self.flink.start_task_manager(index)

    def _command(self, name: str) -> Callable[[], Child | None]:
        return lambda: self._commands.get(name)

    def _restart_command(self, name: str) -> Callable[[], None]:
        def restart() -> None:
            self._begin_command(name)  # it waits for the others by itself

        return restart


def _child(unit: Unit) -> Child | None:
    try:
        return unit.child()
    except EngineError:
        return None  # never started
