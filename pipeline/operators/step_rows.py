"""One finished step of a job: a row per rank, and several of them as one table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tocsin.pipeline.operators.arrays import array_from, array_state
from tocsin.schemas.records import StepRecord

FloatArray = NDArray[np.float64]

COLUMNS = ("duration", "communication", "data", "forward", "backward", "optimizer")
values_of = itemgetter(*(StepRecord._fields.index(f"{name}_seconds") for name in COLUMNS))
"""The columns of a step record, in their order."""


@dataclass(frozen=True, slots=True)
class StepRows:
    """What the ranks told of one step.

    Attributes:
        end_ns: when its last rank ended it.
        ranks: ascending.
        values: seconds, shape (ranks, columns), NaN = not measured.
    """

    end_ns: int
    ranks: tuple[int, ...]
    values: FloatArray

    @classmethod
    def of(cls, rows: Mapping[int, Sequence[float]]) -> StepRows:
        """From rank -> (its values, time of its end)."""
        ranks = tuple(sorted(rows))
        table = np.array([rows[rank] for rank in ranks], np.float64)
        return cls(int(table[:, -1].max()), ranks, table[:, :-1])

    def duration_of(self, rank: int) -> float | None:
        """Step time of one rank in seconds, None where it told nothing."""
        return float(self.values[self.ranks.index(rank), 0]) if rank in self.ranks else None

    def to_state(self) -> list[Any]:
        """JSON-able state."""
        return [self.end_ns, array_state(np.array(self.ranks, np.int64)), array_state(self.values)]

    @classmethod
    def from_state(cls, state: Sequence[Any]) -> StepRows:
        """Take back what ``to_state`` gave."""
        return cls(state[0], tuple(array_from(state[1]).tolist()), array_from(state[2]))


def table_of(steps: Sequence[StepRows]) -> tuple[tuple[int, ...], FloatArray]:
    """All ranks, and their values with shape (columns, steps, ranks)."""
    if all(step.ranks == steps[0].ranks for step in steps):
        return steps[0].ranks, np.stack([step.values for step in steps]).transpose(2, 0, 1)
    ranks = tuple(sorted({rank for step in steps for rank in step.ranks}))
    column = {rank: index for index, rank in enumerate(ranks)}
    table = np.full((len(COLUMNS), len(steps), len(ranks)), np.nan)
    for row, step in enumerate(steps):
        table[:, row, [column[rank] for rank in step.ranks]] = step.values.T
    return ranks, table
