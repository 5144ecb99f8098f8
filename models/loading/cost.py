"""Cost of a batch by the lengths of its sequences: linear work, and attention that grows with the square.

The cost model is the usual one of packed sequences, cost = a sum(s) + b sum(s^2), fitted to measured pass times. It is
what MegaScale-Data (OVERLORD, 2025) calls ``cost``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from tocsin.models.robust import median

FloatArray = npt.NDArray[np.float64]
LEAST_SAMPLE_COUNT = 12
"""Fewest measured passes of a fit, as of the windows of ``step_causes``."""
MOST_R2_LOSS = 0.1
"""A fit explains the times if it leaves at most a tenth of their variance (R^2 of 0.9, statement O1)."""


@dataclass(frozen=True, slots=True)
class CostModel:
    """Time that forward and backward pass take, by the batch's lengths.

    Attributes:
        fixed_seconds: time of a pass without tokens.
        token_seconds: additional time for each token.
        squared_token_seconds: additional time for each unit of the sum of squared lengths.
    """

    fixed_seconds: float
    token_seconds: float
    squared_token_seconds: float

    def predict(self, tokens: FloatArray, squares: FloatArray) -> FloatArray:
        """Return the predicted seconds of batches, of the shape of ``tokens`` and ``squares``."""
        seconds = self.fixed_seconds + self.token_seconds * tokens + self.squared_token_seconds * squares
        return np.asarray(seconds, dtype=np.float64)

    def r2_ratio(self, tokens: FloatArray, squares: FloatArray, seconds: FloatArray) -> float:
        """Return the share of the variance of measured seconds that the model explains; below 0: worse than a mean."""
        rest = float(((seconds - self.predict(tokens, squares)) ** 2).sum())
        whole = float(((seconds - seconds.mean()) ** 2).sum())
        return 1.0 - rest / whole if whole > 0.0 else 0.0


def fit_cost(tokens: FloatArray, squares: FloatArray, seconds: FloatArray) -> CostModel | None:
    """Return the cost model that fits measured pass times best, with no part below 0.

    Args:
        tokens: sums of sequence lengths, any shape.
        squares: sums of squared lengths, of the same shape.
        seconds: measured forward and backward times, of the same shape; NaN where unknown.

    Returns:
        The model; None with fewer than twelve known times, or where all batches are equal.
    """
    columns = np.stack([np.ones(tokens.size), tokens.ravel(), squares.ravel()], axis=1)
    known = np.isfinite(columns).all(axis=1) & np.isfinite(seconds.ravel())
    columns, target = columns[known], seconds.ravel()[known]
    if target.size < LEAST_SAMPLE_COUNT or not np.ptp(columns[:, 1:], axis=0).any():
        return None
    scale = np.maximum(np.abs(columns).max(axis=0), 1e-30)
    factors, _ = nnls(columns / scale, target)
    found = factors / scale
    return CostModel(*(float(part) for part in found))


def without_cost(seconds: FloatArray, predicted: FloatArray) -> FloatArray:
    """Return pass times divided by their predicted cost, in units of a usual batch, so that lengths hide no machine.

    Args:
        seconds: measured times, shape (steps, ranks).
        predicted: predicted times of the same batches, above 0.
    """
    level: FloatArray = seconds / np.maximum(predicted, 1e-9) * float(np.median(predicted))
    return level


def slow_for_their_batches(
    seconds: FloatArray, predicted: FloatArray, least_ratio: float = 0.1, least_steps_ratio: float = 0.9
) -> list[int]:
    """Return the ranks that compute longer than their batches explain, step after step.

    Args:
        seconds: measured times, shape (steps, ranks).
        predicted: predicted times of the same batches.
        least_ratio: least excess over the median rank, as a share of its time: a job straggles from a tenth on.
        least_steps_ratio: least share of the steps with half of that excess.

    Returns:
        Indices of ranks; [] with fewer than three ranks, because the median of two cannot say which one moved.
    """
    if seconds.shape[1] < 3:
        return []
    level = without_cost(seconds, predicted)
    usual = median(level, 1)[:, None]
    above = level / np.maximum(usual, 1e-9) - 1.0
    is_slow = (median(above, 0) >= least_ratio) & ((above >= least_ratio / 2).mean(axis=0) >= least_steps_ratio)
    return [int(rank) for rank in np.flatnonzero(is_slow)]
