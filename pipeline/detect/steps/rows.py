"""One finished step of a job: a row per rank, and several of them as one table."""

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
"""Numbers from which on a step is a part of its own: 80 kB, some 1,700 ranks."""

COLUMNS = ("duration", "communication", "data", "forward", "backward", "optimizer")
values_of = itemgetter(*(StepRecord._fields.index(f"{name}_seconds") for name in COLUMNS))
"""The columns of a step record, in their order."""


@dataclass(frozen=True, slots=True)
class StepRows:
    """What the ranks told of one step.

    Attributes:
        end_ns: when its last rank ended it.
        ranks: ascending.
        values: seconds, shape (ranks, columns), NaN = not measured; column by column in memory.
    """

    end_ns: int
    ranks: tuple[int, ...]
    values: FloatArray

    @classmethod
    def of(cls, rows: Mapping[int, StepRecord]) -> StepRows:
        """From rank -> what it told of the step."""
        ranks = tuple(sorted(rows))
        columns = np.array(list(zip(*(values_of(rows[rank]) for rank in ranks), strict=True)), np.float64)
        end_ns = max(row.ts_ns for row in rows.values())
        return cls(int(float(end_ns)), ranks, columns.T)

    def duration_of(self, rank: int) -> float | None:
        """Step time of one rank in seconds, None where it told nothing."""
        return float(self.values[self.ranks.index(rank), 0]) if rank in self.ranks else None

    def to_state(self) -> list[Any]:
        """State in which arrays stand."""
        return [self.end_ns, np.diff(np.array(self.ranks, "<i8"), prepend=0).astype("<i4"), array_state(self.values.T)]

    @classmethod
    def from_state(cls, state: Sequence[Any]) -> StepRows:
        """Take back what ``to_state`` gave."""
        return cls(state[0], tuple(np.cumsum(state[1], dtype=np.int64).tolist()), array_from(state[2]).T)

    def follows(self, before: StepRows | None) -> StepRows:
        """The same, with the ranks of the step before where they are equal: one tuple, equal at a glance."""
        same = before is not None and before.ranks == self.ranks
        return replace(self, ranks=before.ranks) if same and before is not None else self


def window_parts(
    window: Sequence[StepRows], judged_count: int, known: Container[str] = ()
) -> tuple[list[Any], dict[str, bytes]]:
    """A window as state: a large job's steps are parts of their own, as they never change.

    Args:
        window: newest last.
        judged_count: the newest one's number.
        known: parts that somebody has already.

    Returns:
        For each step the name of its part, or its state; and the parts.
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
    """Take back what ``window_parts`` gave."""
    window: list[StepRows] = []
    for entry in entries:
        step = StepRows.from_state(unpack_state(parts, entry) if isinstance(entry, str) else entry)
        window.append(step.follows(window[-1] if window else None))
    return window


def pending_state(pending: Mapping[int, Mapping[int, StepRecord]]) -> list[Any]:
    """Steps that are not finished, as [step, what each rank told]."""
    return [
        [step, columns_of(StepRecord, (row for _, row in sorted(rows.items())))]
        for step, rows in sorted(pending.items())
    ]


def pending_from(state: Sequence[Any]) -> dict[int, dict[int, StepRecord]]:
    """Take back what ``pending_state`` gave."""
    return {step: {row.rank: row for row in from_columns(StepRecord, rows)} for step, rows in state}


def table_of(steps: Sequence[StepRows]) -> tuple[tuple[int, ...], FloatArray]:
    """All ranks, and their values with shape (columns, steps, ranks)."""
    if all(step.ranks == steps[0].ranks for step in steps):
        return steps[0].ranks, np.stack([step.values.T for step in steps], axis=1)
    ranks = tuple(sorted({rank for step in steps for rank in step.ranks}))
    column = {rank: index for index, rank in enumerate(ranks)}
    table = np.full((len(COLUMNS), len(steps), len(ranks)), np.nan)
    for row, step in enumerate(steps):
        table[:, row, [column[rank] for rank in step.ranks]] = step.values.T
    return ranks, table
