"""A server of ours: its log, its start, its end, and the end of everything that it started."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tocsin.cli.drill import watchdog
from tocsin.cli.drill.processes import running_members
from tocsin.schemas.errors import EngineError

_LOOK_SECONDS: Final = 0.05
_REAP_SECONDS: Final = 5.0
_TAIL_LINES: Final = 15


def free_port() -> int:
    """Return a TCP port on loopback that nobody uses now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def is_free(port: int) -> bool:
    """Return whether nobody listens on a port of loopback."""
    with socket.socket() as one:
        # as servers do it: a port whose last connections linger is free
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@dataclass(frozen=True, slots=True)
class Program:
    """What to run.

    Attributes:
        name: for logs and errors.
        command: program and arguments.
        log: file that its output is appended to.
        environment: added to this process's own.
        folder: working folder, None: this process's.
    """

    name: str
    command: Sequence[str]
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: Path | None = None


class Child:
    """A program in a process group of its own, which a watchdog leads.

    It ends with this process, even when that is killed with -9, and what it started ends with it
    (a TaskManager that is killed leaves its Python workers behind).
    """

    def __init__(self, program: Program) -> None:
        """Start nothing yet."""
        self.program = program
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._pipe = -1
        self._log_start_bytes = 0
        # whoever ends a cluster meets those who still wait for its parts, and both end the same child
        self._lock = threading.RLock()

    @property
    def pid(self) -> int:
        """Return the program's process number, 0 before its start."""
        return self._process.pid if self._process else 0

    def is_running(self) -> bool:
        """Return whether the program runs."""
        return self._process is not None and self._process.poll() is None

    def members(self) -> list[int]:
        """Return the processes of its group, the watchdog left out."""
        guard = self._watchdog.pid if self._watchdog else 0
        return [pid for pid in running_members(guard) if pid != guard] if guard else []

    def start(self) -> None:
        """Start it; what an earlier run left behind is ended first."""
        with self._lock:
            self.kill()
            self._start()

    def _start(self) -> None:
        program = self.program
        read_end, self._pipe = os.pipe()
        self._watchdog = subprocess.Popen(
            [sys.executable, "-S", "-E", watchdog.__file__, str(read_end)],
            pass_fds=(read_end,),
            process_group=0,
            stdin=subprocess.DEVNULL,
        )
        os.close(read_end)
        program.log.parent.mkdir(parents=True, exist_ok=True)
        with program.log.open("ab") as output:
            self._log_start_bytes = output.tell()
            try:
                self._process = subprocess.Popen(
                    list(program.command),
                    process_group=self._watchdog.pid,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env={**os.environ, **program.environment},
                    cwd=program.folder or tempfile.gettempdir(),
                )
            except OSError as error:
                self.kill()
                raise EngineError(f"{program.name} cannot be started: {error}") from error

    def wait_ready(self, is_ready: Callable[[], bool], seconds: float) -> None:
        """Wait until it is ready.

        Raises:
            EngineError: it ended, or took too long; it is killed, and the error shows its last lines.
        """
        until = time.monotonic() + seconds
        while not is_ready():
            if not self.is_running():
                status = self._process.returncode if self._process else "never started"
                raise self._broken(f"ended with status {status} before it was ready")
            if time.monotonic() > until:
                raise self._broken(f"was not ready within {seconds:.0f} s")
            time.sleep(_LOOK_SECONDS)

    def wait(self, seconds: float) -> int | None:
        """Wait for its end; return its status, None: it goes on."""
        if self._process is None:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None

    def said(self, text: str) -> bool:
        """Return whether the log holds this text since the last start."""
        with self.program.log.open("rb") as file:
            file.seek(self._log_start_bytes)
            return text.encode() in file.read()

    def log_tail(self) -> str:
        """Return the last lines since the last start."""
        if not self.program.log.exists():
            return ""
        with self.program.log.open("rb") as file:
            file.seek(self._log_start_bytes)
            return "\n".join(file.read().decode("utf-8", "replace").splitlines()[-_TAIL_LINES:])

    def stop(self, seconds: float = 10.0) -> None:
        """Ask it to end (SIGTERM), then end what is left."""
        if self._process is not None and self.is_running():
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
        self.kill()

    def crash(self) -> None:
        """Kill the program alone with -9, as a fault would: what it started stays until ``start`` or ``kill``."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(_REAP_SECONDS)

    def kill(self) -> None:
        """End the program and all that it started, with -9. Idempotent, also from several threads."""
        with self._lock:
            self._kill()

    def _kill(self) -> None:
        if self._watchdog is None:
            return
        until = time.monotonic() + _REAP_SECONDS
        while self.members() and time.monotonic() < until:
            for pid in self.members():  # one by one: the watchdog goes last, so that the group keeps its number
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if self._process is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._process.wait(_LOOK_SECONDS)
            time.sleep(_LOOK_SECONDS / 10)
        self._watchdog.kill()
        self._watchdog.wait(_REAP_SECONDS)
        os.close(self._pipe)
        self._watchdog, self._pipe = None, -1
        if self._process is not None:
            self._process.poll()

    def _broken(self, what: str) -> EngineError:
        tail = self.log_tail()
        self.kill()
        return EngineError(f"{self.program.name} {what}; {self.program.log} ends with:\n{tail}")
