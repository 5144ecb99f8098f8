"""Running a program of the machine within a time limit."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tocsin.schemas.errors import TargetAwayError

_SHOWN_CHARACTERS = 300


@dataclass(frozen=True, slots=True)
class CommandResult:
    """What a program left when it ended.

    Attributes:
        status: exit status; negative: the number of the signal that ended it.
        output: standard output.
        error: standard error.
    """

    status: int
    output: str
    error: str

    @property
    def is_success(self) -> bool:
        """Whether the exit status is 0."""
        return self.status == 0

    @property
    def complaint(self) -> str:
        """The program's own words about its failure, in one line of at most 300 characters."""
        words = " ".join((self.error or self.output).split())
        return words[:_SHOWN_CHARACTERS] or f"status {self.status}"


class Commands(Protocol):
    """Runs programs. Tests give a fake with recorded answers."""

    def run(self, arguments: Sequence[str]) -> CommandResult:
        """Run a program to its end.

        Args:
            arguments: the program's name, then its arguments. No shell reads them.

        Raises:
            TargetAwayError: it cannot be started, or did not end in time. What it was to do may have been done.
        """
        ...


class Programs:
    """Runs programs of this machine, each within a time limit."""

    def __init__(self, limit_seconds: float, environment: Mapping[str, str] | None = None, folder: str = "") -> None:
        """Start nothing yet.

        Args:
            limit_seconds: time after which a program is killed.
            environment: variables that are set for the programs, beside this process's own.
            folder: folder of the programs; "": they are looked up on the PATH.
        """
        self._limit_seconds = limit_seconds
        self._environment = {**os.environ, **(environment or {})}
        self._folder = folder

    def run(self, arguments: Sequence[str]) -> CommandResult:
        """See ``Commands.run``."""
        name, *rest = arguments
        path = os.path.join(self._folder, name)  # noqa: PTH118  # "" leaves the name as it is: the PATH has it
        try:
            done = subprocess.run(
                [path, *rest],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
                timeout=self._limit_seconds,
            )
        except subprocess.TimeoutExpired as error:
            raise TargetAwayError(f"{name} did not end within {self._limit_seconds:g} s") from error
        except OSError as error:
            raise TargetAwayError(f"{name} cannot be started: {error.strerror} ({path})") from error
        return CommandResult(done.returncode, *(text.decode(errors="replace") for text in (done.stdout, done.stderr)))
