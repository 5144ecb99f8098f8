"""``tocsin cluster up`` as a user runs it, and the processes of it that can be killed."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.collectors.peer import wait_until
from tests.conftest import ROOT
from tocsin.cli.cluster.process import Child, Program
from tocsin.cli.cluster.state import ClusterState, last_state, read_state
from tocsin.pipeline.runtime.flink.rest import FlinkRest
from tocsin.schemas.errors import EngineError

UP_SECONDS = 240.0
COMPONENTS = ("kafka", "taskmanager-0", "python", "jobmanager", "clickhouse", "sink")
"""What can be killed; ``python``: the TaskManager's workers alone (with ``taskmanager-0`` they die too)."""
JOB = "tocsin"
_WORKER = b"pyflink"


class ClusterUp:
    """A cluster of its own in a folder; whatever dies comes back by its own means, never by ours."""

    def __init__(self, folder: Path, prefix: str, *flags: str) -> None:
        """Start nothing yet."""
        self.folder = folder / "cluster"
        self.prefix = prefix
        fixed = ["--no-ticker", "--no-controller", "--start=earliest", "--partitions=2"]
        command = [sys.executable, "-m", "tocsin", "cluster", "up", f"--folder={self.folder}"]
        command += [f"--topic-prefix={prefix}", *fixed, *flags]
        self._child = Child(Program("tocsin cluster up", command, folder / "up.log", folder=ROOT))

    def start(self) -> None:
        """Start it, and wait until it is ready."""
        self._child.start()

        def is_up() -> bool:
            self.check()
            state = read_state(self.folder)
            return state is not None and state.phase == "running"

        wait_until(is_up, UP_SECONDS)

    def check(self) -> None:
        """Look whether the command itself lives: it must outlive all that it looks after."""
        if not self._child.is_running():
            raise EngineError(f"'tocsin cluster up' ended; it says: {self._child.log_tail()}")

    @property
    def state(self) -> ClusterState:
        found = last_state(self.folder)
        if found is None:
            raise EngineError(f"no cluster in {self.folder}")
        return found

    @property
    def rest(self) -> FlinkRest:
        return FlinkRest(self.state.addresses["flink"])

    def pids(self, component: str) -> list[int]:
        """The living processes of a component."""
        processes = self.state.processes
        if component == "python":
            return python_workers(processes.get("taskmanager-0", 0))
        pid = processes.get(component, 0)
        if not pid or not _is_alive(pid):
            return []
        return [pid, *(python_workers(pid) if component == "taskmanager-0" else [])]

    def strike(self, component: str) -> list[int]:
        """Kill a component with -9; which processes that were, [] = it does not run now."""
        found = self.pids(component)
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return found

    def is_whole(self) -> bool:
        """Whether all its parts live and its job runs."""
        with contextlib.suppress(EngineError):
            is_running = any(job.name == JOB and job.is_running for job in self.rest.jobs())
            return is_running and all(self.pids(component) for component in COMPONENTS)
        return False

    def end(self) -> None:
        """End it as Ctrl-C does, and see that nobody is left."""
        members = [pid for pid in self.state.processes.values() if _is_alive(pid)]
        os.kill(self._child.pid, signal.SIGINT)
        status = self._child.wait(60)
        if status != 0:
            raise EngineError(f"'tocsin cluster up' ended with {status}: {self._child.log_tail()}")
        wait_until(lambda: not any(map(_is_alive, members)), 60)

    def kill(self) -> None:
        """End it in whatever state it is."""
        self._child.kill()


@contextlib.contextmanager
def cluster_up(folder: Path, prefix: str, *flags: str) -> Iterator[ClusterUp]:
    """A cluster that runs; ended in order where all went well."""
    cluster = ClusterUp(folder, prefix, *flags)
    try:
        cluster.start()
        yield cluster
        cluster.end()
    finally:
        cluster.kill()


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    """Wait for something; False: it did not come."""
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.1)
    return True


def python_workers(parent: int) -> list[int]:
    """The Python processes of Flink below a process."""
    parents: dict[int, list[int]] = {}
    for place in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            fields = (place / "stat").read_text().rpartition(")")[2].split()
            parents.setdefault(int(fields[1]), []).append(int(place.name))
    found, below = [], [parent] if parent else []
    while below:
        children = parents.get(below.pop(), [])
        below += children
        found += [pid for pid in children if _is_worker(pid)]
    return found


def _is_worker(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return _WORKER in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def _is_alive(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    return False
