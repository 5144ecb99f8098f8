"""Threads whose unexpected end is noticed, so that a process with a dead thread does not look healthy."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

_LOG = logging.getLogger("tocsin.threads")


class SupervisedThread:
    """A daemon thread that stores the error that ended it.

    Attributes:
        name: name of its task.
        error: the error that ended it, None = no error.
    """

    def __init__(self, name: str, run: Callable[[], None]) -> None:
        """Prepare the thread; ``start`` starts it.

        Args:
            name: name of its task.
            run: the task; it ends by its own means.
        """
        self.name = name
        self.error: BaseException | None = None
        self._run = run
        self._thread = threading.Thread(target=self._guarded, name=name, daemon=True)
        self._was_started = False

    def start(self) -> None:
        """Start the thread."""
        self._was_started = True
        self._thread.start()

    def join(self, timeout_seconds: float) -> None:
        """Wait for the thread's end for at most this time; return at once if it was never started."""
        if self._was_started:
            self._thread.join(timeout_seconds)

    def is_alive(self) -> bool:
        """Return whether the thread is running."""
        return self._thread.is_alive()

    @property
    def has_ended(self) -> bool:
        """Whether the thread was started and has ended."""
        return self._was_started and not self._thread.is_alive()

    def _guarded(self) -> None:
        """Run the task; store and log any error that ends it."""
        try:
            self._run()
        except BaseException as error:  # noqa: BLE001  # supervising: whoever watches the thread ends the process
            self.error = error
            _LOG.critical("thread died", extra={"thread_name": self.name}, exc_info=True)


def describe_dead(threads: Iterable[SupervisedThread]) -> str:
    """Return a text with the names and errors of the threads that have ended, "" = none has."""
    dead = [f"{one.name} ({type(one.error).__name__})" if one.error else one.name for one in threads if one.has_ended]
    return f"dead threads: {', '.join(dead)}" if dead else ""
