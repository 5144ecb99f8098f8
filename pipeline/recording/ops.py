"""``ops.parquet``: traced operations, in the columns of the public what-if traces.

Not a part of ``read_recording``: no operator that runs live has such rows (a trace is asked for, not streamed).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tocsin.models.op_features import OpRows, Vocabulary
from tocsin.pipeline.recording.reader import read_table
from tocsin.pipeline.recording.tables import Columns, ColumnSpec, TableSpec, Text
from tocsin.schemas.errors import RecordingError

OPS = TableSpec(
    "ops",
    (
        ColumnSpec("dp_rank", "int32", low=0),
        ColumnSpec("stage", "int32", low=0),
        ColumnSpec("rank", "int32", low=0),
        ColumnSpec("step", "int64", low=0),
        ColumnSpec("optype", "text", filled=True),
        ColumnSpec("start_ts", "float64"),
        ColumnSpec("duration", "float64", low=0),
        ColumnSpec("seq_id", "int64", required=False),
        ColumnSpec("mc", "int32", required=False),
        ColumnSpec("mb_id", "int32", required=False),
        ColumnSpec("gmc", "int32", required=False),
    ),
)
"""No time column: ``start_ts`` is seconds in the step, on a clock of its own."""


def read_ops(path: Path) -> Columns:
    """Read the file.

    Raises:
        RecordingError: it is not as the format says; names file, column and row.
    """
    columns = read_table(path, OPS)
    duration = _numbers(columns, "duration")
    bad = np.flatnonzero(~np.isfinite(duration))
    if bad.size:
        row = int(bad[0])
        raise RecordingError(path.name, f"{duration[row]}: must be a number", column="duration", row=row)
    return columns


def vocabulary_of(columns: Columns) -> Vocabulary:
    """The operation types that a trace holds, in alphabetical order."""
    optype = columns["optype"]
    assert isinstance(optype, Text)  # noqa: S101  # by its specification
    return Vocabulary(tuple(sorted({optype.words[code] for code in np.unique(optype.codes).tolist()})))


def step_windows(columns: Columns, vocabulary: Vocabulary, step_count: int) -> Iterator[tuple[int, OpRows]]:
    """A trace in windows of so many of its steps, stage by stage: (stage, operations of its ranks).

    A last window that is shorter than the others is left out.
    """
    optype = columns["optype"]
    assert isinstance(optype, Text)  # noqa: S101  # by its specification
    classes = vocabulary.encode(optype.words)[optype.codes]
    ranks, stages, steps = (_numbers(columns, name).astype(np.int64) for name in ("rank", "stage", "step"))
    seconds = _numbers(columns, "duration").astype(np.float64)
    numbers = np.unique(steps)
    for first in range(0, numbers.size - step_count + 1, step_count):
        inside = np.isin(steps, numbers[first : first + step_count])
        for stage in np.unique(stages[inside]).tolist():
            rows = inside & (stages == stage)
            yield stage, OpRows(ranks[rows], classes[rows], seconds[rows])


def _numbers(columns: Columns, name: str) -> npt.NDArray[np.generic]:
    column = columns[name]
    assert isinstance(column, np.ndarray)  # noqa: S101  # by its specification
    return column
