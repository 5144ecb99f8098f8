"""Common part of both engines' sinks: an outbox, and a thread that connects, sends, spools and connects again."""

from __future__ import annotations

import logging
import random
import threading
from abc import ABC, abstractmethod

from tocsin.collectors.transport.outbox import Outbox
from tocsin.collectors.transport.sink import Probe, Refused, SinkStatus
from tocsin.schemas.records import Record


class ThreadedSink(ABC):
    """A ``Sink`` whose thread holds one connection after the other. See ``tocsin.collectors.transport.sink``."""

    def __init__(
        self,
        box: Outbox,
        logger: logging.Logger,
        *,
        backoff_seconds: tuple[float, float],
        end_seconds: float,
        away: tuple[str, str, str],
    ) -> None:
        """Prepare; ``start`` starts the thread.

        Args:
            box: what waits, and what the engine said.
            logger: where a connection that failed is logged.
            backoff_seconds: the first and the longest pause between two attempts.
            end_seconds: what closing takes beyond the time for sending.
            away: the log line of a failed connection: its message, and the name and value of its address field.
        """
        self._box = box
        self._logger = logger
        self._backoff_seconds = backoff_seconds
        self._end_seconds = end_seconds
        self._away = away
        self._thread = threading.Thread(target=self._run, name="sink", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def put(self, record: Record) -> None:
        """Take a record; never blocks."""
        self._box.put(record)

    def poll(self) -> list[Refused | Probe]:
        """Return what the engine or the broker said since the last call."""
        return self._box.poll()

    def status(self) -> SinkStatus:
        """Return how the way to the engine is."""
        return self._box.status

    def is_alive(self) -> bool:
        """Return whether the thread runs."""
        return self._thread.is_alive()

    def clock_jumped(self) -> None:
        """Forget the clocks' difference; the next exchange gives a new one."""
        self._box.offsets.clear()

    def close(self, seconds: float) -> None:
        """Send what waits, for at most so long; the rest stays in the spool."""
        self._box.closing_mono = self._box.mono() + seconds
        self._box.nudge()
        self._thread.join(seconds + self._end_seconds)

    @abstractmethod
    def _talk(self) -> tuple[bool, str]:
        """Hold one connection; return whether it was of use, and why it ended ("": the agent closes)."""

    def _run(self) -> None:
        box, first_seconds, said = self._box, self._backoff_seconds[0], ""
        message, field, address = self._away
        backoff = first_seconds
        while True:
            was_useful, text = self._talk()
            if was_useful:
                backoff, said = first_seconds, ""
            if text and text != said:
                said = text
                self._logger.warning(message, extra={field: address, "error": text})
            box.publish(connected=False)
            if box.closing_mono is not None:
                break
            self._pause(backoff * random.uniform(0.8, 1.2))
            backoff = min(self._backoff_seconds[1], backoff * 2)
        box.spool_all()
        box.publish(connected=False)
        box.spool.close()

    def _pause(self, seconds: float) -> None:
        """Wait before the next attempt; what comes meanwhile goes to the spool."""
        box = self._box
        until = box.mono() + seconds
        while box.closing_mono is None and box.mono() < until:
            box.spool_all()
            box.publish(connected=False)
            box.wait(until - box.mono())
