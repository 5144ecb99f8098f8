"""Rate-limited logging for problems that may occur thousands of times a second: one line an interval, with a count."""

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
"""Default time between two log lines of one continuing problem."""
MAX_KEYS: Final = 256
"""Most problems tracked at a time; the one logged longest ago is forgotten first."""
MAX_TEXT: Final = 500
"""Characters kept of a text field, because peers may choose it."""


_SHOWN_FRAMES: Final = 6


def _text_of(error: BaseException) -> str:
    """Return an error's text, or a substitute if it cannot be converted (an integer of thousands of digits)."""
    try:
        return str(error)
    except (ValueError, RecursionError):
        return "(cannot be shown)"


@dataclass(slots=True)
class _LoggedTrouble:
    """Time at which a problem was last logged, and its number since."""

    at_seconds: float
    level: int
    message: str
    suppressed_count: int = 0


class TroubleLog:
    """Logger that writes the first occurrence of a problem at once, then one line an interval with the count.

    Thread-safe. ``flush`` logs the counts of problems that occur no more.
    """

    def __init__(
        self,
        logger: logging.Logger,
        interval_seconds: float = INTERVAL_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Create a rate-limited logger without history.

        Args:
            logger: target of the lines.
            interval_seconds: least time between two lines of one problem.
            clock: monotonic clock, seconds.
        """
        self._logger = logger
        self._interval_seconds = interval_seconds
        self._clock = clock
        self._logged: OrderedDict[str, _LoggedTrouble] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def key_count(self) -> int:
        """Number of problems that are kept apart at present."""
        return len(self._logged)

    def warn(self, message: str, key: str = "", **fields: Any) -> None:
        """Log a warning, or only count it within the interval.

        Args:
            message: what happened, the same words each time.
            key: distinguishes problems with the same message: a reason, never a text that a peer chose.
            fields: extra fields of this occurrence; texts are cut.
        """
        self._say(logging.WARNING, message, key, fields)

    def info(self, message: str, key: str = "", **fields: Any) -> None:
        """Log an info line, or only count it within the interval. Arguments as for ``warn``."""
        self._say(logging.INFO, message, key, fields)

    def exception(self, message: str, key: str = "", **fields: Any) -> None:
        """Log the exception being handled with its innermost frames, or only count it. Arguments as for ``warn``."""
        error = sys.exception()
        if error is not None:
            frames = traceback.extract_tb(error.__traceback__)[-_SHOWN_FRAMES:]
            where = " < ".join(f"{Path(at.filename).name}:{at.lineno} {at.name}" for at in reversed(frames))
            fields = {"error": f"{type(error).__name__}: {_text_of(error)}", "where": where, **fields}
        self._say(logging.ERROR, message, key, fields)

    def flush(self) -> None:
        """Log the counts of problems whose interval is over."""
        now = self._clock()
        with self._lock:
            due = [one for one in self._logged.values() if one.suppressed_count and self._is_over(one, now)]
            lines = [(one.level, one.message, one.suppressed_count) for one in due]
            for one in due:
                one.at_seconds, one.suppressed_count = now, 0
        for level, message, count in lines:
            self._logger.log(level, "%s, again", message, extra={"more_count": count})

    def _say(self, level: int, message: str, key: str, fields: dict[str, Any]) -> None:
        """Log a problem or count it; ``fields`` are the extra fields of the line."""
        now = self._clock()
        with self._lock:
            logged = self._logged.get(f"{message}\0{key}")
            if logged is not None and not self._is_over(logged, now):
                logged.suppressed_count += 1
                return
            more_count = 0 if logged is None else logged.suppressed_count
            self._logged[f"{message}\0{key}"] = _LoggedTrouble(now, level, f"{message}: {key}" if key else message)
            self._logged.move_to_end(f"{message}\0{key}")
            while len(self._logged) > MAX_KEYS:
                self._logged.popitem(last=False)
        shown = {name: value[:MAX_TEXT] if isinstance(value, str) else value for name, value in fields.items()}
        if more_count:
            shown["more_count"] = more_count
        self._logger.log(level, message, extra=shown)

    def _is_over(self, logged: _LoggedTrouble, now: float) -> bool:
        """Return whether a problem's interval is over."""
        return now - logged.at_seconds >= self._interval_seconds
