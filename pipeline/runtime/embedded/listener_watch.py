"""A watch on the engine's own listener: it knocks there again and again, beside all other threads."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

_EVERY_SECONDS: Final = 10.0
_SILENT_SECONDS: Final = 25.0
"""Two knocks in a row without an answer, and the time that they take."""


class ListenerWatch:
    """Knows when the listener answered last."""

    def __init__(self, knock: Callable[[], bool], clock: Callable[[], float] = time.monotonic) -> None:
        """Take the time as that of the first answer: the listener may start after the watch.

        Args:
            knock: returns whether the listener answers, within seconds.
            clock: monotonic seconds.
        """
        self._knock = knock
        self._clock = clock
        self._answered_seconds = clock()

    def knock(self) -> None:
        """Knock once."""
        if self._knock():
            self._answered_seconds = self._clock()

    def run(self, stop: threading.Event) -> None:
        """Knock until stopped."""
        while not stop.wait(_EVERY_SECONDS):
            self.knock()

    def is_silent(self) -> bool:
        """Return whether the listener has not answered for ``_SILENT_SECONDS``."""
        return self._clock() - self._answered_seconds > _SILENT_SECONDS
