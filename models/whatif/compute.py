"""Computation times of a trace, split into what a stage, a worker, the data and pauses add.

A microbatch with long sequences is long forward and backward, and on all stages of its data-parallel rank. A pause of
the interpreter lengthens one forward computation on one worker, because the backward pass is launched from C++
(``seed-systems-a.md`` 4.8).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tocsin.models.whatif import optypes
from tocsin.models.whatif.scenarios import WhatIfModel
from tocsin.models.whatif.trace import FloatArray, IntArray, TraceArrays

LEAST_VARIATION_RATIO = 0.05
"""Least coefficient of variation of a worker's forward times for which its F-B correlation counts.

Machines and clocks alone scatter by 2 to 3 %, and a common drift of such a size correlates as well.
"""


@dataclass(frozen=True, slots=True)
class Computation:
    """Computations of one direction on one stage.

    Attributes:
        direction: ``forward`` or ``backward``.
        stage: pipeline stage.
        rows: rows of ``WhatIfModel.real_seconds``, ordered by chunk and microbatch, shape (n,).
        microbatches: number of each row's microbatch, from 0, shape (n,).
        seconds: shape (n, steps, dp).
        typical_seconds: of each chunk on each worker: mean over steps and microbatches, shape (n, dp).
    """

    direction: str
    stage: int
    rows: IntArray
    microbatches: IntArray
    seconds: FloatArray
    typical_seconds: FloatArray

    @property
    def relative(self) -> FloatArray:
        """Times over the worker's typical ones, less one; shape (n, steps, dp)."""
        relative: FloatArray = self.seconds / np.maximum(self.typical_seconds, _TINY_SECONDS)[:, None, :] - 1.0
        return relative


_TINY_SECONDS = 1e-9


@dataclass(frozen=True, slots=True)
class Correlation:
    """Correlation of forward and backward times within each worker, over its microbatches.

    Attributes:
        r: Pearson's r, NaN where one of them does not vary, shape (dp, stages).
        variation_ratio: coefficient of variation of the forward times, same shape.
    """

    r: FloatArray
    variation_ratio: FloatArray

    @property
    def median_r(self) -> float | None:
        """Median over the workers whose times vary enough; None where fewer than half of them do."""
        counted = (self.variation_ratio >= LEAST_VARIATION_RATIO) & np.isfinite(self.r)
        return float(np.median(self.r[counted])) if counted.sum() * 2 >= counted.size else None


def computations(model: WhatIfModel) -> list[Computation]:
    """Return the computations of each stage and direction, forward first, by stage."""
    arrays = model.arrays
    numbers = _microbatch_numbers(arrays)
    found = []
    for direction in optypes.DIRECTIONS:
        for stage in range(arrays.stage_count):
            ops = [op for op in arrays.ops if op.stage == stage and op.optype == f"{direction}-compute"]
            ops.sort(key=lambda op: (op.mc, numbers[op.index]))
            rows = np.array([op.index for op in ops], np.int64)
            seconds = model.real_seconds[rows]
            typical = np.empty((rows.size, arrays.dp_ranks.size))
            chunks = np.array([op.mc for op in ops])
            for chunk in np.unique(chunks):
                typical[chunks == chunk] = seconds[chunks == chunk].mean(axis=(0, 1))
            found.append(Computation(direction, stage, rows, numbers[rows], seconds, typical))
    return found


def correlation(parts: list[Computation]) -> Correlation:
    """Return the correlation of forward and backward times within each worker."""
    forward = [part.relative for part in parts if part.direction == "forward"]
    backward = [part.relative for part in parts if part.direction == "backward"]
    r, variation = [], []
    for ahead, back in zip(forward, backward, strict=True):
        variation.append(np.sqrt((ahead**2).mean(axis=(0, 1))))
        if ahead.shape != back.shape:
            r.append(np.full(ahead.shape[-1], np.nan))
            continue
        spread = np.sqrt((ahead**2).mean(axis=(0, 1)) * (back**2).mean(axis=(0, 1)))
        r.append(np.where(spread > 0, (ahead * back).mean(axis=(0, 1)) / np.where(spread > 0, spread, 1.0), np.nan))
    return Correlation(np.stack(r, axis=1), np.stack(variation, axis=1))


def _microbatch_numbers(arrays: TraceArrays) -> IntArray:
    """Return for each operation its microbatch as a number from 0; for those without one the sequence number."""
    given = np.array([op.mb_id if op.mb_id >= 0 else op.seq_id for op in arrays.ops], np.int64)
    _, numbers = np.unique(given, return_inverse=True)
    return numbers.astype(np.int64)
