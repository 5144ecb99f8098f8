"""What the trace detectors remember of each rank: its last windows' features; and how pasts are written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tocsin.models.rank_past import RankPast
from tocsin.pipeline.core.arrays import array_from, array_state, arrays_from, arrays_state

Singles = NDArray[np.float32]


class SequenceMemory:
    """The last windows' features of each rank; a rank that misses one begins anew.

    With 66 features and 6 windows that is 1.6 kB a rank. Ranks that were not there for a window are forgotten.
    """

    def __init__(self, length: int) -> None:
        """Remember nothing.

        Args:
            length: windows of a sequence.
        """
        self._length = length
        self._rows: dict[int, list[Singles]] = {}
        self._newest_ns: dict[int, int] = {}

    def take(self, ranks: NDArray[np.int64], features: Singles, begin_ns: int) -> None:
        """Take one window of one role's ranks in.

        Args:
            ranks: those that were measured.
            features: a row each.
            begin_ns: when the window began; the roles of one window share it.
        """
        newest = max(self._newest_ns.values(), default=begin_ns)
        if newest < begin_ns:  # a new window: whoever missed the one before has a gap
            gone = [rank for rank, seen_ns in self._newest_ns.items() if seen_ns < newest]
            for rank in gone:
                del self._rows[rank], self._newest_ns[rank]
        for rank, row in zip(ranks.tolist(), features, strict=True):
            rows = self._rows.setdefault(rank, [])
            rows.append(row)
            del rows[: -self._length]
            self._newest_ns[rank] = begin_ns

    def whole(self, ranks: NDArray[np.int64]) -> tuple[NDArray[np.int64], Singles]:
        """Of these ranks, those with a whole sequence, and their sequences."""
        full = [rank for rank in ranks.tolist() if len(self._rows.get(rank, ())) == self._length]
        stacked = [np.stack(self._rows[rank]) for rank in full]
        return np.array(full, np.int64), np.stack(stacked) if stacked else np.zeros((0, self._length, 0), np.float32)

    def to_state(self) -> list[Any]:
        """JSON-able state."""
        return [[rank, self._newest_ns[rank], array_state(np.stack(rows))] for rank, rows in sorted(self._rows.items())]

    def load_state(self, state: list[Any]) -> None:
        """Take back what ``to_state`` gave."""
        self._rows = {rank: list(array_from(rows)) for rank, _, rows in state}
        self._newest_ns = {rank: newest_ns for rank, newest_ns, _ in state}


def past_state(past: RankPast) -> dict[str, Any]:
    """JSON-able state of a past."""
    return arrays_state(past, _PAST)


def past_from(past: RankPast, state: Mapping[str, Any]) -> None:
    """Take back what ``past_state`` gave."""
    arrays_from(past, state, _PAST)


_PAST = ("ranks", "counts", "means", "variances")
