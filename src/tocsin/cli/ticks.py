"""Checks from the age of its newest tick whether an engine is judging."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tocsin.cli.drill_mark import has_drill_mark
from tocsin.cli.paths import control_socket
from tocsin.pipeline.runtime.embedded.control_socket import (
    OLD_TICK_SECONDS,
    ControlClient,
    EngineAbsentError,
    EngineRefusedError,
)
from tocsin.schemas.printable import plain

_ANSWER_SECONDS = 10.0


def engine_ticks(data: Path, command: str) -> bool:
    """Return whether the engine of a data folder is ticking; if not, print an error on stderr.

    Args:
        data: the data folder.
        command: name of the command, for the message.

    Returns:
        False if the newest tick is older than ten seconds; True otherwise, and also if no engine runs.

    Raises:
        EngineError: an engine runs and does not answer.
    """
    try:
        answer = ControlClient(control_socket(data), _ANSWER_SECONDS).call("health")
    except EngineAbsentError:
        return True
    except EngineRefusedError as error:
        if error.reason == "unknown_command":  # an engine of an older version cannot tell
            return True
        raise
    return is_ticking(answer, command)


def is_ticking(answer: Mapping[str, Any], command: str) -> bool:
    """Return whether an engine's answer to ``health`` shows that it is ticking; if not, print an error on stderr."""
    age_seconds = float(answer["tick_age_seconds"])
    if age_seconds <= OLD_TICK_SECONDS:
        return True
    text = f"the engine's newest tick is {age_seconds:.0f} s old: it judges nothing now ({answer['live']})"
    print(plain(f"tocsin {command}: {text}; see its log, and start it anew"), file=sys.stderr)
    return False


def engine_judges(data: Path, command: str) -> bool:
    """Return whether an engine is judging the records of a data folder; if none is, print an error on stderr.

    For the folder of a drill that ended normally the answer is True: nothing is left to judge there.

    Args:
        data: the data folder.
        command: name of the command, for the message.

    Raises:
        EngineError: an engine runs and does not answer.
    """
    try:
        ControlClient(control_socket(data), _ANSWER_SECONDS).call("ping")
    except EngineAbsentError:
        if has_drill_mark(data):
            return True
        text = f"no engine runs with the data folder {data}: nothing is judged now, and what is shown may be old"
        print(
            plain(f"tocsin {command}: {text}; start one (tocsin serve), or ask another folder (--data)"),
            file=sys.stderr,
        )
        return False
    return engine_ticks(data, command)
