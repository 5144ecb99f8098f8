"""Checks under load that were started for actions: who starts them, and what is known of them afterwards."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Protocol

from tocsin.schemas.actions import Action
from tocsin.schemas.errors import FieldError, TargetAwayError
from tocsin.schemas.preflight import HostAnswer, answer_of

_LOCK, _HOSTS, _OUTPUT, _ERRORS = "lock", "hosts.txt", "output.json", "errors.txt"
_TAIL_BYTES: Final = 400
_MAX_OUTPUT_BYTES: Final = 64 * 2**20
_KEPT_SECONDS: Final = 7 * 24 * 3600.0
"""How long a run's folder is kept: longer than an action is remembered that nobody has finished."""


@dataclass(frozen=True, slots=True)
class CheckRun:
    """What is known of the checks that were started for an action.

    Attributes:
        is_running: whether they still run.
        answers: what the hosts answered; empty while they run, or where ``trouble`` says why there are none.
        ended_ns: when they ended, 0 while they run.
        trouble: why there are no answers, "" for none.
    """

    is_running: bool
    answers: tuple[HostAnswer, ...] = ()
    ended_ns: int = 0
    trouble: str = ""


class CheckRuns(Protocol):
    """Starts checks on hosts and knows what became of them, also after another process took over."""

    def begin(self, action: Action, nodes: Sequence[str]) -> None:
        """Start the checks of an action, and return before they end.

        Args:
            action: the action.
            nodes: names of its machines in the system that reaches them.

        Raises:
            TargetError: they cannot be started.
        """
        ...

    def read(self, action_id: str) -> CheckRun | None:
        """Return what is known of an action's checks, None if none were started.

        Raises:
            TargetError: that cannot be read.
        """
        ...


class ProgramRuns:
    """Runs ``tocsin preflight --group`` for each action, as a process that outlives this one.

    Each run has a folder with the action's id. The process holds a lock there as long as it lives, so that a successor
    of this process sees whether it still runs, and reads its answer afterwards.
    """

    def __init__(self, folder: Path, command: Sequence[str]) -> None:
        """Start nothing yet.

        Args:
            folder: holds the runs; one executor at a time uses it.
            command: the program and its flags; ``--group FILE`` is added.
        """
        self._folder = folder
        self._command = tuple(command)

    def begin(self, action: Action, nodes: Sequence[str]) -> None:
        """See ``CheckRuns.begin``."""
        self._forget_old()
        place = self._folder / action.action_id
        try:
            place.mkdir(parents=True, exist_ok=True, mode=0o700)
            with _locked(place / _LOCK) as lock:
                if lock is not None and not (place / _OUTPUT).exists():
                    (place / _HOSTS).write_text("".join(f"{one}\n" for one in nodes), encoding="utf-8")
                    self._start(place, lock)
        except OSError as error:
            raise TargetAwayError(f"the checks cannot be started: {error}") from error

    def read(self, action_id: str) -> CheckRun | None:
        """See ``CheckRuns.read``."""
        place = self._folder / action_id
        try:
            if not (place / _OUTPUT).exists():
                return None
            with _locked(place / _LOCK) as lock:
                return CheckRun(is_running=True) if lock is None else _ended(place)
        except OSError as error:
            raise TargetAwayError(f"{place}: {error}") from error

    def _start(self, place: Path, lock: IO[bytes]) -> None:
        """Start the program; it inherits the lock, which is free again when the last process of it has ended."""
        with (place / _OUTPUT).open("xb") as output, (place / _ERRORS).open("wb") as errors:
            subprocess.Popen(
                [*self._command, "--group", str(place / _HOSTS)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=errors,
                start_new_session=True,
                pass_fds=(lock.fileno(),),
            )

    def _forget_old(self) -> None:
        """Remove the folders of runs that ended long ago."""
        before = time.time() - _KEPT_SECONDS
        for place in self._folder.iterdir() if self._folder.is_dir() else ():
            with contextlib.suppress(OSError):
                if place.stat().st_mtime < before:
                    shutil.rmtree(place)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[IO[bytes] | None]:
    """Take a lock for the time of the block; None: a program that runs has it."""
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
        else:
            yield file


def _ended(place: Path) -> CheckRun:
    """Return what a program left that has ended."""
    output = place / _OUTPUT
    found = output.stat()
    try:
        if found.st_size > _MAX_OUTPUT_BYTES:
            raise FieldError("output", found.st_size, f"at most {_MAX_OUTPUT_BYTES} bytes")
        value = json.loads(output.read_bytes())
        answers = tuple(answer_of(one, f"hosts[{index}]") for index, one in enumerate(value["hosts"]))
    except (ValueError, KeyError, TypeError, FieldError, RecursionError):
        with (place / _ERRORS).open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            tail = " ".join(file.read().decode("utf-8", "replace").split())
        return CheckRun(is_running=False, ended_ns=found.st_mtime_ns, trouble=tail or "ended without an answer")
    return CheckRun(is_running=False, answers=answers, ended_ns=found.st_mtime_ns)
