"""A trace of operations as arrays indexed by operation, step and data-parallel rank.

All steps and data-parallel ranks run the same operations, so one of them serves as a template. Steps that lack an
operation are left out and listed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tocsin.models.whatif import optypes
from tocsin.schemas.errors import FieldError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

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
    steps, step_of = np.unique(trace.step, return_inverse=True)
    dp_ranks, dp_of = np.unique(trace.dp_rank, return_inverse=True)
    key = _keys(trace)
    kept, template_cell = _complete_steps(key, step_of * dp_ranks.size + dp_of, (steps.size, dp_ranks.size))
    order = np.flatnonzero(step_of * dp_ranks.size + dp_of == template_cell)
    order = order[np.argsort(key[order], kind="stable")]
    template = key[order]
    rows = np.flatnonzero(kept[step_of])
    position = (np.cumsum(kept) - 1)[step_of[rows]]
    shape = (template.size, int(kept.sum()), dp_ranks.size)
    cell = (np.searchsorted(template, key[rows]), position, dp_of[rows])
    start, end = (np.zeros(shape) for _ in range(2))
    start[cell] = trace.start_seconds[rows]
    end[cell] = _ends(trace)[rows]
    duration = np.zeros(shape)
    duration[cell] = trace.duration_seconds[rows]
    start, end = _from_step_start(start, end)
    stage_count = int(trace.stage.max()) + 1
    ranks = np.zeros((dp_ranks.size, stage_count), np.int64)
    ranks[dp_of, trace.stage] = trace.rank
    ops = _template_ops(trace, order)
    return TraceArrays(ops, steps[kept], steps[~kept], dp_ranks, stage_count, ranks, start, end, duration)


def _check(trace: OpTrace) -> None:
    """Check types, stages and times; raises ``FieldError``."""
    if not trace.step.size:
        raise FieldError("rows", 0, "at least one operation")
    for code in np.unique(trace.optype).tolist():
        if trace.words[code] not in optypes.KNOWN:
            row = int(np.flatnonzero(trace.optype == code)[0])
            raise FieldError(f"optype[{row}]", trace.words[code], f"one of {', '.join(optypes.KNOWN)}")
    for name, values in (("start_ts", trace.start_seconds), ("duration", trace.duration_seconds)):
        bad = np.flatnonzero(~np.isfinite(values))
        if bad.size:
            raise FieldError(f"{name}[{bad[0]}]", float(values[bad[0]]), "a finite number")
    stages = np.unique(trace.stage)
    if not np.array_equal(stages, np.arange(stages.size)):
        raise FieldError("stage", stages.tolist(), "0 and all up to the last stage")


def _keys(trace: OpTrace) -> IntArray:
    """Return one number for type, sequence and stage of each row, so that equal operations have equal numbers."""
    number = {word: optypes.KNOWN.index(word) for word in trace.words if word in optypes.KNOWN}
    code = np.array([number.get(word, -1) for word in trace.words], np.int64)[trace.optype]
    low = int(trace.seq_id.min())
    if low < 0:
        raise FieldError(f"seq_id[{int(trace.seq_id.argmin())}]", low, "at least 0")
    sequences, stages = int(trace.seq_id.max()) + 1, int(trace.stage.max()) + 1
    key: IntArray = (code * sequences + trace.seq_id) * stages + trace.stage
    return key


def _complete_steps(key: IntArray, cell: IntArray, shape: tuple[int, int]) -> tuple[npt.NDArray[np.bool_], int]:
    """Return which steps hold the most frequent set of operations on all ranks, and the first such cell.

    Args:
        key: operation of each row.
        cell: step and data-parallel rank of each row as one number.
        shape: number of steps and of data-parallel ranks.

    Raises:
        FieldError: one operation stands there twice, or fewer than half of the steps are complete.
    """
    order = np.lexsort((key, cell))
    twice = np.flatnonzero((np.diff(key[order]) == 0) & (np.diff(cell[order]) == 0))
    if twice.size:
        row = int(order[twice[0] + 1])
        raise FieldError(f"seq_id[{row}]", "the same operation twice", "different in one step of one worker")
    counts = np.bincount(cell, minlength=shape[0] * shape[1])
    begins = np.concatenate([[0], np.cumsum(counts)])
    signatures = [key[order[begins[at] : begins[at + 1]]].tobytes() for at in range(counts.size)]
    tally: dict[bytes, int] = {}
    for signature in signatures:
        tally[signature] = tally.get(signature, 0) + 1
    usual = max(tally, key=lambda signature: tally[signature])
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


def _from_step_start(start: FloatArray, end: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return starts and ends counted from the step's first start."""
    first = start.min(axis=(0, 2), keepdims=True)
    return start - first, end - first


def _template_ops(trace: OpTrace, rows: IntArray) -> tuple[TemplateOp, ...]:
    """Return the operations of one step of one data-parallel rank."""
    ends = _ends(trace)
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
