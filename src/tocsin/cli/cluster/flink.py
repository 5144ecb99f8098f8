"""Starts and stops a Flink cluster on loopback, from the apache-flink wheel: a JobManager and its TaskManagers."""

from __future__ import annotations

import shutil
from typing import Final

from tocsin.cli.cluster.flink_conf import HOST, FlinkConfig, flink_environment, flink_home, settings_of, write_conf
from tocsin.cli.cluster.jars import java
from tocsin.cli.cluster.process import Child, Program, free_port
from tocsin.pipeline.runtime.flink.rest import FlinkRest
from tocsin.schemas.errors import EngineError

READY_SECONDS: Final = 120.0
_TRIES: Final = 3
_TAKEN: Final = ("Address already in use", "Could not start rest endpoint", "java.net.BindException")


class Flink:
    """A Flink cluster; it keeps its ports, checkpoints and savepoints over ``stop`` and ``start``.

    Jobs do not survive the end of the JobManager: whoever restarts it submits them again from their newest checkpoint.
    """

    def __init__(self, config: FlinkConfig) -> None:
        """Create the object; ``start`` starts the processes."""
        self.config = config
        self._home = flink_home()
        self._rest_port = config.rest_port
        self._rpc_port = 0
        self.job_manager: Child | None = None
        self.task_managers: list[Child] = []

    @property
    def url(self) -> str:
        """URL of the REST interface and of the web pages."""
        return f"http://{HOST}:{self._rest_port}"

    @property
    def rest(self) -> FlinkRest:
        """A client of the REST interface."""
        return FlinkRest(self.url)

    def start(self) -> None:
        """Start all processes and wait until every task slot is registered.

        Raises:
            EngineError: Java is missing, or a process does not become ready.
        """
        java()
        if self._rpc_port:
            self._run()
            return
        for last in (*[False] * (_TRIES - 1), True):
            self._rest_port = self.config.rest_port or free_port()
            self._rpc_port = free_port()
            try:
                self._run()
            except EngineError:
                # somebody else took a port since it was found free
                child = self.job_manager
                if last or self.config.rest_port or child is None or not any(map(child.said, _TAKEN)):
                    raise
            else:
                return

    def stop(self) -> None:
        """Stop all processes in an orderly way; checkpoints are kept."""
        for child in [*self.task_managers, *([self.job_manager] if self.job_manager else [])]:
            child.stop()
        shutil.rmtree(self.config.folder / "tmp", ignore_errors=True)

    def is_running(self) -> bool:
        """Return whether every started process runs."""
        children = [*self.task_managers, *([self.job_manager] if self.job_manager else [])]
        return bool(children) and all(child.is_running() for child in children)

    def start_job_manager(self) -> None:
        """Start or restart the JobManager; the TaskManagers reconnect by themselves."""
        self.job_manager = self._start("jobmanager", "the Flink JobManager", [])

    def start_task_manager(self, index: int) -> None:
        """Start or restart one TaskManager; processes that the dead one left behind are killed."""
        # the same name: the JobManager then knows at once that the old one is gone
        name = f"taskmanager-{index}"
        child = self._start(name, f"the Flink TaskManager {index}", ["-D", f"taskmanager.resource-id={name}"])
        self.task_managers[index : index + 1] = [child]

    def wait_ready(self, seconds: float = READY_SECONDS) -> None:
        """Wait until every task slot is registered.

        Raises:
            EngineError: a process ended, or it took too long.
        """
        if self.job_manager is None:
            raise EngineError("Flink was never started")
        self.job_manager.wait_ready(self._answers, seconds)
        for child in self.task_managers:
            child.wait_ready(self._has_slots, seconds)

    def _run(self) -> None:
        """Start all processes and wait until they are ready; stop them all if they do not become ready."""
        self.start_job_manager()
        for index in range(self.config.task_manager_count):
            self.start_task_manager(index)
        try:
            self.wait_ready()
        except EngineError:
            self.stop()
            raise

    def _start(self, name: str, title: str, arguments: list[str]) -> Child:
        """Write one process's configuration, kill its predecessor, start it and return it."""
        folder = self.config.folder
        conf, logs = folder / "conf" / name, folder / "logs"
        for made in (logs, folder / "tmp", self.config.checkpoints, self.config.savepoints):
            made.mkdir(parents=True, exist_ok=True)
        write_conf(self._home, conf, settings_of(self.config, self._rest_port, self._rpc_port, self._home))
        script = self._home / "bin" / f"{name.partition('-')[0]}.sh"
        command = ["bash", str(script), "start-foreground", *arguments]
        old = self.job_manager if name == "jobmanager" else self._task_manager(name)
        if old is not None:
            old.kill()
        child = Child(Program(title, command, logs / f"{name}.log", flink_environment(self._home, conf, logs)))
        child.start()
        return child

    def _task_manager(self, name: str) -> Child | None:
        """Return the TaskManager with this name, None: not started yet."""
        index = int(name.rpartition("-")[2])
        return self.task_managers[index] if index < len(self.task_managers) else None

    def _answers(self) -> bool:
        """Return whether the REST interface answers."""
        try:
            self.rest.overview()
        except EngineError:
            return False
        return True

    def _has_slots(self) -> bool:
        """Return whether every task slot is registered."""
        try:
            found = self.rest.overview()
        except EngineError:
            return False
        config = self.config
        return found.slot_count >= config.task_manager_count * config.slot_count
