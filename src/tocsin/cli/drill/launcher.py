"""Starts a drill's job: ranks from a forkserver, an agent for each rank, and a thread that reports exits."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing import connection, forkserver
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Protocol, cast

from tocsin.cli.drill import relay
from tocsin.cli.drill.board import Board
from tocsin.cli.drill.engine import DrillError
from tocsin.cli.drill.faults import Outside
from tocsin.cli.drill.judge import host_name
from tocsin.cli.drill.plan import DrillPlan
from tocsin.cli.drill.preload import GROUP_VARIABLE
from tocsin.cli.drill.rank import main as rank_main
from tocsin.cli.drill.rank_config import CheckpointPlan, RankConfig, StepTimes
from tocsin.cli.drill.result import RankExit
from tocsin.cli.processes import kill_quietly
from tocsin.collectors.exec.command import send_exit
from tocsin.collectors.exec.start import send_start

CLUSTER = "drill"
_AGENT_START_SECONDS = 30.0
_STDERR_BYTES = 4096
_SLOW_FIRST_STEP_SECONDS = 5.0
"""Duration of the first step of a long healthy job, as if the model were being compiled."""


def warm_up(folder: Path, group: int) -> ForkServerContext:
    """Start the forkserver, which imports torch in the background.

    Args:
        folder: folder of temporary files.
        group: process group that the forkserver and its ranks join.

    Returns:
        The multiprocessing context that creates ranks.
    """
    os.environ[GROUP_VARIABLE] = str(group)
    os.environ["TMPDIR"] = str(folder)  # torch's temporary files go when the work folder goes
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tocsin.cli.drill.preload"])
    forkserver.ensure_running()
    return context


class JobProcesses(Protocol):
    """The process group in which a job runs.

    Attributes:
        folder: the drill's work folder.
    """

    folder: Path

    def start(self, command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        """Start a command in the group, its output appended to a file."""
        ...

    def end(self, *, pids: Sequence[int] = (), children: Sequence[subprocess.Popen[bytes]] = ()) -> None:
        """Kill some members now."""
        ...


class AgentHome(Protocol):
    """Where agents send."""

    def agent_words(self, host: str) -> Sequence[str]:
        """Return the words of an agent's command line that say where it sends, and with which credential."""
        ...


@dataclass(frozen=True, slots=True)
class Attempt:
    """Which attempt of a job runs where.

    Attributes:
        number: number of restarts of the job so far.
        hosts: name of each rank's host.
        checkpoints: where the job keeps what a later attempt goes on with, None: it cannot go on.
        has_agents: whether the hosts have agents.
        pace: durations of the parts of a step.
    """

    number: int
    hosts: tuple[str, ...]
    checkpoints: CheckpointPlan | None = None
    has_agents: bool = True
    pace: StepTimes = field(default_factory=StepTimes)


