"""Made-up jobs on made-up hosts with real agents: each job is healthy for a while, then one rank of it ails."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import struct
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.chaos import fake_rank
from tests.conftest import ROOT
from tocsin.cli.cluster.process import Child, Program
from tocsin.collectors.exec.command import send_exit

HOSTS: Final = ("n0", "n1", "n2", "n3")
KINDS: Final = ("freeze", "kill", "slow", "crash", "nan", "loader")
WARM_SECONDS: Final = 15.0
WATCH_SECONDS: Final = 17.0
_REST_SECONDS: Final = 2.0
CLUSTER: Final = "chaos"


@dataclass(frozen=True)
class Fault:
    """One job's.

    Attributes:
        job_id: whose.
        kind: of ``KINDS``.
        rank: who ails.
        begin_seconds: when the job begins, since the round's start.
        watch_seconds: how long the job stays as it is after its fault.
        warm_seconds: how long it is healthy before.
    """

    job_id: str
    kind: str
    rank: int
    begin_seconds: float
    watch_seconds: float = WATCH_SECONDS
    warm_seconds: float = WARM_SECONDS

    @property
    def onset_seconds(self) -> float:
        return self.begin_seconds + self.warm_seconds

    @property
    def end_seconds(self) -> float:
        return self.onset_seconds + self.watch_seconds + _REST_SECONDS


class Agents:
    """The hosts' agents, whose records are kept as they make them."""

    def __init__(self, folder: Path, engine: str) -> None:
        self.folder = folder
        self._children = [self._agent(host, engine) for host in HOSTS]

    def _agent(self, host: str, engine: str) -> Child:
        own = self.folder / host
        own.mkdir()
        command = [sys.executable, "-m", "tests.chaos.tee_agent", str(self.kept(host))]
        command += ["--engine", engine, "--socket", str(self.socket(host)), "--host", host, "--cluster", CLUSTER]
        command += ["--spool-dir", str(own / "spool"), "--nvml", "off", "--rdma", "off", "--kmsg-path", ""]
        command += ["--metrics-listen", ""]
        return Child(Program(f"agent {host}", command, own / "agent.log", folder=ROOT))

    def socket(self, host: str) -> Path:
        return self.folder / host / "a.sock"

    def kept(self, host: str) -> Path:
        return self.folder / host / "records"

    def start(self) -> None:
        for child in self._children:
            child.start()
        for child, host in zip(self._children, HOSTS, strict=True):
            child.wait_ready(self.socket(host).exists, 60)

    def stop(self) -> None:
        for child in self._children:
            child.stop()


class Job:
    """A job's processes."""

    def __init__(self, fault: Fault, agents: Agents, folder: Path) -> None:
        self.fault, self._agents = fault, agents
        self._board = folder / f"{fault.job_id}.board"
        rows = [fake_rank.ROW.pack(0, 1.0, 0.0, 0, 0) for _ in HOSTS]
        self._board.write_bytes(b"".join(rows))
        self._processes: list[subprocess.Popen[bytes]] = []
        self._reported: set[int] = set()

    def run(self, begun: float) -> None:
        """Be healthy, ail, be watched, end: in time."""
        _until(begun + self.fault.begin_seconds)
        self._start()
        supervisor = threading.Thread(target=self._supervise, daemon=True)
        supervisor.start()
        _until(begun + self.fault.onset_seconds)
        self._strike()
        _until(begun + self.fault.onset_seconds + self.fault.watch_seconds)
        self._end()
        supervisor.join(60)

    def _start(self) -> None:
        for rank, host in enumerate(HOSTS):
            order = {
                "cluster": CLUSTER,
                "job_id": self.fault.job_id,
                "rank": rank,
                "world": len(HOSTS),
                "agent": str(self._agents.socket(host)),
                "board": str(self._board),
            }
            command = [sys.executable, "-S", "-E", fake_rank.__file__, json.dumps(order)]
            self._processes.append(subprocess.Popen(command))

    def _supervise(self) -> None:
        """Tell each process's end to its agent, as ``tocsin exec`` does."""
        while len(self._reported) < len(HOSTS):
            for rank, process in enumerate(self._processes):
                status = process.poll()
                if status is not None and rank not in self._reported:
                    self._reported.add(rank)
                    job = (CLUSTER, self.fault.job_id, 0)
                    tail = "RuntimeError: boom" if self.fault.kind == "crash" and rank == self.fault.rank else ""
                    code = 1 if tail else status
                    send_exit(str(self._agents.socket(HOSTS[rank])), job, rank, process.pid, code, tail)
            time.sleep(0.02)

    def _strike(self) -> None:
        kind, rank = self.fault.kind, self.fault.rank
        if kind == "freeze":
            os.kill(self._processes[rank].pid, signal.SIGSTOP)
        elif kind in {"kill", "crash"}:
            os.kill(self._processes[rank].pid, signal.SIGKILL)
        elif kind == "slow":
            self._set(rank, "<d", 8, 3.0)
        elif kind == "loader":
            self._set(rank, "<d", 16, 0.4)
        else:
            self._set(rank, "<q", 24, 1)

    def _set(self, rank: int, form: str, offset: int, value: float) -> None:
        with self._board.open("r+b") as file:
            file.seek(rank * fake_rank.ROW.size + offset)
            file.write(struct.pack(form, value))

    def _end(self) -> None:
        """Stop in order who can; end the others."""
        for rank in range(len(HOSTS)):
            self._set(rank, "<q", 32, 1)
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(2.0)
            process.kill()
            process.wait(60)


def _until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.monotonic()))
