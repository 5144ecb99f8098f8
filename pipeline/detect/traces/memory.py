"""Recent features of each rank for the trace detectors, and state of ranks' pasts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tocsin.models.rank_past import RankPast
from tocsin.pipeline.core.arrays import array_from, array_state, arrays_from, arrays_state

Singles = NDArray[np.float32]


class SequenceMemory:
    """Features of each rank's last windows; a rank that misses a window starts anew.

    With 66 features and 6 windows it takes 1.6 kB a rank. Ranks that miss a window are forgotten.
    """

    def __init__(self, length: int) -> None:
        """Start without features.

        Args:
            length: windows of a sequence.
        """
        self.length = length
        """Windows of a sequence."""
        self._rows: dict[int, list[Singles]] = {}
        """Rank -> feature rows of its last windows, oldest first."""
        self._newest_ns: dict[int, int] = {}
        """Rank -> start of its newest window in nanoseconds."""

    def take(self, ranks: NDArray[np.int64], features: Singles, begin_ns: int) -> None:
        """Add one window of the ranks of one role.

        Args:
            ranks: measured ranks.
            features: one row per rank.
            begin_ns: start of the window; the roles of one window share it.
        """
        newest = max(self._newest_ns.values(), default=begin_ns)
        if newest < begin_ns:  # a new window: whoever missed the one before has a gap
            gone = [rank for rank, seen_ns in self._newest_ns.items() if seen_ns < newest]
            for rank in gone:
                del self._rows[rank], self._newest_ns[rank]
        for rank, row in zip(ranks.tolist(), features, strict=True):
            rows = self._rows.setdefault(rank, [])
            rows.append(row)
            del rows[: -self.length]
            self._newest_ns[rank] = begin_ns

    def whole(self, ranks: NDArray[np.int64]) -> tuple[NDArray[np.int64], Singles]:
        """Return those of these ranks with a complete sequence, and the sequences, shape (ranks, windows, features)."""
        full = [rank for rank in ranks.tolist() if len(self._rows.get(rank, ())) == self.length]
        stacked = [np.stack(self._rows[rank]) for rank in full]
        return np.array(full, np.int64), np.stack(stacked) if stacked else np.zeros((0, self.length, 0), np.float32)

    def to_state(self) -> list[Any]:
        """Return the state as JSON-serialisable values, for a snapshot."""
        return [[rank, self._newest_ns[rank], array_state(np.stack(rows))] for rank, rows in sorted(self._rows.items())]

    def load_state(self, state: list[Any]) -> None:
        """Restore the state from values that ``to_state`` returned."""
        self._rows = {rank: list(array_from(rows)) for rank, _, rows in state}
        self._newest_ns = {rank: newest_ns for rank, newest_ns, _ in state}


def past_state(past: RankPast) -> dict[str, Any]:
    """Return a rank past as JSON-serialisable values."""
    return arrays_state(past, _PAST)


def past_from(past: RankPast, state: Mapping[str, Any]) -> None:
    """Restore a rank past in place from values that ``past_state`` returned."""
    arrays_from(past, state, _PAST)


_PAST = ("ranks", "counts", "means", "variances")
