"""Child processes with a deadline, each of which answers with one line of JSON."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tocsin.schemas.preflight import CheckReason

_POLL_SECONDS: Final = 0.05
_TAIL_BYTES: Final = 400
_PACKAGE: Final = "tocsin.collectors.preflight"


@dataclass(frozen=True, slots=True)
class ChildAnswer:
    """What one child said.

    Attributes:
        values: its JSON object, empty where there is none.
        reason: why there is none: ``TIMED_OUT`` or ``CHECK_DIED``; None where it answered.
        detail: the end of its error output, or its exit status; "" where it answered.
    """

    values: Mapping[str, object] = field(default_factory=dict)
    reason: CheckReason | None = None
    detail: str = ""


def module_command(module: str, *arguments: object) -> list[str]:
    """Return the command that runs a module of this package in a new interpreter."""
    return [sys.executable, "-m", f"{_PACKAGE}.{module}", *map(str, arguments)]


def run_all(
    commands: Sequence[Sequence[str]],
    seconds: float,
    *,
    while_running: Callable[[], None] | None = None,
    environment: Mapping[str, str] | None = None,
) -> list[ChildAnswer]:
    """Run commands side by side and return their answers in order.

    Args:
        commands: the commands.
        seconds: time until those that still run are killed, with their own children.
        while_running: called a few times a second meanwhile.
        environment: variables added to this process's.
    """
    children = [_started(command, environment or {}) for command in commands]
    until = time.monotonic() + seconds
    next_call = 0.0
    try:
        while any(child.poll() is None for child in children) and time.monotonic() < until:
            if while_running is not None and time.monotonic() >= next_call:
                while_running()
                next_call = time.monotonic() + 4 * _POLL_SECONDS
            time.sleep(_POLL_SECONDS)
    finally:
        late = [child.poll() is None for child in children]
        for child, is_late in zip(children, late, strict=True):
            if is_late:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
    return [_answer(child, is_late=is_late) for child, is_late in zip(children, late, strict=True)]


def _started(command: Sequence[str], environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own, so that it can be killed with its children."""
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        env={**os.environ, **environment},
    )


def _answer(child: subprocess.Popen[bytes], *, is_late: bool) -> ChildAnswer:
    """Return what a child said; it has ended, or it was killed."""
    out, err = child.communicate()
    tail = err[-_TAIL_BYTES:].decode("utf-8", "replace").strip()
    if is_late:
        return ChildAnswer(reason=CheckReason.TIMED_OUT, detail=tail)
    lines = out.decode("utf-8", "replace").strip().splitlines()
    try:
        values = json.loads(lines[-1]) if lines else None
    except ValueError:
        values = None
    if child.returncode != 0 or not isinstance(values, dict):
        return ChildAnswer(reason=CheckReason.CHECK_DIED, detail=f"exit status {child.returncode}: {tail}")
    return ChildAnswer(values)


def number_of(values: Mapping[str, object], name: str) -> float:
    """Return a number of a child's answer, 0 where it is missing."""
    value = values.get(name)
    return float(value) if isinstance(value, int | float) else 0.0
