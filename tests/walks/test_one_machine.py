"""Somebody tries tocsin on one machine: ``serve``, ``agent``, ``exec -- torchrun`` with four ranks, and own faults."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytestmark = [pytest.mark.drill, pytest.mark.timeout(420)]

BIN = Path(sys.executable).parent
TRAIN = Path(__file__).with_name("train.py")
PATIENCE_SECONDS = 60.0
"""For a machine under load; how long it took is printed."""


class Walk:
    """Engine, agent and job of one user, in folders of their own."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.job_folder = folder / "job"
        self.data = folder / "data"
        for made in (self.job_folder, folder / "runtime"):
            made.mkdir(mode=0o700)
        self._stack = stack
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._address = f"127.0.0.1:{free.getsockname()[1]}"
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("TOCSIN_", "SLURM_"))}
        self.env = {
            **kept,
            "HOME": str(folder),
            "XDG_RUNTIME_DIR": str(folder / "runtime"),
            "TOCSIN_AGENT_SOCKET": str(folder / "runtime" / "agent.sock"),
            "TOCSIN_JOB_ID": "walk",
            "PATH": f"{BIN}:{kept.get('PATH', '')}",
        }

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        """Start a program in a group of its own, which ends with the walk."""
        log = self._stack.enter_context((self.folder / f"{command[0]}.log").open("wb"))
        child = subprocess.Popen(
            [str(BIN / "tocsin"), *command], env=self.env, stdout=log, stderr=log, start_new_session=True
        )
        self._stack.callback(end, child)
        return child

    def begin(self) -> None:
        """As the quick start says, but for the port."""
        self.start("serve", "--listen", self._address, "--data", str(self.data), "--metrics-listen", "127.0.0.1:0")
        until(lambda: self.ask("status")[0] == 0, "an engine")
        self.start("agent", "--engine", self._address, "--spool", str(self.folder / "spool"), "--host", "box")
        until(lambda: Path(self.env["TOCSIN_AGENT_SOCKET"]).exists(), "an agent's socket")
        torchrun = ("torchrun", "--standalone", "--nproc-per-node", "4")
        self.start("exec", "--", *torchrun, str(TRAIN), str(self.job_folder))
        until(lambda: self.step() >= 40, "forty steps")

    def ask(self, *command: str) -> tuple[int, str]:
        """Status and output of a command about this engine."""
        called = [str(BIN / "tocsin"), *command, "--data", str(self.data)]
        done = subprocess.run(called, env=self.env, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout

    def incidents(self) -> list[dict[str, Any]]:
        """What ``tocsin incidents --json`` says now."""
        rows: list[dict[str, Any]] = json.loads(self.ask("incidents", "--json")[1] or "[]")
        return rows

    def step(self) -> int:
        """The job's newest step."""
        path = self.job_folder / "step"
        text = path.read_text() if path.exists() else ""
        return int(text) if text else -1

    def pid(self, rank: int) -> int:
        """A rank's process."""
        return int((self.job_folder / f"pid-{rank}").read_text())

    def wanted(self, what: str, fault: str, rank: int) -> None:
        """Wait until an incident of this fault names this rank of the one machine; print how long it took."""
        begin = time.monotonic()
        until(lambda: any(is_of(row, fault, rank) for row in self.incidents()), f"{what}: {fault} of rank {rank}")
        sys.stdout.write(f"{what}: named after {time.monotonic() - begin:.1f} s\n")


def is_of(row: dict[str, Any], fault: str, rank: int) -> bool:
    """Whether an incident names the machine and this rank alone."""
    return (row["fault"], row["hosts"], row["ranks"]) == (fault, ["box"], [rank])


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for what other processes bring about."""
    end_seconds = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < end_seconds, f"no {what} within {PATIENCE_SECONDS:.0f} s"
        time.sleep(0.3)


def end(child: subprocess.Popen[bytes]) -> None:
    """End a program and all that it started."""
    if child.poll() is None:
        child.terminate()
        with suppress(subprocess.TimeoutExpired):
            child.wait(15)
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


@contextmanager
def walking(folder: Path) -> Iterator[Walk]:
    """A walk whose programs end with it."""
    with ExitStack() as stack:
        yield Walk(folder, stack)


def test_a_slow_a_frozen_and_a_killed_rank_and_a_lost_number(tmp_path: Path) -> None:
    with walking(tmp_path) as walk:
        walk.begin()
        assert walk.incidents() == []

        (walk.job_folder / "slow-1").touch()
        walk.wanted("forward of 150 instead of 50 ms", "fail_slow", 1)
        (walk.job_folder / "slow-1").unlink()

        (walk.job_folder / "nan-2").touch()
        walk.wanted("a loss that is no number", "silent_corruption", 2)
        (walk.job_folder / "nan-2").unlink()

        os.kill(walk.pid(3), signal.SIGSTOP)
        walk.wanted("SIGSTOP", "hang", 3)
        os.kill(walk.pid(3), signal.SIGCONT)
        until(lambda: not any(row["fault"] == "hang" for row in walk.incidents()), "end of the hang")

        os.kill(walk.pid(1), signal.SIGKILL)
        walk.wanted("kill -9", "fail_stop", 1)
        jobs = {row["job_id"] for row in walk.incidents()}
        assert jobs == {"walk"}
