"""Engine, agents and a job of one user who is not root, in folders of their own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

BIN = Path(sys.executable).parent
TRAIN = Path(__file__).with_name("train.py")
PATIENCE_SECONDS = 180.0
"""For a machine under load; how long it took is printed."""
_NOBODY = 65_534
RANK_COUNT = 4


def user_prefix() -> list[str]:
    """What makes a command run as a user without rights; [] where the tests do already, or where that cannot be.

    A user who may not read this Python can be had by a user namespace: its only user owns what root owns outside, and
    has another number and no capabilities inside.
    """
    if os.getuid():
        return []
    other = ["setpriv", f"--reuid={_NOBODY}", f"--regid={_NOBODY}", "--clear-groups"]
    for prefix in (other, ["unshare", "--user", "--map-user=1000", "--map-group=1000"]):
        tried = [*prefix, str(BIN / "tocsin"), "exec", "--", "python", "-c", "import os, tocsin; assert os.getuid()"]
        with suppress(OSError):
            if subprocess.run(tried, env=_environment(), capture_output=True, check=False).returncode == 0:
                return prefix
    sys.stdout.write("no other user may run this Python: everything runs as root\n")
    return []


def _environment() -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("TOCSIN_", "SLURM_", "PYTEST"))}
    return {**kept, "PATH": f"{BIN}:{kept.get('PATH', '')}"}


class Walk:
    """The programs of one walk.

    Attributes:
        job_folder: where the job is told what to do (``train.py``).
    """

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        """Make the folders."""
        self._stack = stack
        self._folder = folder
        self._prefix = user_prefix()
        self._data = folder / "data"
        self.job_folder = folder / "job"
        self._runtime = folder / "runtime"
        for made in (self.job_folder, self._runtime):
            made.mkdir(mode=0o700)
        if self._prefix[:1] == ["setpriv"]:
            for owned in (folder, self.job_folder, self._runtime):
                os.chown(owned, _NOBODY, _NOBODY)
        self._address = f"127.0.0.1:{free_port()}"
        self._env = {
            **_environment(),
            "HOME": str(folder),
            "XDG_RUNTIME_DIR": str(self._runtime),
            "TOCSIN_JOB_ID": "walk",
        }

    def start(self, name: str, *command: str, env: Mapping[str, str] | None = None) -> None:
        """Start ``tocsin COMMAND`` in a group of its own, which ends with the walk."""
        log = self._stack.enter_context((self._folder / f"{name}.log").open("wb"))
        called = [*self._prefix, str(BIN / "tocsin"), *command]
        child = subprocess.Popen(
            called, env={**self._env, **(env or {})}, stdout=log, stderr=log, cwd=self._folder, start_new_session=True
        )
        self._stack.callback(end, child)

    def serve(self) -> None:
        """Start the engine, and wait for its answer."""
        self.start("serve", "serve", "--listen", self._address, "--data", str(self._data), "--metrics-listen", "")
        until(lambda: self.ask("status")[0] == 0, "an engine")

    def agent(self, host: str, *more: str) -> str:
        """Start an agent that speaks for this host; return its socket."""
        path = self._runtime / f"{host}.sock"
        named = ("--socket", str(path), "--host", host, "--spool-dir", str(self._folder / f"spool-{host}"))
        self.start(host, "agent", "--engine", self._address, *named, "--metrics-listen", "", *more)
        until(path.exists, f"socket of {host}")
        return str(path)

    def ask(self, *command: str) -> tuple[int, str]:
        """Status and output of a command about this engine."""
        called = [*self._prefix, str(BIN / "tocsin"), *command, "--data", str(self._data)]
        done = subprocess.run(called, env=self._env, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout

    def incidents(self, *flags: str) -> list[dict[str, Any]]:
        """What ``tocsin incidents --json`` says."""
        return [json.loads(line) for line in self.ask("incidents", "--json", *flags)[1].splitlines()]

    def steps(self) -> int:
        """The job's newest step, -1: none."""
        path = self.job_folder / "step"
        text = path.read_text() if path.exists() else ""
        return int(text) if text else -1

    def pid(self, rank: int) -> int:
        """A rank's process."""
        return int((self.job_folder / f"pid-{rank}").read_text())

    def wanted(self, what: str, fault: str, machine: str, rank: int) -> str:
        """Wait until an incident of this fault names this rank; print how long it took, and return its id."""
        begin = time.monotonic()
        found: list[str] = []

        def is_reported() -> bool:
            wanted = (fault, machine, str(rank))
            found[:] = [r["verdict_id"] for r in self.incidents() if (r["fault"], r["machine"], r["ranks"]) == wanted]
            return bool(found)

        until(is_reported, f"{fault} of rank {rank} on {machine} after {what}")
        sys.stdout.write(f"{what}: named after {time.monotonic() - begin:.1f} s\n")
        return found[0]

    def close(self, verdict_id: str) -> None:
        """Close an incident by the beginning of its id, and want it gone, with the note, and not told again."""
        status, reported = self.ask("incidents", "close", verdict_id[:8], "--note", "a walk's kill")
        assert (status, verdict_id in reported) == (0, True)
        until(lambda: verdict_id not in {row["verdict_id"] for row in self.incidents()}, "end of a closed incident")
        shown = self.ask("incidents", "show", verdict_id)[1]
        assert "closed by uid:" in shown
        assert "a walk's kill" in shown
        time.sleep(5.0)
        assert not [row for row in self.incidents() if row["fault"] == "fail_stop"]

    def faults(self, machines: list[str]) -> None:
        """Strike the job in four ways, and want each named by itself.

        Args:
            machines: of the ranks.
        """
        until(lambda: self.steps() >= 40, "forty steps")
        assert self.incidents() == []
        ids = []
        for name, rank, fault in (("slow", 1, "fail_slow"), ("nan", 2, "silent_corruption")):
            order = self.job_folder / f"{name}-{rank}"
            order.touch()
            ids.append(self.wanted(name, fault, machines[rank], rank))
            order.unlink()
        os.kill(self.pid(3), signal.SIGSTOP)
        ids.append(self.wanted("SIGSTOP", "hang", machines[3], 3))
        os.kill(self.pid(3), signal.SIGCONT)
        until(lambda: not any(row["fault"] == "hang" for row in self.incidents()), "end of the hang")
        os.kill(self.pid(1), signal.SIGKILL)
        ids.append(self.wanted("kill -9", "fail_stop", machines[1], 1))
        assert len(set(ids)) == len(ids)
        self.close(ids[-1])
        named = {(row["machine"], row["ranks"]) for row in self.incidents("--all") if row["fault"] != "degraded"}
        assert named <= {(machines[rank], str(rank)) for rank in (1, 2, 3)} | {("nobody", "")}


def free_port() -> int:
    """A port of loopback that nobody has now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


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
            child.wait(60)
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


@contextmanager
def walking() -> Iterator[Walk]:
    """A walk whose programs and folders end with it; what they said is printed where it fails."""
    folder = Path(tempfile.mkdtemp(prefix="tocsin-walk-"))
    try:
        with ExitStack() as stack:
            yield Walk(folder, stack)
    except BaseException:
        for log in sorted(folder.glob("*.log")):
            sys.stdout.write(f"--- {log.name}\n{log.read_text(errors='replace')[-4000:]}\n")
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)
