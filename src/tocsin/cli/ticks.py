"""Whether the engine that answers judges at all: how old its newest tick is."""

from __future__ import annotations

import sys
from pathlib import Path

from tocsin.cli.paths import control_socket
from tocsin.pipeline.control import OLD_TICK_SECONDS, ControlClient, EngineAbsentError, EngineRefusedError
from tocsin.schemas.printable import plain

_ANSWER_SECONDS = 10.0


def engine_ticks(data: Path, command: str) -> bool:
    """Ask the engine of a data folder for the age of its newest tick; say on stderr where it is an error.

    Args:
        data: the data folder.
        command: who asks, for the message.

    Returns:
        False where the newest tick is older than ten seconds; True otherwise, and where no engine runs.

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
    age_seconds = float(answer["tick_age_seconds"])
    if age_seconds <= OLD_TICK_SECONDS:
        return True
    text = f"the engine's newest tick is {age_seconds:.0f} s old: it judges nothing now ({answer['live']})"
    print(plain(f"tocsin {command}: {text}; see its log, and start it anew"), file=sys.stderr)
    return False
