"""Pieces of work side by side, each after those that it needs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Steps:
    """Threads that end with the process: a wait of minutes must not hold up Ctrl-C."""

    def __init__(self, on_done: Callable[[str, float], None]) -> None:
        """Plan nothing yet.

        Args:
            on_done: called with name and seconds when one is done, in its thread.
        """
        self._on_done = on_done
        self._done: dict[str, threading.Event] = {}
        self._threads: list[threading.Thread] = []
        self._errors: list[BaseException] = []
        self._changed = threading.Condition()

    def add(self, name: str, work: Callable[[], object], *after: str) -> None:
        """Plan a piece of work, after others that are planned already."""
        waits = [self._done[other] for other in after]
        done = self._done[name] = threading.Event()

        def run() -> None:
            for other in waits:
                other.wait()
            if not self._errors:
                begun = time.monotonic()
                try:
                    work()
                except BaseException as error:  # noqa: BLE001  # raised again in the thread that waits
                    self._errors.append(error)
                else:
                    self._on_done(name, time.monotonic() - begun)
            done.set()
            with self._changed:
                self._changed.notify_all()

        self._threads.append(threading.Thread(target=run, name=name, daemon=True))

    def run(self) -> None:
        """Do all; the first error is raised at once, in this thread."""
        for thread in self._threads:
            thread.start()
        with self._changed:
            self._changed.wait_for(lambda: self._errors or all(done.is_set() for done in self._done.values()))
        if self._errors:
            raise self._errors[0]
