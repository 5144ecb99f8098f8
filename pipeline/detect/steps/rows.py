"""Step times of one finished step by rank, and of several steps as one table."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tocsin.pipeline.core.arrays import array_from, array_state
from tocsin.pipeline.core.operator import (
    UNCHANGED,
    columns_of,
    from_columns,
    pack_state,
    unpack_state,
)
from tocsin.schemas.records import StepRecord

FloatArray = NDArray[np.float64]
_OWN_PART_SIZE: Final = 10_000
"""Number of values from which on a step is a snapshot part of its own: 80 kB, some 1,700 ranks."""

COLUMNS = ("duration", "communication", "data", "forward", "backward", "optimizer")
"""Names of the columns: step duration and its phases."""
values_of = itemgetter(*(StepRecord._fields.index(f"{name}_seconds") for name in COLUMNS))
"""Function that returns the columns of a step record, in their order."""


@dataclass(frozen=True, slots=True)
class StepRows:
    """Times of one step, one row per rank.

    Attributes:
        end_ns: time at which the last rank ended the step.
        ranks: ranks, ascending.
        values: seconds, shape (ranks, columns), NaN = not measured; stored column by column.
    """

    end_ns: int
    ranks: tuple[int, ...]
    values: FloatArray

    @classmethod
    def of(cls, rows: Mapping[int, StepRecord]) -> StepRows:
        """Return the rows of one step from rank -> step record."""
        ranks = tuple(sorted(rows))
        columns = np.array(list(zip(*(values_of(rows[rank]) for rank in ranks), strict=True)), np.float64)
        end_ns = max(row.ts_ns for row in rows.values())
        return cls(int(float(end_ns)), ranks, columns.T)

    def duration_of(self, rank: int) -> float | None:
        """Return the step time of one rank in seconds; None if the rank has no row."""
        return float(self.values[self.ranks.index(rank), 0]) if rank in self.ranks else None

    def to_state(self) -> list[Any]:
        """Return the state as values for a snapshot; numbers are stored as arrays."""
        return [self.end_ns, np.diff(np.array(self.ranks, "<i8"), prepend=0).astype("<i4"), array_state(self.values.T)]

    @classmethod
    def from_state(cls, state: Sequence[Any]) -> StepRows:
        """Return the rows from values that ``to_state`` returned."""
        return cls(state[0], tuple(np.cumsum(state[1], dtype=np.int64).tolist()), array_from(state[2]).T)

    def follows(self, before: StepRows | None) -> StepRows:
        """Return these rows, sharing the previous step's ``ranks`` tuple if equal, so that comparing them is fast."""
        same = before is not None and before.ranks == self.ranks
        return replace(self, ranks=before.ranks) if same and before is not None else self


def window_parts(
    window: Sequence[StepRows], judged_count: int, known: Container[str] = ()
) -> tuple[list[Any], dict[str, bytes]]:
    """Return a window of steps as snapshot state; large steps become parts of their own, as they never change.

    Args:
        window: steps, newest last.
        judged_count: number of the newest step.
        known: names of parts that are stored already.

    Returns:
        For each step its part's name or its state, and the parts by name.
    """
    entries: list[Any] = []
    parts: dict[str, bytes] = {}
    for number, step in enumerate(window, judged_count - len(window) + 1):
        if step.values.size < _OWN_PART_SIZE:
            entries.append(step.to_state())
            continue
        name = f"steps:{number}:{step.end_ns}"
        entries.append(name)
        parts[name] = UNCHANGED if name in known else pack_state(step.to_state())
    return entries, parts


def window_from(entries: Sequence[Any], parts: Mapping[str, bytes]) -> list[StepRows]:
    """Return the window of steps from values that ``window_parts`` returned."""
    window: list[StepRows] = []
    for entry in entries:
        step = StepRows.from_state(unpack_state(parts, entry) if isinstance(entry, str) else entry)
        window.append(step.follows(window[-1] if window else None))
    return window


def pending_state(pending: Mapping[int, Mapping[int, StepRecord]]) -> list[Any]:
    """Return unfinished steps as [step, columns of its records], for a snapshot."""
    return [
        [step, columns_of(StepRecord, (row for _, row in sorted(rows.items())))]
        for step, rows in sorted(pending.items())
    ]


def pending_from(state: Sequence[Any]) -> dict[int, dict[int, StepRecord]]:
    """Return unfinished steps as step -> rank -> record, from values that ``pending_state`` returned."""
    return {step: {row.rank: row for row in from_columns(StepRecord, rows)} for step, rows in state}


def table_of(steps: Sequence[StepRows]) -> tuple[tuple[int, ...], FloatArray]:
    """Return the ranks of all steps, and their values of shape (columns, steps, ranks), NaN = not measured."""
    if all(step.ranks == steps[0].ranks for step in steps):
        return steps[0].ranks, np.stack([step.values.T for step in steps], axis=1)
    ranks = tuple(sorted({rank for step in steps for rank in step.ranks}))
    column = {rank: index for index, rank in enumerate(ranks)}
    table = np.full((len(COLUMNS), len(steps), len(ranks)), np.nan)
    for row, step in enumerate(steps):
        table[:, row, [column[rank] for rank in step.ranks]] = step.values.T
    return ranks, table
