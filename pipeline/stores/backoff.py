"""How long to wait for a database that is away, and how often to say so."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from tocsin.schemas.errors import TocsinError


@dataclass(frozen=True, slots=True)
class BackoffConfig:
    """Settings.

    Attributes:
        first_seconds: wait after the first failure; doubled after each further one.
        longest_seconds: at most this.
        say_again_seconds: a failure that goes on is logged again after this.
    """

    first_seconds: float = 0.5
    longest_seconds: float = 30.0
    say_again_seconds: float = 60.0


class Backoff:
    """Counts failures in a row.

    Args:
        log: takes one error line when something new is wrong, and one when it is over.
        config: settings.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        log: logging.Logger,
        config: BackoffConfig | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing failed yet."""
        self._log = log
        self._config = config or BackoffConfig()
        self._clock = clock
        self._said_at = 0.0
        self.failure_count = 0
        self.last_words = ""

    def failed(self, error: TocsinError) -> float:
        """Count a failure and return how long to wait, in seconds.

        Half of it is drawn: several that wait for one server do not come back together.
        """
        now, words = self._clock(), str(error)
        if words != self.last_words or now - self._said_at >= self._config.say_again_seconds:
            self._log.error("cannot write, will try again", extra={"reason": error.reason, "error": words})
            self.last_words, self._said_at = words, now
        wait = min(self._config.first_seconds * 2.0 ** min(self.failure_count, 30), self._config.longest_seconds)
        self.failure_count += 1
        return wait * random.uniform(0.5, 1.0)

    def succeeded(self) -> None:
        """Begin anew."""
        if self.failure_count:
            self._log.info("writes again", extra={"failures": self.failure_count})
        self.failure_count, self.last_words = 0, ""
