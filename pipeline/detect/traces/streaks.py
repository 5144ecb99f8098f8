"""Which ranks looked odd in most of the last windows, and since when."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class StreakConfig:
    """When odd windows are a streak.

    Attributes:
        hot_count: so many windows beyond the line
        recent_count: of so many are one.
    """

    hot_count: int
    recent_count: int


@dataclass(slots=True)
class Streaks:
    """Streaks of one detector; ranks that were not odd lately take no room."""

    config: StreakConfig
    now: dict[int, list[int]] = field(default_factory=dict)
    """rank -> [a bit a window, the newest lowest; begin of the first odd one, ns; windows since then]."""

    def see(self, measured: Iterable[int], hot: set[int], begin_ns: int) -> None:
        """Take one window in; ranks that were not measured keep their streak as it is.

        Args:
            measured: ranks that were.
            hot: those beyond the line.
            begin_ns: when the window began.
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
        """Of these ranks, those in a streak that the newest window belongs to -> since when, ns."""
        known = {rank: self.now[rank] for rank in ranks if rank in self.now}
        least = self.config.hot_count
        return {rank: entry[1] for rank, entry in known.items() if entry[0] & 1 and entry[0].bit_count() >= least}

    def lasted_count(self, rank: int) -> int:
        """Windows since a rank's streak began, 0: it has none."""
        return self.now[rank][2] if rank in self.now else 0

    def to_state(self) -> list[Any]:
        """JSON-able state."""
        return [[rank, list(entry)] for rank, entry in sorted(self.now.items())]

    def load_state(self, state: list[Any]) -> None:
        """Take back what ``to_state`` gave."""
        self.now = {rank: list(entry) for rank, entry in state}
