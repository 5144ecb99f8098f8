"""A trace of operations as arrays indexed by operation, step and data-parallel rank.

All steps and data-parallel ranks run the same operations, so one of them serves as a template. Steps that lack an
operation are left out and listed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tocsin.models.whatif import optypes
from tocsin.schemas.errors import FieldError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

_OWN_CLOCK_SECONDS = 1024.0
"""Starts beyond this are not on the clock of a step that began at 0."""
_LEAST_COMPLETE_RATIO = 0.5
"""Least share of steps that must hold the same operations; below that the trace is no trace of one job."""


@dataclass(frozen=True, slots=True)
class OpTrace:
    """Traced operations, one per row, in any order. All arrays have shape (rows,).

    Attributes:
        dp_rank: data-parallel coordinate.
        stage: pipeline stage, 0 to the number of stages less one.
        rank: global rank of the recorded worker.
        step: training step.
        optype: index into ``words``.
        words: names of operation types.
        start_seconds: start within the step, on the step's own clock.
        duration_seconds: duration, waiting included.
        seq_id: order among the operations of this type on this worker in this step, from 0.
        mc: model chunk within the stage; -1 where that makes no sense.
        mb_id: microbatch of a computation; -1 otherwise.
        gmc: model chunk within the model, computation only; -1 otherwise.
    """

    dp_rank: IntArray
    stage: IntArray
    rank: IntArray
    step: IntArray
    optype: IntArray
    words: tuple[str, ...]
    start_seconds: FloatArray
    duration_seconds: FloatArray
    seq_id: IntArray
    mc: IntArray
    mb_id: IntArray
    gmc: IntArray


@dataclass(frozen=True, slots=True)
class TemplateOp:
    """One operation of a step on one data-parallel rank's stages.

    Attributes:
        index: row of the arrays in ``TraceArrays``.
        optype: its type.
        seq_id: order among the operations of this type on this stage.
        stage: pipeline stage.
        start_seconds: start in the template's step.
        end_seconds: end in the template's step.
        mc: model chunk within the stage, -1 if none.
        gmc: model chunk within the model, -1 if none.
        mb_id: microbatch, -1 if none.
    """

    index: int
    optype: str
    seq_id: int
    stage: int
    start_seconds: float
    end_seconds: float
    mc: int
    gmc: int
    mb_id: int

    @property
    def name(self) -> str:
        """Name for error texts."""
        return f"{self.optype} {self.seq_id} of stage {self.stage}"


@dataclass(frozen=True, slots=True)
class TraceArrays:
    """A trace as dense arrays.

    Attributes:
        ops: template operations, ordered by type, sequence and stage.
        steps: step numbers, ascending, shape (steps,).
        left_out_steps: numbers of the steps that do not hold the same operations as the others.
        dp_ranks: data-parallel coordinates, ascending, shape (dp,).
        stage_count: number of pipeline stages.
        ranks: global rank of each worker, shape (dp, stages).
        start_seconds: start within the step, shape (ops, steps, dp).
        end_seconds: end within the step, same shape.
        duration_seconds: duration as traced, same shape.
    """

    ops: tuple[TemplateOp, ...]
    steps: IntArray
    left_out_steps: IntArray
    dp_ranks: IntArray
    stage_count: int
    ranks: IntArray
    start_seconds: FloatArray
    end_seconds: FloatArray
    duration_seconds: FloatArray

    @property
    def stages(self) -> IntArray:
        """Stage of each operation, shape (ops,)."""
        return np.array([op.stage for op in self.ops], np.int64)


def arrange(trace: OpTrace) -> TraceArrays:
    """Arrange the rows of a trace by operation, step and data-parallel rank.

    Raises:
        FieldError: no rows, an unknown operation type, a stage without rows, one operation twice, or too few steps
            that hold the same operations.
    """
    _check(trace)
    (steps, step_of), (dp_ranks, dp_of) = _places(trace.step), _places(trace.dp_rank)
    trace = _on_step_clocks(trace, step_of, steps.size)
    cell_of, shape = step_of * dp_ranks.size + dp_of, (steps.size, dp_ranks.size)
    keys, key_of = _keys(trace, shape[0] * shape[1])
    kept, template_cell = _complete_steps(keys.size, key_of, cell_of, shape)
    rows = np.flatnonzero(cell_of == template_cell)
    rows = rows[np.argsort(key_of[rows], kind="stable")]
    index_of = np.full(keys.size, -1)
    index_of[key_of[rows]] = np.arange(rows.size)
    chosen = slice(None) if kept.all() else np.flatnonzero(kept[step_of])
    step_position = (np.cumsum(kept) - 1)[step_of[chosen]]
    size = (rows.size, int(kept.sum()), dp_ranks.size)
    flat = (index_of[key_of[chosen]] * size[1] + step_position) * size[2] + dp_of[chosen]
    ends = _ends(trace)
    start, end, duration = (
        _spread(values[chosen], flat, size) for values in (trace.start_seconds, ends, trace.duration_seconds)
    )
    first = start.min(axis=(0, 2), keepdims=True)
    start -= first
    end -= first
    stage_count = int(trace.stage.max()) + 1
    ranks = np.zeros((dp_ranks.size, stage_count), np.int64)
    ranks[dp_of, trace.stage] = trace.rank
    ops = _template_ops(trace, rows, ends)
    return TraceArrays(ops, steps[kept], steps[~kept], dp_ranks, stage_count, ranks, start, end, duration)


def _on_step_clocks(trace: OpTrace, step_of: IntArray, step_count: int) -> OpTrace:
    """Return the trace with the clock of each step begun at 0, if its clock is another one, such as Unix time.

    Ends are rounded to float32, which keeps a tenth of a millisecond up to ``_OWN_CLOCK_SECONDS``.
    """
    if float(np.abs(trace.start_seconds).max()) < _OWN_CLOCK_SECONDS:
        return trace
    first = np.full(step_count, np.inf)
    np.minimum.at(first, step_of, trace.start_seconds)
    return replace(trace, start_seconds=trace.start_seconds - first[step_of])


def _spread(values: FloatArray, flat: IntArray, size: tuple[int, int, int]) -> FloatArray:
    """Return the values of rows in an array of this size, each at its flat index."""
    found = np.empty(size)
    found.ravel()[flat] = values
    return found


def _check(trace: OpTrace) -> None:
    """Check types, stages and times; raises ``FieldError``."""
    if not trace.step.size:
        raise FieldError("rows", 0, "at least one operation")
    for code in np.flatnonzero(np.bincount(trace.optype)).tolist():
        if trace.words[code] not in optypes.KNOWN:
            row = int(np.flatnonzero(trace.optype == code)[0])
            raise FieldError(f"optype[{row}]", trace.words[code], f"one of {', '.join(optypes.KNOWN)}")
    for name, values in (("start_ts", trace.start_seconds), ("duration", trace.duration_seconds)):
        bad = np.flatnonzero(~np.isfinite(values))
        if bad.size:
            raise FieldError(f"{name}[{bad[0]}]", float(values[bad[0]]), "a finite number")
    if not trace.duration_seconds.any():
        raise FieldError("duration", 0.0, "at least one operation that takes time")
    stages, _ = _places(trace.stage)
    if not np.array_equal(stages, np.arange(stages.size)):
        raise FieldError("stage", stages.tolist(), "0 and all up to the last stage")


def _places(values: IntArray) -> tuple[IntArray, IntArray]:
    """Return the distinct values, ascending, and the place of each row's value among them.

    Linear where the values are as dense as ranks and steps are; sorted otherwise.
    """
    low = int(values.min())
    if int(values.max()) - low > _SPARSE_FACTOR * values.size + _SPARSE_LEAST:
        found, places = np.unique(values, return_inverse=True)
        return found, places.astype(np.int64)
    offset = values - low
    is_there = np.zeros(int(offset.max()) + 1, bool)
    is_there[offset] = True
    return np.flatnonzero(is_there) + low, (np.cumsum(is_there) - 1)[offset]


_SPARSE_FACTOR, _SPARSE_LEAST = 4, 1_000
"""Values are dense if their range is at most this many times their number, plus the second figure."""


def _keys(trace: OpTrace, cell_count: int) -> tuple[IntArray, IntArray]:
    """Return one number for each type, sequence and stage, and the place of each row's number among them.

    Args:
        trace: the rows.
        cell_count: steps x data-parallel ranks.

    Raises:
        FieldError: a sequence number is negative, or there are more operations than one step can have.
    """
    number = {word: optypes.KNOWN.index(word) for word in trace.words if word in optypes.KNOWN}
    code = np.array([number.get(word, -1) for word in trace.words], np.int64)[trace.optype]
    low = int(trace.seq_id.min())
    if low < 0:
        raise FieldError(f"seq_id[{int(trace.seq_id.argmin())}]", low, "at least 0")
    sequences, stages = int(trace.seq_id.max()) + 1, int(trace.stage.max()) + 1
    if sequences > trace.seq_id.size:
        row = int(trace.seq_id.argmax())
        raise FieldError(f"seq_id[{row}]", int(trace.seq_id[row]), "below the number of rows")
    keys, key_of = _places((code * sequences + trace.seq_id) * stages + trace.stage)
    if keys.size * cell_count > _MOST_GAPS * trace.seq_id.size + _SPARSE_LEAST:
        must = f"operations that most steps have (there are {keys.size} different ones)"
        raise FieldError("seq_id", f"{trace.seq_id.size} rows in {cell_count} steps and ranks", must)
    return keys, key_of


_MOST_GAPS = 20
"""Most times that the steps may lack operations: beyond, the rows are no trace, and take too much memory."""


def _complete_steps(
    key_count: int, key_of: IntArray, cell_of: IntArray, shape: tuple[int, int]
) -> tuple[npt.NDArray[np.bool_], int]:
    """Return which steps hold the most frequent set of operations on all ranks, and the first such cell.

    Args:
        key_count: number of different operations.
        key_of: operation of each row.
        cell_of: step and data-parallel rank of each row as one number.
        shape: number of steps and of data-parallel ranks.

    Raises:
        FieldError: one operation stands there twice, or fewer than half of the steps are complete.
    """
    is_there = np.zeros((shape[0] * shape[1], key_count), bool)
    is_there[cell_of, key_of] = True
    if int(is_there.sum()) < key_of.size:
        flat = cell_of * key_count + key_of
        order = np.argsort(flat, kind="stable")
        row = int(order[np.flatnonzero(np.diff(flat[order]) == 0)[0] + 1])
        raise FieldError(f"seq_id[{row}]", "the same operation twice", "different in one step of one worker")
    signatures = [packed.tobytes() for packed in np.packbits(is_there, axis=1)]
    usual = Counter(signatures).most_common(1)[0][0]
    complete = np.array([signature == usual for signature in signatures]).reshape(shape).all(axis=1)
    if complete.sum() < max(1.0, _LEAST_COMPLETE_RATIO * shape[0]):
        must = "at least half of the steps, on every data-parallel rank"
        raise FieldError("steps with the same operations", f"{int(complete.sum())} of {shape[0]}", must)
    return complete, int(np.flatnonzero(complete)[0]) * shape[1]


def _ends(trace: OpTrace) -> FloatArray:
    """Return the end of each operation, rounded to the precision of the public traces.

    The published results were computed with ends in float32. Rounding likewise keeps ours equal to them in all digits
    that are compared.
    """
    ends = trace.start_seconds.astype(np.float32) + trace.duration_seconds.astype(np.float32)
    return ends.astype(np.float64)


def _template_ops(trace: OpTrace, rows: IntArray, ends: FloatArray) -> tuple[TemplateOp, ...]:
    """Return the operations of one step of one data-parallel rank."""
    return tuple(
        TemplateOp(
            index,
            trace.words[trace.optype[row]],
            int(trace.seq_id[row]),
            int(trace.stage[row]),
            float(trace.start_seconds[row]),
            float(ends[row]),
            int(trace.mc[row]),
            int(trace.gmc[row]),
            int(trace.mb_id[row]),
        )
        for index, row in enumerate(rows.tolist())
    )
