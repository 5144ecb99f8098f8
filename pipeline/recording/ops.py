"""Read ``ops.parquet``: traced operations, in the columns of the public what-if traces.

``read_recording`` does not read it, because no live operator receives such rows: traces are requested, not streamed.
Backtests and training read it together with the rest (``read_with_ops``).
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
"""Function from a step number to the time at which the step ended, in ns."""

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
"""Specification of ``ops.parquet``.

It has no time column, as ``start_ts`` is seconds within the step on its own clock.
"""
TABLE: Final = OPS.name
"""Name of the operations' table in a recording read by ``read_with_ops``."""


class OpsWindow(NamedTuple):
    """Operations of the ranks of one pipeline stage in consecutive steps.

    Attributes:
        stage: pipeline stage.
        first_step: number of the first step.
        last_step: number of the last step.
        rows: the operations.
    """

    stage: int
    first_step: int
    last_step: int
    rows: OpRows


def read_with_ops(folder: Path, limits: ReadLimits = DEFAULT_LIMITS) -> Recording:
    """Read a recording, with its operations as the table ``ops`` if it has any.

    Args:
        folder: the recording.
        limits: limits on the operations and on the rest.

    Raises:
        RecordingError: as ``read_recording`` and ``read_ops``.
    """
    recording, path = read_recording(folder, limits), folder / f"{TABLE}.parquet"
    if not is_there(path):
        return recording
    check_sizes([(path, OPS)], limits, 0)
    return replace(recording, tables={**recording.tables, TABLE: read_ops(path)})


def read_ops(path: Path) -> Columns:
    """Read ``ops.parquet`` and check it.

    Raises:
        RecordingError: it does not match the format; names file, column and row.
    """
    columns = read_table(path, OPS)
    duration = _numbers(columns, "duration")
    bad = np.flatnonzero(~np.isfinite(duration))
    if bad.size:
        row = int(bad[0])
        raise RecordingError(path.name, f"{duration[row]}: must be a number", column="duration", row=row)
    return columns


def vocabulary_of(columns: Columns) -> Vocabulary:
    """Return the operation types of a trace in alphabetical order."""
    optype = columns["optype"]
    assert isinstance(optype, Text)  # noqa: S101  # by its specification
    return Vocabulary(tuple(sorted({optype.words[code] for code in np.unique(optype.codes).tolist()})))


def step_windows(columns: Columns, vocabulary: Vocabulary, step_count: int) -> Iterator[OpsWindow]:
    """Yield a trace in windows of ``step_count`` steps, for each window stage by stage.

    An incomplete last window is left out.
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
    """Return rank -> stage for the ranks of a trace, ascending."""
    ranks, first = np.unique(_numbers(columns, "rank"), return_index=True)
    return dict(zip(ranks.tolist(), _numbers(columns, "stage")[first].tolist(), strict=True))


def step_clock(recording: Recording) -> StepClock:
    """Return a function from step number to the time at which the step ended.

    The times come from ``steps.parquet`` if it holds the trace's first and last step. Otherwise the steps are assumed
    to divide the recording evenly, which is a guess.

    Args:
        recording: a recording with operations, from ``read_with_ops``.
    """
    numbers, manifest = _numbers(recording.tables[TABLE], "step").astype(np.int64), recording.manifest
    first, last = int(numbers.min()), int(numbers.max())
    known, ends_ns = np.array([first - 1, last]), np.array([0, manifest.end_ns - manifest.start_ns])
    if len(_numbers(steps := recording.tables.get("steps", {"step": np.zeros(0)}), "step")):
        steps_seen, ts_ns = _numbers(steps, "step").astype(np.int64), _numbers(steps, "ts_ns").astype(np.int64)
        if steps_seen.min() <= first and steps_seen.max() >= last:
            order = np.lexsort((ts_ns, steps_seen))
            known, rows = np.unique(steps_seen[order][::-1], return_index=True)  # of a step's ranks, the last to end it
            ends_ns = np.maximum.accumulate(ts_ns[order][::-1][rows] - manifest.start_ns)
    return lambda step: manifest.start_ns + round(float(np.interp(step, known, ends_ns)))


def _numbers(columns: Columns, name: str) -> npt.NDArray[np.generic]:
    """Return a column of numbers."""
    column = columns[name]
    assert isinstance(column, np.ndarray)  # noqa: S101  # by its specification
    return column
