"""Minder's similarity: each machine's distance to all others, and the machine that stays the farthest.

The published procedure to the letter (``seed-systems-a.md`` 1.6). Each machine has the sum of its Euclidean
distances to all others, and its z-score over the machines. The highest one above a threshold is the window's
candidate, and the same candidate for longer than four minutes is the faulty machine. All pairs are computed: the
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
"""Candidate of a window in which no machine stands out."""

_BLOCK_CELLS = 1 << 16
"""Distances computed at a time: half a megabyte, which stays in the processor's cache."""
_SAME_RATIO = 1e-6
"""Sums whose spread is at most this share of their mean count as equal; the rest is float32 rounding."""


def pairwise_sums(embeddings: Floats) -> NDArray[np.float64]:
    """Return the sum of the Euclidean distances of each row to all others, in float64.

    The distances are exact: machines with equal numbers have distance 0. The shortcut over scalar products is not used
    because it loses five digits on near-duplicates (``stack.md`` 7).

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
    """Return the "normal score": the z-score of each machine's sum over all machines (population deviation).

    One lone outlier among N machines reaches exactly ``ceiling(N)``, however far out it is.

    Args:
        sums: shape (windows, machines).

    Returns:
        Same shape; 0 in a window where all sums are equal.
    """
    mean = sums.mean(axis=1, keepdims=True)
    spread = sums.std(axis=1, keepdims=True)
    alike = ~(spread > _SAME_RATIO * np.abs(mean))
    return np.where(alike, 0.0, (sums - mean) / np.where(alike, 1.0, spread))


def ceiling(machine_count: int) -> float:
    """Return the highest z-score possible among N machines: sqrt(N - 1)."""
    return math.sqrt(max(0, machine_count - 1))


@dataclass(frozen=True, slots=True, eq=False)
class Scan:
    """The farthest machine of each window of one call, before any threshold.

    Attributes:
        machine: row of the machine with the highest score, shape (windows,).
        sigmas: its score, shape (windows,).
        machine_count: number of machines compared.
    """

    machine: NDArray[np.intp]
    sigmas: NDArray[np.float64]
    machine_count: int

    @classmethod
    def of(cls, embeddings: Floats) -> Scan:
        """Compare machines in each window by embeddings of shape (windows, machines, features)."""
        scores = normal_scores(pairwise_sums(embeddings))
        best = scores.argmax(axis=1)
        return cls(best, np.take_along_axis(scores, best[:, None], axis=1)[:, 0], embeddings.shape[1])

    def candidates(self, threshold_sigmas: float) -> NDArray[np.intp]:
        """Return the candidate machine of each window, ``NOBODY`` where no score is above the threshold."""
        return np.where(self.sigmas > threshold_sigmas, self.machine, NOBODY)


@dataclass(frozen=True, slots=True)
class CandidateRun:
    """One machine that was the candidate for long enough.

    Attributes:
        row: row of the machine.
        first_index: first window of the run.
        last_index: window at which the run became long enough.
    """

    row: int
    first_index: int
    last_index: int


def first_run(candidates: NDArray[np.intp], tick_seconds: float, continuity_seconds: float) -> CandidateRun | None:
    """The first machine that is the candidate for **longer** than the continuity asks, window after window.

    Args:
        candidates: candidates of consecutive windows one tick apart, ``NOBODY`` = none.
        tick_seconds: distance between windows.
        continuity_seconds: required duration, 240 in the paper; 0: a single window is enough (its ablation).
    """
    changes = np.flatnonzero(np.diff(candidates, prepend=NOBODY - 1))
    ends = np.append(changes[1:], candidates.size)[: changes.size]
    needed = math.floor(continuity_seconds / tick_seconds + 1e-9) + 1
    for begin, end in zip(changes.tolist(), ends.tolist(), strict=True):
        if candidates[begin] != NOBODY and end - begin >= needed:
            return CandidateRun(int(candidates[begin]), begin, begin + needed - 1)
    return None
