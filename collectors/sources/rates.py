"""Rates of counters that wrap, are reset, or are read late."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

NS_PER_SECOND: Final = 1_000_000_000


class Rates:
    """Computes rates from successive values of counters."""

    def __init__(self) -> None:
        """Start without any value."""
        self._last: dict[Hashable, tuple[int, int]] = {}

    def per_second(self, key: Hashable, value: int, now_ns: int) -> float | None:
        """Return a counter's rate per second since its last value.

        None for the first value, and if the counter went back: it wrapped or was reset, an unknown number of times. The
        next value is compared with the new one. Never negative.

        >>> rates = Rates()
        >>> [rates.per_second("a", value, second * 10**9) for second, value in enumerate((5, 9, 2, 4))]
        [None, 4.0, None, 2.0]
        """
        before, self._last[key] = self._last.get(key), (value, now_ns)
        if before is None or value < before[0] or now_ns <= before[1]:
            return None
        return (value - before[0]) * NS_PER_SECOND / (now_ns - before[1])

    def increase(self, key: Hashable, value: int) -> int:
        """Return the growth of a counter of rare events: 0 for the first value and after a reset.

        >>> rates = Rates()
        >>> [rates.increase("a", value) for value in (5, 7, 1, 2)]
        [0, 2, 0, 1]
        """
        before, self._last[key] = self._last.get(key), (value, 0)
        return max(0, value - before[0]) if before is not None else 0

    def forget(self, key: Hashable) -> None:
        """Forget a counter's last value, so that its next one is its first."""
        self._last.pop(key, None)
