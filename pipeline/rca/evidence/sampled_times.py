"""What ranks compute in the steps whose batches their loaders tell of, so that lengths and times can be compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from tocsin.schemas.records import StepRecord

_KEPT_COUNT: Final = 8
"""Newest sampled steps that are kept of a rank: as many as reports of it; the hook's comes within two of them."""


@dataclass(slots=True)
class SampledTimes:
    """Computation of ranks in sampled steps; a loader reports every so many steps, and may do so after the step ended.

    Attributes:
        every: rank -> [a reported step, distance of reported steps; 1 = unknown].
        kept: rank -> newest (step, seconds) that a report may come of, oldest first.
    """

    every: dict[int, tuple[int, int]] = field(default_factory=dict)
    kept: dict[int, list[tuple[int, float]]] = field(default_factory=dict)

    def expect(self, rank: int, step: int, distance: int) -> None:
        """Take that a loader reported of a step.

        Args:
            rank: its rank.
            step: the step.
            distance: number of steps since its report before; 0 or less = unknown.
        """
        self.every[rank] = step, max(distance, 1)

    def take(self, row: StepRecord) -> float:
        """Take a finished step and return what the rank computed in it, seconds; -1 = not sampled, or not measured."""
        if row.rank not in self.every:
            return -1.0
        step, distance = self.every[row.rank]
        if (row.step - step) % distance:
            return -1.0
        seconds = _compute_seconds(row)
        self.kept[row.rank] = [*self.kept.get(row.rank, ()), (row.step, seconds)][-_KEPT_COUNT:]
        return seconds

    def of(self, rank: int, step: int) -> float:
        """Return what a rank computed in a step, seconds; -1 = not known (yet)."""
        return next((seconds for number, seconds in self.kept.get(rank, ()) if number == step), -1.0)

    def newest_step(self, rank: int) -> int:
        """Return the newest finished step that is kept of a rank; -1 = none is."""
        kept = self.kept.get(rank)
        return kept[-1][0] if kept else -1

    def to_state(self) -> list[list[Any]]:
        """Return the state as JSON-serialisable values, for a snapshot."""
        kept = {rank: [list(one) for one in rows] for rank, rows in self.kept.items()}
        return [[rank, *every, kept.get(rank, [])] for rank, every in sorted(self.every.items())]

    def load_state(self, state: Sequence[Sequence[Any]]) -> None:
        """Restore the state from values that ``to_state`` returned."""
        self.every = {rank: (step, distance) for rank, step, distance, _ in state}
        self.kept = {rank: [(step, seconds) for step, seconds in kept] for rank, _, _, kept in state if kept}


def _compute_seconds(row: StepRecord) -> float:
    """Return a rank's forward and backward pass, else its step without waits, seconds; -1 = neither is measured."""
    if row.forward_seconds is not None and row.backward_seconds is not None:
        return row.forward_seconds + row.backward_seconds
    if row.communication_seconds is None:
        return -1.0
    return max(row.duration_seconds - row.communication_seconds - (row.data_seconds or 0.0), 0.0)
