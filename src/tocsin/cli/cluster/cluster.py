"""Runs broker, Flink with the job, ClickHouse endpoint and tocsin's commands on one machine; restarts what dies."""

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
from tocsin.cli.cluster.commands import CommandConfig, arguments_of, works_text
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
    """Settings of a cluster.

    Attributes:
        folder: folder that holds everything the cluster keeps.
        flink: settings of the Flink cluster.
        prefix: prefix of the topics' names.
        kafka_port: the broker's port, 0: a free one is chosen.
        clickhouse_port: the endpoint's port, 0: a free one is chosen.
        partition_count: partitions of new input topics, None: the default of ``tocsin topics apply``.
        is_ticking: whether a ticker runs; a replayed recording brings its own ticks.
        start: where in the topics the job begins to read.
        checkpoint_seconds: time between two checkpoints of the job.
        job_slot_count: Flink slots that the job uses (its parallelism).
        is_exactly_once: whether verdicts are written in Kafka transactions.
        credentials: file of all hosts' credentials; records not signed with one are refused. "": no signatures are
            required.
        is_player_allowed: whether a signature by the player of recordings is accepted for any host.
        has_controller: whether a controller runs, which judges the fleet and takes people's notes.
        alerts: routes file of the sender of alerts, "": none runs.
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
    has_controller: bool = True
    alerts: str = ""


@dataclass(frozen=True, slots=True)
class Unit:
    """One supervised process of the cluster.

    Attributes:
        name: its name in logs and in ``status``.
        child: function that returns the process, None: not started yet.
        restart: function that starts it again.
    """

    name: str
    child: Callable[[], Child | None]
    restart: Callable[[], None]


class Cluster:
    """Starts all parts of the cluster in parallel, restarts those that die, and stops them."""

    def __init__(self, config: ClusterConfig) -> None:
        """Prepare the parts, and write keys and users; start no process yet."""
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
        self.commands = CommandConfig(
            config.prefix,
            self._signing_key,
            self._verdict_keys,
            config.is_ticking,
            config.has_controller,
            config.alerts,
            config.credentials,
            config.is_player_allowed,
        )
        names = self.commands.names()
        self.units += [Unit(name, self._command(name), self._restart_command(name)) for name in names]

    @property
    def addresses(self) -> dict[str, str]:
        """Addresses of the parts that have been started, by name."""
        found = {}
        if self.broker.is_running():
            found["kafka"] = self.broker.address
        if self.flink.job_manager is not None:
            found["flink"] = self.flink.url
        if self.clickhouse.is_running():
            found["clickhouse"] = address_of(self.clickhouse.url, self._users, READER)
        return found

    def job_options(self) -> JobOptions:
        """Return the options of the Flink job."""
        config, prefix = self._config, self._config.prefix
        stream = StreamOptions(self.broker.address, prefix, group=f"{prefix}.flink", start=config.start)
        stream = replace(stream, is_exactly_once=config.is_exactly_once)
        signatures = SignatureConfig(config.credentials, config.is_player_allowed, str(self._signing_key))
        return JobOptions(stream, "tocsin", config.checkpoint_seconds, config.job_slot_count, signatures=signatures)

    def start_broker(self) -> None:
        """Start the broker and create the topics."""
        from tocsin.pipeline.kafka import topics

        self.broker.start()
        config = self._config
        wish = topics.WantedTopics(config.prefix, config.partition_count, is_for_replays=not config.is_ticking)
        topics.apply(kafka_settings(self.broker.address), wish)

    def start_flink(self) -> None:
        """Start Flink; checkpoints of an earlier cluster are deleted, because its jobs are gone."""
        shutil.rmtree(self._config.flink.checkpoints, ignore_errors=True)
        self.flink.start()

    def start_job(self) -> str:
        """Submit the job, wait until it runs, begin to watch it, and return its ID."""
        job_id = submit(Submission(self.job_options().to_json(), self.flink.url))
        wait_running(self.flink.rest, job_id)
        self.keeper.start()
        return job_id

    def start_command(self, name: str) -> None:
        """Start a command of tocsin, and wait until its log says that it works."""
        child = self._begin_command(name)
        child.wait_ready(lambda: child.said(works_text(name)), _READY_SECONDS)

    def _begin_command(self, name: str) -> Child:
        """Start a command of tocsin, and return the process."""

        def writer() -> str:
            return address_of(self.clickhouse.url, self._users, WRITER)

        arguments = arguments_of(name, self.commands, self.broker.address, writer)
        command = [sys.executable, "-m", "tocsin", *arguments]
        log = self._config.folder / "logs" / f"{name}.log"
        if (old := self._commands.get(name)) is not None:
            old.kill()
        child = self._commands[name] = Child(Program(f"tocsin {name}", command, log))
        child.start()
        return child

    def logs(self) -> dict[str, str]:
        """Return the log file of each part that has been started, by name."""
        found = {unit.name: child.program.log for unit in self.units if (child := _child(unit))}
        return {name: str(path) for name, path in found.items()}

    def processes(self) -> dict[str, int]:
        """Return the process ID of each part that runs, by name."""
        return {unit.name: child.pid for unit in self.units if (child := _child(unit)) and child.is_running()}

    def supervise(self, stop: threading.Event, on_change: Callable[[], None]) -> None:
        """Restart processes that die, until ``stop`` is set.

        Each part has a thread of its own, because one part may have to wait for another.
        """
        for unit in self.units:
            threading.Thread(target=self._supervise, args=(unit, stop, on_change), name=unit.name, daemon=True).start()
        stop.wait()

    def stop(self) -> None:
        """Stop all parts; first those that would log errors when the others disappear."""
        self._ending.set()
        self.keeper.stop()
        for child in self._commands.values():
            child.stop()
        self.flink.stop()
        for part in (self.clickhouse, self.broker):
            part.stop()

    def _supervise(self, unit: Unit, stop: threading.Event, on_change: Callable[[], None]) -> None:
        """Watch one process and restart it when it dies, after a wait that doubles up to a limit."""
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
        """Wait up to ``seconds``, and return whether the cluster is ending."""
        return stop.wait(seconds) or self._ending.is_set()

    def _worker(self, index: int) -> Callable[[], Child | None]:
        """Return a function that returns the process of TaskManager ``index``, None: not started yet."""
        return lambda: self.flink.task_managers[index] if index < len(self.flink.task_managers) else None

    def _restart_worker(self, index: int) -> Callable[[], None]:
        """Return a function that restarts TaskManager ``index``."""
        return lambda: self.flink.start_task_manager(index)

    def _command(self, name: str) -> Callable[[], Child | None]:
        """Return a function that returns the process of a command, None: not started yet."""
        return lambda: self._commands.get(name)

    def _restart_command(self, name: str) -> Callable[[], None]:
        """Return a function that restarts a command."""

        def restart() -> None:
            self._begin_command(name)  # it waits for the others by itself

        return restart


def _child(unit: Unit) -> Child | None:
    """Return the unit's process, None if it was never started."""
    try:
        return unit.child()
    except EngineError:
        return None  # never started
