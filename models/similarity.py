"""Minder's similarity: how far each machine is from all others, and who stays the farthest.

The published procedure to the letter (``seed-systems-a.md`` 1.6): sum of the Euclidean distances to
all others, z-score of these sums over the machines, the highest above a threshold is the window's
candidate, and the same candidate for longer than four minutes is the faulty machine. All pairs: the
cost grows with the square of the machines. This is the baseline; ``peers.py`` is what tocsin uses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
NOBODY = -1
"""The candidate of a window in which no machine stands out."""

_BLOCK_CELLS = 1 << 16
"""Distances at a time: half a megabyte, which stays in the processor's cache."""
_SAME_RATIO = 1e-6
"""Sums that differ by less than this share of their mean are the same: the rest is rounding of float32."""


def pairwise_sums(embeddings: Floats) -> NDArray[np.float64]:
    """Sum of the Euclidean distances of each row to all others, exactly, in float64.

    Machines with the same numbers have the distance 0, not nearly 0: no shortcut over scalar products
    (``stack.md`` 7: they lose five digits on near-duplicates).

    Args:
        embeddings: shape (windows, machines, features).

    Returns:
        Shape (windows, machines).
    """
    windows, machines, features = embeddings.shape
    columns = np.ascontiguousarray(embeddings.transpose(2, 0, 1), np.float64)
    found = np.empty((windows, machines))
    row_step = max(1, min(machines, _BLOCK_CELLS // max(1, machines)))
    window_step = max(1, _BLOCK_CELLS // max(1, machines * row_step))
    for first in range(0, windows, window_step):
        place = slice(first, first + window_step)
        for row in range(0, machines, row_step):
            rows = slice(row, row + row_step)
            shape = (len(range(*place.indices(windows))), len(range(*rows.indices(machines))), machines)
            total = np.zeros(shape)
            for feature in range(features):
                rest = columns[feature, place, rows, None] - columns[feature, place, None, :]
                np.multiply(rest, rest, out=rest)
                total += rest
            found[place, rows] = np.sqrt(total, out=total).sum(axis=2)
    return found


def normal_scores(sums: Floats) -> NDArray[np.float64]:
    """The "normal score": z of each machine's sum over all machines (population deviation); 0 where all are alike.

    One lone outlier among N reaches exactly ``ceiling(N)``, however far out it is.

    Args:
        sums: shape (windows, machines).
    """
    mean = sums.mean(axis=1, keepdims=True)
    spread = sums.std(axis=1, keepdims=True)
    alike = ~(spread > _SAME_RATIO * np.abs(mean))
    return np.where(alike, 0.0, (sums - mean) / np.where(alike, 1.0, spread))


def ceiling(machine_count: int) -> float:
    """The highest z-score that there can be among N machines: sqrt(N - 1)."""
    return math.sqrt(max(0, machine_count - 1))


@dataclass(frozen=True, slots=True, eq=False)
class Scan:
    """What all windows of one call say, before any threshold.

    Attributes:
        machine: the one with the highest score, shape (windows,).
        sigmas: its score, shape (windows,).
        machine_count: how many were compared.
    """

    machine: NDArray[np.intp]
    sigmas: NDArray[np.float64]
    machine_count: int

    @classmethod
    def of(cls, embeddings: Floats) -> Scan:
        """Compare machines window by window, shape (windows, machines, features)."""
        scores = normal_scores(pairwise_sums(embeddings))
        best = scores.argmax(axis=1)
        return cls(best, np.take_along_axis(scores, best[:, None], axis=1)[:, 0], embeddings.shape[1])

    def candidates(self, threshold_sigmas: float) -> NDArray[np.intp]:
        """Each window's candidate, ``NOBODY`` where the highest score is not above the threshold."""
        return np.where(self.sigmas > threshold_sigmas, self.machine, NOBODY)


@dataclass(frozen=True, slots=True)
class CandidateRun:
    """One machine that was the candidate for long enough.

    Attributes:
        row: which machine.
        first_index: the first window of the run.
        last_index: the window that made it long enough.
    """

    row: int
    first_index: int
    last_index: int


def first_run(candidates: NDArray[np.intp], tick_seconds: float, continuity_seconds: float) -> CandidateRun | None:
    """The first machine that is the candidate for **longer** than the continuity asks, window after window.

    Args:
        candidates: of windows a tick apart, ``NOBODY`` = none.
        tick_seconds: their distance.
        continuity_seconds: 240 in the paper; 0: the first candidate will do (its ablation).
    """
    changes = np.flatnonzero(np.diff(candidates, prepend=NOBODY - 1))
    ends = np.append(changes[1:], candidates.size)[: changes.size]
    needed = math.floor(continuity_seconds / tick_seconds + 1e-9) + 1
    for begin, end in zip(changes.tolist(), ends.tolist(), strict=True):
        if candidates[begin] != NOBODY and end - begin >= needed:
            return CandidateRun(int(candidates[begin]), begin, begin + needed - 1)
    return None
