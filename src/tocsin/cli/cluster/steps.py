"""Runs steps of work in parallel threads, each after the steps that it depends on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class Steps:
    """Steps of work; their daemon threads end with the process, so that a wait of minutes does not delay Ctrl-C."""

    def __init__(self, on_done: Callable[[str, float], None]) -> None:
        """Start without steps.

        Args:
            on_done: called in a step's thread with its name and its duration in seconds once it is done.
        """
        self._on_done = on_done
        self._done: dict[str, threading.Event] = {}
        self._threads: list[threading.Thread] = []
        self._errors: list[BaseException] = []
        self._changed = threading.Condition()

    def add(self, name: str, work: Callable[[], object], *after: str) -> None:
        """Add a step that starts once the steps ``after`` have ended; they must have been added before."""
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
        """Run all steps and wait for them; the first error is raised at once, in this thread."""
        for thread in self._threads:
            thread.start()
        with self._changed:
            self._changed.wait_for(lambda: self._errors or all(done.is_set() for done in self._done.values()))
        if self._errors:
            raise self._errors[0]