class DrillJob:
    """A running job: its ranks, their agents and the shared page."""

    def __init__(self, plan: DrillPlan, job_id: str, processes: JobProcesses, attempt: Attempt | None = None) -> None:
        """Create the job's folder; ``start`` starts the job.

        Args:
            plan: the drill's plan.
            job_id: name of the job.
            processes: process group of the drill.
            attempt: which attempt runs where, None: the only one, on the hosts n0, n1 and so on.
        """
        self.plan, self.job_id = plan, job_id
        pace = StepTimes(first_step_seconds=_SLOW_FIRST_STEP_SECONDS) if plan.healthy_seconds else StepTimes()
        names = tuple(host_name(rank) for rank in range(plan.rank_count))
        self.attempt = attempt or Attempt(0, names, pace=pace)
        self._processes = processes
        number = self.attempt.number
        self.folder = processes.folder / (f"{job_id}.{number}" if number else job_id)
        self.folder.mkdir()
        self.board = Board.create(self.folder / "board", plan.rank_count)
        self.exits: list[RankExit] = []
        self._ranks: list[ForkServerProcess] = []
        self._agents: list[subprocess.Popen[bytes]] = []
        self._supervisor = threading.Thread(target=self._supervise, name="supervisor", daemon=True)
        self._reports_exits = True
        needs_relay = plan.kind.outside is Outside.SLOW_RELAY
        self._relay_socket = self.folder / "relay" if needs_relay else None
        self._relay: list[subprocess.Popen[bytes]] = []

    def start(self, context: ForkServerContext, engine: AgentHome) -> None:
        """Start ranks and agents; the ranks begin to train once every agent listens.

        Raises:
            DrillError: an agent or the relay does not start.
        """
        if self._relay_socket is not None:
            self._start_relay(self._relay_socket)
        for rank in range(self.plan.rank_count):
            process = context.Process(target=rank_main, args=(self._config(rank),), daemon=True)
            process.start()
            self._ranks.append(process)
        self._supervisor.start()
        if self.attempt.has_agents:
            for rank in range(self.plan.rank_count):
                self._agents.append(self._start_agent(rank, engine))
            self._wait_for_agents()
        if self.plan.kind.outside is Outside.LATE_START:
            self._tell_starts()
        self.board.open_gate()

    def pid(self, rank: int) -> int:
        """Return the process ID of a rank."""
        pid = self._ranks[rank].pid
        if pid is None:
            raise DrillError(f"rank {rank} was not started")
        return pid

    def agent_pid(self, rank: int) -> int:
        """Return the process ID of a rank's agent."""
        return self._agents[rank].pid

    def ended(self) -> bool:
        """Return whether all ranks have ended."""
        return len(self.exits) == len(self._ranks)

    def stderr_of(self, rank: int) -> str:
        """Return what a rank has written to stderr so far."""
        path = self.folder / f"err{rank}"
        return path.read_text(errors="replace") if path.exists() else ""

    def end_agents(self, seconds: float) -> None:
        """Let the agents send what they hold and end in order, each within some seconds; ``stop`` ends the rest."""
        for agent in self._agents:
            agent.terminate()
        for agent in self._agents:
            with contextlib.suppress(subprocess.TimeoutExpired):
                agent.wait(seconds)

    def stop(self) -> None:
        """End all processes of the job, agents first, so that the engine does not see the ranks' end as a fault."""
        self._reports_exits = False
        self._processes.end(children=self._agents)
        for process in self._ranks:
            if process.pid is not None and process.pid not in {self.pid(item.rank) for item in self.exits}:
                kill_quietly(process.pid)
        if self._supervisor.ident is not None:  # interrupted before it was started
            self._supervisor.join(timeout=5.0)
        self._processes.end(children=self._relay)
        self.board.close()

    def _config(self, rank: int) -> RankConfig:
        """Return the configuration of a rank."""
        return RankConfig(
            rank=rank,
            world_size=self.plan.rank_count,
            tensor_parallel=self._tensor_parallel(),
            stage_count=self.plan.kind.stage_count,
            has_own_batches=self.plan.kind.has_own_batches,
            cluster=CLUSTER,
            job_id=self.job_id,
            seed=self.plan.seed,
            store_path=self.folder / "store",
            board_path=self.folder / "board",
            checkpoint_folder=self.folder,
            stderr_path=self.folder / f"err{rank}",
            agent_socket=self._agent_socket(rank),
            pace=self.attempt.pace,
            pauses=self.plan.pauses,
            relay_socket=self._relay_socket if rank == self.plan.rank else None,
            attempt=self.attempt.number,
            checkpoints=self.attempt.checkpoints,
            start_seconds=self._start_seconds(rank),
        )

    def _start_seconds(self, rank: int) -> float | None:
        """Return how long a rank sleeps before it joins the others, None: the drill is not about the start."""
        if self.plan.kind.outside is not Outside.LATE_START:
            return None
        return self.plan.magnitude if rank == self.plan.rank else 0.0

    def _tell_starts(self) -> None:
        """Tell each agent that its rank starts, as ``tocsin exec`` does."""
        for rank in range(self.plan.rank_count):
            send_start(str(self._agent_socket(rank)), (CLUSTER, self.job_id, self.attempt.number), rank)

    def _tensor_parallel(self) -> int:
        """Return the size of the tensor-parallel groups; a pipeline, and ranks with batches of their own, have none."""
        has_pairs = self.plan.rank_count % 2 == 0 and self.plan.rank_count > 2
        is_alone = self.plan.kind.stage_count > 1 or self.plan.kind.has_own_batches
        return 2 if has_pairs and not is_alone else 1

    def delay_traffic(self, seconds: float) -> None:
        """Delay the traffic of the rank with the fault by ``seconds`` from now on.

        Raises:
            DrillError: the job was started without a relay.
        """
        if self._relay_socket is None:
            raise DrillError("this job has no relay")
        relay.ask(str(self._relay_socket), f"delay {seconds}")

    def _start_relay(self, path: Path) -> None:
        """Start the relay and wait until its socket exists."""
        self._relay = [self._processes.start([sys.executable, relay.__file__, str(path)], self.folder / "relay.log")]
        deadline = time.monotonic() + _AGENT_START_SECONDS
        while not path.exists():
            if time.monotonic() > deadline:
                raise DrillError("the relay did not come up")
            time.sleep(0.02)

    def _agent_socket(self, rank: int) -> Path:
        """Return the path of the socket of a rank's agent."""
        return self.folder / f"a{rank}"

    def _start_agent(self, rank: int, engine: AgentHome) -> subprocess.Popen[bytes]:
        """Start the agent of a rank and return its process."""
        command = [
            *(sys.executable, "-m", "tocsin", "agent"),
            *engine.agent_words(self.attempt.hosts[rank]),
            *("--socket", str(self._agent_socket(rank))),
            *("--host", self.attempt.hosts[rank]),
            *("--cluster", CLUSTER),
            *("--spool-dir", str(self.folder / f"spool{rank}")),
            *("--as-process-tree", str(self.pid(rank))),
            *("--metrics-listen", ""),
        ]
        return self._processes.start(command, self.folder / f"agent{rank}.log")

    def _wait_for_agents(self) -> None:
        """Wait until every agent's socket exists; raise DrillError if one does not start."""
        deadline = time.monotonic() + _AGENT_START_SECONDS
        for rank, agent in enumerate(self._agents):
            while not self._agent_socket(rank).exists():
                if agent.poll() is not None or time.monotonic() > deadline:
                    log = (self.folder / f"agent{rank}.log").read_text(errors="replace")[-800:]
                    raise DrillError(f"the agent of rank {rank} did not come up: {log.strip() or 'no words'}")
                time.sleep(0.02)

    def _supervise(self) -> None:
        """Wait for the ranks to end and report each exit to its agent, as ``tocsin exec`` does for one process."""
        waiting = {process.sentinel: rank for rank, process in enumerate(self._ranks)}
        while waiting:
            for ready in connection.wait(list(waiting)):
                self._report_exit(waiting.pop(cast("int", ready)))

    def _report_exit(self, rank: int) -> None:
        """Report the exit of a rank to its agent, and store it."""
        at_ns = time.time_ns()
        process = self._ranks[rank]
        process.join()
        code = process.exitcode
        tail = self.stderr_of(rank)[-_STDERR_BYTES:]
        if self._reports_exits and code is not None:
            job = (CLUSTER, self.job_id, self.attempt.number)
            send_exit(str(self._agent_socket(rank)), job, rank, self.pid(rank), code, tail)
        self.exits.append(RankExit(rank, -1 if code is None else code, at_ns, tail))
