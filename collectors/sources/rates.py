"""Rates from counters that wrap, reset, or come late."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final

NS_PER_SECOND: Final = 1_000_000_000


class Rates:
    """Remembers each counter's last value."""

    def __init__(self) -> None:
        """Remember nothing yet."""
        self._last: dict[Hashable, tuple[int, int]] = {}

    def per_second(self, key: Hashable, value: int, now_ns: int) -> float | None:
        """Return a counter's rate since its last value.

        None for the first value, and where the counter went back: it wrapped or was reset, and
        how often nobody knows; the next value counts from there. Never negative.

        >>> rates = Rates()
        >>> [rates.per_second("a", value, second * 10**9) for second, value in enumerate((5, 9, 2, 4))]
        [None, 4.0, None, 2.0]
        """
        before, self._last[key] = self._last.get(key), (value, now_ns)
        if before is None or value < before[0] or now_ns <= before[1]:
            return None
        return (value - before[0]) * NS_PER_SECOND / (now_ns - before[1])

    def increase(self, key: Hashable, value: int) -> int:
        """Return by how much a counter of rare things grew: 0 for the first value and after a reset.

        >>> rates = Rates()
        >>> [rates.increase("a", value) for value in (5, 7, 1, 2)]
        [0, 2, 0, 1]
        """
        before, self._last[key] = self._last.get(key), (value, 0)
        return max(0, value - before[0]) if before is not None else 0

    def forget(self, key: Hashable) -> None:
        """Forget a counter; its next value is its first."""
        self._last.pop(key, None)
