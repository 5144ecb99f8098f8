"""A child process with its log, its start and its stop, including everything that it started itself."""

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

from tocsin.cli import watchdog
from tocsin.cli.processes import running_members
from tocsin.schemas.errors import EngineError

_LOOK_SECONDS: Final = 0.05
_REAP_SECONDS: Final = 30.0
_TAIL_LINES: Final = 15


def free_port() -> int:
    """Return a TCP port on loopback that is free now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def is_free(port: int) -> bool:
    """Return whether a port on loopback is free."""
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
    """A program to run.

    Attributes:
        name: its name in logs and errors.
        command: program and arguments.
        log: file that its output is appended to.
        environment: variables added to this process's environment.
        folder: its working folder, None: the temporary folder.
    """

    name: str
    command: Sequence[str]
    log: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: Path | None = None


class Child:
    """A program in its own process group, which is led by a watchdog process.

    The program and everything it started are killed when this process ends, even by SIGKILL. (A TaskManager that is
    killed leaves its Python workers behind otherwise.)
    """

    def __init__(self, program: Program) -> None:
        """Create the object; ``start`` starts the program."""
        self.program = program
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._pipe = -1
        self._log_start_bytes = 0
        # whoever ends a cluster meets those who still wait for its parts, and both end the same child
        self._lock = threading.RLock()

    @property
    def pid(self) -> int:
        """Process ID of the program, 0 before its start."""
        return self._process.pid if self._process else 0

    def is_running(self) -> bool:
        """Return whether the program runs."""
        return self._process is not None and self._process.poll() is None

    def members(self) -> list[int]:
        """Return the process IDs of the program's group, without the watchdog."""
        guard = self._watchdog.pid if self._watchdog else 0
        return [pid for pid in running_members(guard) if pid != guard] if guard else []

    def start(self) -> None:
        """Start the program; processes left from an earlier run are killed first.

        Raises:
            EngineError: the program cannot be started.
        """
        with self._lock:
            self.kill()
            self._start()

    def _start(self) -> None:
        """Start the watchdog and the program in its process group."""
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
        """Wait until ``is_ready`` returns true.

        Raises:
            EngineError: the program ended, or took longer than ``seconds``; it is killed, and the error has its last
                log lines.
        """
        until = time.monotonic() + seconds
        while not is_ready():
            if not self.is_running():
                status = self._process.returncode if self._process else "never started"
                raise self._kill_with_error(f"ended with status {status} before it was ready")
            if time.monotonic() > until:
                raise self._kill_with_error(f"was not ready within {seconds:.0f} s")
            time.sleep(_LOOK_SECONDS)

    def wait(self, seconds: float) -> int | None:
        """Wait up to ``seconds`` for the program's end.

        Return its exit status, None: it still runs or was never started.
        """
        if self._process is None:
            return None
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None

    def said(self, text: str) -> bool:
        """Return whether the log contains the text since the last start."""
        with self.program.log.open("rb") as file:
            file.seek(self._log_start_bytes)
            return text.encode() in file.read()

    def log_tail(self) -> str:
        """Return the last lines of the log since the last start."""
        if not self.program.log.exists():
            return ""
        with self.program.log.open("rb") as file:
            file.seek(self._log_start_bytes)
            return "\n".join(file.read().decode("utf-8", "replace").splitlines()[-_TAIL_LINES:])

    def stop(self, seconds: float = 10.0) -> None:
        """Stop the program with SIGTERM, wait up to ``seconds``, and kill what is left of its group."""
        if self._process is not None and self.is_running():
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(seconds)
        self.kill()

    def crash(self) -> None:
        """Kill only the program with SIGKILL, like a fault.

        Processes that it started live on until ``start`` or ``kill``.
        """
        if self._process is not None:
            self._process.kill()
            self._process.wait(_REAP_SECONDS)

    def kill(self) -> None:
        """Kill the program and everything that it started with SIGKILL.

        May be called repeatedly and from several threads.
        """
        with self._lock:
            self._kill()

    def _kill(self) -> None:
        """Kill the members of the group, then the watchdog; the caller holds the lock."""
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

    def _kill_with_error(self, what: str) -> EngineError:
        """Kill the program, and return an error with the last lines of its log."""
        tail = self.log_tail()
        self.kill()
        return EngineError(f"{self.program.name} {what}; {self.program.log} ends with:\n{tail}")
