"""Threads whose end is noticed: a process in which one of them died must not look as if it worked."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

_LOG = logging.getLogger("tocsin.threads")


class SupervisedThread:
    """A thread that keeps what ended it.

    Attributes:
        name: what it does.
        error: what was raised in it, None: nothing.
    """

    def __init__(self, name: str, run: Callable[[], None]) -> None:
        """Start nothing yet.

        Args:
            name: what it does.
            run: does it until it is told to end, by means of its own.
        """
        self.name = name
        self.error: BaseException | None = None
        self._run = run
        self._thread = threading.Thread(target=self._guarded, name=name, daemon=True)
        self._was_started = False

    def start(self) -> None:
        """Begin."""
        self._was_started = True
        self._thread.start()

    def join(self, timeout_seconds: float) -> None:
        """Wait for its end; at once where it was never started."""
        if self._was_started:
            self._thread.join(timeout_seconds)

    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._thread.is_alive()

    @property
    def has_ended(self) -> bool:
        """Whether it was started and runs no more."""
        return self._was_started and not self._thread.is_alive()

    def _guarded(self) -> None:
        try:
            self._run()
        except BaseException as error:  # noqa: BLE001  # supervising: whoever watches the thread ends the process
            self.error = error
            _LOG.critical("thread died", extra={"thread_name": self.name}, exc_info=True)


def describe_dead(threads: Iterable[SupervisedThread]) -> str:
    """Which threads have ended, and why, in words; "" = none."""
    dead = [f"{one.name} ({type(one.error).__name__})" if one.error else one.name for one in threads if one.has_ended]
    return f"dead threads: {', '.join(dead)}" if dead else ""
