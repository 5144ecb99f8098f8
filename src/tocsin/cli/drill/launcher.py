"""Starts a drill's job: ranks from a forkserver, an agent for each, a supervisor for all."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import threading
import time
from multiprocessing import connection, forkserver
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import cast

from tocsin.cli.drill import relay
from tocsin.cli.drill.board import Board
from tocsin.cli.drill.engine import DrillEngine, DrillError
from tocsin.cli.drill.faults import Outside
from tocsin.cli.drill.judge import host_name
from tocsin.cli.drill.plan import DrillPlan
from tocsin.cli.drill.preload import GROUP_VARIABLE
from tocsin.cli.drill.processes import ProcessGroup, kill_quietly
from tocsin.cli.drill.rank import main as rank_main
from tocsin.cli.drill.rank_config import RankConfig, StepTimes
from tocsin.cli.drill.result import RankExit
from tocsin.collectors.exec.command import send_exit

CLUSTER = "drill"
_AGENT_START_SECONDS = 30.0
_STDERR_BYTES = 4096
_SLOW_FIRST_STEP_SECONDS = 5.0
"""In a long healthy job, as a compilation would take it."""


def warm_up(processes: ProcessGroup) -> ForkServerContext:
    """Start the forkserver, which imports torch while this process does something else.

    Args:
        processes: the group that the forkserver, and so each rank, joins.

    Returns:
        The context that makes ranks.
    """
    os.environ[GROUP_VARIABLE] = str(processes.group)
    os.environ["TMPDIR"] = str(processes.folder)  # torch's temporary files go when the work folder goes
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tocsin.cli.drill.preload"])
    forkserver.ensure_running()
    return context


class DrillJob:
    """A running job: ranks, their agents, the page shared with them."""

    def __init__(self, plan: DrillPlan, job_id: str, processes: ProcessGroup) -> None:
        """Lay out the job's folder; ``start`` starts it.

        Args:
            plan: the drill.
            job_id: the job's name.
            processes: the drill's group.
        """
        self.plan, self.job_id = plan, job_id
        self._processes = processes
        self.folder = processes.folder / job_id
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

    def start(self, context: ForkServerContext, engine: DrillEngine) -> None:
        """Start ranks and agents; the ranks begin when every agent listens.

        Raises:
            DrillError: an agent does not come up.
        """
        if self._relay_socket is not None:
            self._start_relay(self._relay_socket)
        for rank in range(self.plan.rank_count):
            process = context.Process(target=rank_main, args=(self._config(rank),), daemon=True)
            process.start()
            self._ranks.append(process)
        self._supervisor.start()
        for rank in range(self.plan.rank_count):
            self._agents.append(self._start_agent(rank, engine))
        self._wait_for_agents()
        self.board.open_gate()

    def pid(self, rank: int) -> int:
        """The process of a rank."""
        pid = self._ranks[rank].pid
        if pid is None:
            raise DrillError(f"rank {rank} was not started")
        return pid

    def agent_pid(self, rank: int) -> int:
        """The process of a rank's agent."""
        return self._agents[rank].pid

    def ended(self) -> bool:
        """Whether all ranks are gone."""
        return len(self.exits) == len(self._ranks)

    def stderr_of(self, rank: int) -> str:
        """What a rank wrote so far."""
        path = self.folder / f"err{rank}"
        return path.read_text(errors="replace") if path.exists() else ""

    def stop(self) -> None:
        """End what is left of it, agents first: the end of a drill is no news for the engine."""
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
        return RankConfig(
            rank=rank,
            world_size=self.plan.rank_count,
            tensor_parallel=2 if self.plan.rank_count % 2 == 0 and self.plan.rank_count > 2 else 1,
            cluster=CLUSTER,
            job_id=self.job_id,
            seed=self.plan.seed,
            store_path=self.folder / "store",
            board_path=self.folder / "board",
            checkpoint_folder=self.folder,
            stderr_path=self.folder / f"err{rank}",
            agent_socket=self._agent_socket(rank),
            pace=StepTimes(first_step_seconds=_SLOW_FIRST_STEP_SECONDS) if self.plan.healthy_seconds else StepTimes(),
            pauses=self.plan.pauses,
            relay_socket=self._relay_socket if rank == self.plan.rank else None,
        )

    def delay_traffic(self, seconds: float) -> None:
        """Let the struck rank's traffic take longer from now on.

        Raises:
            DrillError: the job was started without a relay.
        """
        if self._relay_socket is None:
            raise DrillError("this job has no relay")
        relay.ask(str(self._relay_socket), f"delay {seconds}")

    def _start_relay(self, path: Path) -> None:
        self._relay = [self._processes.start([sys.executable, relay.__file__, str(path)], self.folder / "relay.log")]
        deadline = time.monotonic() + _AGENT_START_SECONDS
        while not path.exists():
            if time.monotonic() > deadline:
                raise DrillError("the relay did not come up")
            time.sleep(0.02)

    def _agent_socket(self, rank: int) -> Path:
        return self.folder / f"a{rank}"

    def _start_agent(self, rank: int, engine: DrillEngine) -> subprocess.Popen[bytes]:
        command = [
            *(sys.executable, "-m", "tocsin", "agent"),
            *("--engine", f"unix:{engine.listen}"),
            *("--token-file", str(engine.tokens.file_of(host_name(rank)))),
            *("--socket", str(self._agent_socket(rank))),
            *("--host", host_name(rank)),
            *("--cluster", CLUSTER),
            *("--spool-dir", str(self.folder / f"spool{rank}")),
            *("--as-process-tree", str(self.pid(rank))),
            *("--metrics-listen", ""),
        ]
        return self._processes.start(command, self.folder / f"agent{rank}.log")

    def _wait_for_agents(self) -> None:
        deadline = time.monotonic() + _AGENT_START_SECONDS
        for rank, agent in enumerate(self._agents):
            while not self._agent_socket(rank).exists():
                if agent.poll() is not None or time.monotonic() > deadline:
                    log = (self.folder / f"agent{rank}.log").read_text(errors="replace")[-800:]
                    raise DrillError(f"the agent of rank {rank} did not come up: {log.strip() or 'no words'}")
                time.sleep(0.02)

    def _supervise(self) -> None:
        """What ``tocsin exec`` does for one process, for all ranks: tell each agent of the end."""
        waiting = {process.sentinel: rank for rank, process in enumerate(self._ranks)}
        while waiting:
            for ready in connection.wait(list(waiting)):
                self._report_exit(waiting.pop(cast("int", ready)))

    def _report_exit(self, rank: int) -> None:
        at_ns = time.time_ns()
        process = self._ranks[rank]
        process.join()
        code = process.exitcode
        tail = self.stderr_of(rank)[-_STDERR_BYTES:]
        if self._reports_exits and code is not None:
            job = (CLUSTER, self.job_id, 0)
            send_exit(str(self._agent_socket(rank)), job, rank, self.pid(rank), code, tail)
        self.exits.append(RankExit(rank, -1 if code is None else code, at_ns, tail))
