"""``ops.parquet``: traced operations, in the columns of the public what-if traces.

Not a part of ``read_recording``: no operator that runs live has such rows (a trace is asked for, not streamed).
Backtests and training read it beside the rest (``read_with_ops``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from tocsin.models.op_features import OpRows, Vocabulary
from tocsin.pipeline.recording.limits import DEFAULT_LIMITS, ReadLimits, check_sizes
from tocsin.pipeline.recording.manifest import is_there
from tocsin.pipeline.recording.reader import read_recording, read_table
from tocsin.pipeline.recording.tables import Columns, ColumnSpec, Recording, TableSpec, Text
from tocsin.schemas.errors import RecordingError

StepClock = Callable[[int], int]
"""When a step ended, ns."""

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
        ColumnSpec("seq_id", "int64", required=False, nullable=True),
        ColumnSpec("mc", "int32", required=False, nullable=True),
        ColumnSpec("mb_id", "int32", required=False, nullable=True),
        ColumnSpec("gmc", "int32", required=False, nullable=True),
    ),
)
"""No time column: ``start_ts`` is seconds in the step, on a clock of its own."""
TABLE: Final = OPS.name
"""Where ``read_with_ops`` puts the operations among a recording's tables."""


class OpsWindow(NamedTuple):
    """The operations of one stage's ranks in some steps.

    Attributes:
        stage: of the pipeline.
        first_step: number of the window's first step.
        last_step: of its last one.
        rows: the operations.
    """

    stage: int
    first_step: int
    last_step: int
    rows: OpRows


def read_with_ops(folder: Path, limits: ReadLimits = DEFAULT_LIMITS) -> Recording:
    """Read a recording, with its operations as the table ``ops`` where it has some.

    Args:
        folder: the recording.
        limits: how much is read, of the operations and of the rest.

    Raises:
        RecordingError: as ``read_recording`` and ``read_ops``.
    """
    recording, path = read_recording(folder, limits), folder / f"{TABLE}.parquet"
    if not is_there(path):
        return recording
    check_sizes([(path, OPS)], limits, 0)
    return replace(recording, tables={**recording.tables, TABLE: read_ops(path)})


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


def step_windows(columns: Columns, vocabulary: Vocabulary, step_count: int) -> Iterator[OpsWindow]:
    """A trace in windows of so many of its steps, window by window, stage by stage.

    A last window that is shorter than the others is left out.
    """
    optype = columns["optype"]
    assert isinstance(optype, Text)  # noqa: S101  # by its specification
    ranks, stages, steps = (_numbers(columns, name).astype(np.int64) for name in ("rank", "stage", "step"))
    order = np.argsort(steps, kind="stable")
    classes = vocabulary.encode(optype.words)[optype.codes]
    seconds = _numbers(columns, "duration").astype(np.float64)
    numbers, begins = np.unique(steps[order], return_index=True)
    bounds = [*begins.tolist(), steps.size]
    for first in range(0, numbers.size - step_count + 1, step_count):
        inside = order[bounds[first] : bounds[first + step_count]]
        for stage in np.unique(stages[inside]).tolist():
            rows = inside[stages[inside] == stage]
            found = OpRows(ranks[rows], classes[rows], seconds[rows])
            yield OpsWindow(stage, int(numbers[first]), int(numbers[first + step_count - 1]), found)


def ranks_of(columns: Columns) -> dict[int, int]:
    """The ranks of a trace, ascending -> their stage."""
    ranks, first = np.unique(_numbers(columns, "rank"), return_index=True)
    return dict(zip(ranks.tolist(), _numbers(columns, "stage")[first].tolist(), strict=True))


def step_clock(recording: Recording) -> StepClock:
    """When the steps of a recording's trace ended; the trace itself does not say.

    As ``steps.parquet`` tells, where it holds the trace's first and last step. Else the trace is taken to
    cover the recording from begin to end, in steps of one length: a guess.

    Args:
        recording: of ``read_with_ops``, with operations.
    """
    numbers, manifest = _numbers(recording.tables[TABLE], "step").astype(np.int64), recording.manifest
    first, last = int(numbers.min()), int(numbers.max())
    known, ends_ns = np.array([first - 1, last]), np.array([0, manifest.end_ns - manifest.start_ns])
    if len(_numbers(steps := recording.tables.get("steps", {"step": np.zeros(0)}), "step")):
        told, ts_ns = _numbers(steps, "step").astype(np.int64), _numbers(steps, "ts_ns").astype(np.int64)
        if told.min() <= first and told.max() >= last:
            order = np.lexsort((ts_ns, told))
            known, rows = np.unique(told[order][::-1], return_index=True)  # of a step's ranks, the last to end it
            ends_ns = np.maximum.accumulate(ts_ns[order][::-1][rows] - manifest.start_ns)
    return lambda step: manifest.start_ns + round(float(np.interp(step, known, ends_ns)))


def _numbers(columns: Columns, name: str) -> npt.NDArray[np.generic]:
    column = columns[name]
    assert isinstance(column, np.ndarray)  # noqa: S101  # by its specification
    return column
