"""Log lines for troubles that may come thousands of times a second: one a trouble and interval, with a count."""

from __future__ import annotations

import logging
import sys
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

INTERVAL_SECONDS: Final = 10.0
"""A trouble that goes on is said again after so long."""
MAX_KEYS: Final = 256
"""Troubles that are told apart at a time; the one that was said longest ago is forgotten first."""
MAX_TEXT: Final = 500
"""Characters of a text that others chose."""


_SHOWN_FRAMES: Final = 6


def _text_of(error: BaseException) -> str:
    """What an error says; an integer of thousands of digits in it cannot be shown."""
    try:
        return str(error)
    except (ValueError, RecursionError):
        return "(cannot be shown)"


@dataclass(slots=True)
class _LoggedTrouble:
    """When a trouble was last said, and how often it came since."""

    at_seconds: float
    level: int
    message: str
    unsaid_count: int = 0


class TroubleLog:
    """Writes the first line of a trouble at once, and then one line an interval that says how often it came.

    Thread-safe. ``flush`` says what was held back and came no more.
    """

    def __init__(
        self,
        logger: logging.Logger,
        interval_seconds: float = INTERVAL_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Write to a logger.

        Args:
            logger: where the lines go.
            interval_seconds: between two lines of one trouble.
            clock: seconds that only grow.
        """
        self._logger = logger
        self._interval_seconds = interval_seconds
        self._clock = clock
        self._said: OrderedDict[str, _LoggedTrouble] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def key_count(self) -> int:
        """How many troubles are told apart at present."""
        return len(self._said)

    def warn(self, message: str, key: str = "", **fields: Any) -> None:
        """Log a warning, or count it.

        Args:
            message: what happened, the same words each time.
            key: tells troubles with the same message apart: a reason, never a text that a peer chose.
            fields: of this occurrence; texts are cut.
        """
        self._say(logging.WARNING, message, key, fields)

    def info(self, message: str, key: str = "", **fields: Any) -> None:
        """Log what is usual, or count it. Arguments as for ``warn``."""
        self._say(logging.INFO, message, key, fields)

    def exception(self, message: str, key: str = "", **fields: Any) -> None:
        """Log the exception that is being handled, or count it. Arguments as for ``warn``.

        Where it was raised stands in the same line: the innermost frames first.
        """
        error = sys.exception()
        if error is not None:
            frames = traceback.extract_tb(error.__traceback__)[-_SHOWN_FRAMES:]
            where = " < ".join(f"{Path(at.filename).name}:{at.lineno} {at.name}" for at in reversed(frames))
            fields = {"error": f"{type(error).__name__}: {_text_of(error)}", "where": where, **fields}
        self._say(logging.ERROR, message, key, fields)

    def flush(self) -> None:
        """Say how often those troubles came whose interval is over."""
        now = self._clock()
        with self._lock:
            due = [one for one in self._said.values() if one.unsaid_count and self._is_over(one, now)]
            lines = [(one.level, one.message, one.unsaid_count) for one in due]
            for one in due:
                one.at_seconds, one.unsaid_count = now, 0
        for level, message, count in lines:
            self._logger.log(level, "%s, again", message, extra={"more_count": count})

    def _say(self, level: int, message: str, key: str, fields: dict[str, Any]) -> None:
        now = self._clock()
        with self._lock:
            said = self._said.get(f"{message}\0{key}")
            if said is not None and not self._is_over(said, now):
                said.unsaid_count += 1
                return
            more_count = 0 if said is None else said.unsaid_count
            self._said[f"{message}\0{key}"] = _LoggedTrouble(now, level, f"{message}: {key}" if key else message)
            self._said.move_to_end(f"{message}\0{key}")
            while len(self._said) > MAX_KEYS:
                self._said.popitem(last=False)
        shown = {name: value[:MAX_TEXT] if isinstance(value, str) else value for name, value in fields.items()}
        if more_count:
            shown["more_count"] = more_count
        self._logger.log(level, message, extra=shown)

    def _is_over(self, said: _LoggedTrouble, now: float) -> bool:
        return now - said.at_seconds >= self._interval_seconds
