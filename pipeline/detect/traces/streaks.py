"""Streaks of anomalous windows per rank."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class StreakConfig:
    """Number of anomalous windows that make a streak.

    Attributes:
        hot_count: least number of anomalous windows ...
        recent_count: ... among so many recent ones.
    """

    hot_count: int
    recent_count: int


@dataclass(slots=True)
class Streaks:
    """Streaks of one detector; ranks without recent anomalous windows take no memory."""

    config: StreakConfig
    now: dict[int, list[int]] = field(default_factory=dict)
    """Rank -> [one bit per window, newest lowest; start of the first anomalous window in ns; windows since then]."""

    def see(self, measured: Iterable[int], hot: set[int], begin_ns: int) -> None:
        """Add one window; ranks that were not measured keep their streak.

        Args:
            measured: ranks that were measured.
            hot: ranks that were anomalous.
            begin_ns: start of the window.
        """
        mask = (1 << self.config.recent_count) - 1
        for rank in measured:
            bits, since_ns, lasted = self.now.get(rank, (0, begin_ns, 0))
            bits = (bits << 1 | (rank in hot)) & mask
            if bits:
                self.now[rank] = [bits, since_ns, lasted + 1]
            else:
                self.now.pop(rank, None)

    def lasting(self, ranks: Iterable[int]) -> dict[int, int]:
        """Return rank -> start of its streak in nanoseconds, for ranks whose newest window is part of one."""
        known = {rank: self.now[rank] for rank in ranks if rank in self.now}
        least = self.config.hot_count
        return {rank: entry[1] for rank, entry in known.items() if entry[0] & 1 and entry[0].bit_count() >= least}

    def lasted_count(self, rank: int) -> int:
        """Return the number of windows since a rank's streak began; 0 if it has none."""
        return self.now[rank][2] if rank in self.now else 0

    def to_state(self) -> list[Any]:
        """Return the state as JSON-serialisable values, for a snapshot."""
        return [[rank, list(entry)] for rank, entry in sorted(self.now.items())]

    def load_state(self, state: list[Any]) -> None:
        """Restore the state from values that ``to_state`` returned."""
        self.now = {rank: list(entry) for rank, entry in state}
