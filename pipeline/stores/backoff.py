"""Exponential backoff while a database is unreachable, with rate-limited log lines."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass

from tocsin.schemas.errors import TocsinError


@dataclass(frozen=True, slots=True)
class BackoffConfig:
    """Settings of the backoff.

    Attributes:
        first_seconds: wait after the first failure; doubled after each further failure.
        longest_seconds: maximum wait.
        say_again_seconds: interval at which a continuing failure is logged again.
    """

    first_seconds: float = 0.5
    longest_seconds: float = 30.0
    say_again_seconds: float = 60.0


class Backoff:
    """Counts consecutive failures and computes the wait before the next attempt.

    Args:
        log: receives an error line for each new failure, and an info line when writes succeed again.
        config: settings.
        clock: monotonic time in seconds.
    """

    def __init__(
        self,
        log: logging.Logger,
        config: BackoffConfig | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start without failures."""
        self._log = log
        self._config = config or BackoffConfig()
        self._clock = clock
        self._logged_at = 0.0
        self.failure_count = 0
        self.last_error = ""

    def failed(self, error: TocsinError) -> float:
        """Count a failure, log it if it is new or due again, and return how long to wait, in seconds.

        Up to half of the wait is random, so that several waiting clients do not return at the same moment.
        """
        now, words = self._clock(), str(error)
        if words != self.last_error or now - self._logged_at >= self._config.say_again_seconds:
            self._log.error("cannot write, will try again", extra={"reason": error.reason, "error": words})
            self.last_error, self._logged_at = words, now
        wait = min(self._config.first_seconds * 2.0 ** min(self.failure_count, 30), self._config.longest_seconds)
        self.failure_count += 1
        return wait * random.uniform(0.5, 1.0)

    def succeeded(self) -> None:
        """Reset the failure count, and log the recovery if there were failures."""
        if self.failure_count:
            self._log.info("writes again", extra={"failures": self.failure_count})
        self.failure_count, self.last_error = 0, ""
