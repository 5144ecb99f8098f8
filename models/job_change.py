"""Detect that the whole job became slower than before, and split the growth by what ranks spend it on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tocsin.models.robust import median, quantile

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class JobChange:
    """A slowdown of the whole job.

    Attributes:
        strength_ratio: growth of the step time as a share of its baseline.
        step_seconds: median step time now.
        baseline_seconds: step time before.
        data_ratio: share of the growth that nearly all ranks spend on waiting for data.
        own_ratio: share of the growth that is other self time.
        communication_ratio: share of the growth that is communication.
        first_row: first row of the history at which the slowdown begins and lasts to the end.
    """

    strength_ratio: float
    step_seconds: float
    baseline_seconds: float
    data_ratio: float
    own_ratio: float
    communication_ratio: float
    first_row: int


def usual_row(past: FloatArray) -> FloatArray:
    """Return the usual values of past steps, shape (columns,), from steps of shape (steps, columns).

    It is their 40th percentile: a slow spell shorter than half of the past does not become normal.
    """
    return quantile(past, 0.4, 0)


def find_job_change(
    history: FloatArray, recent_count: int, min_strength_ratio: float, before: FloatArray | None = None
) -> JobChange | None:
    """Compare the newest steps with the job's own past; None below the alarm line or with too few steps.

    Args:
        history: shape (steps, 4), seconds: step time, data wait (20th percentile over ranks), other self time (median),
            communication (median).
        recent_count: number of newest steps that count as now.
        min_strength_ratio: alarm line for the growth as a share of the baseline.
        before: usual values that are not learned from this history, shape (4,), seconds. None: they are those of the
            steps before the newest, of which at least twice as many are needed.
    """
    if history.shape[0] < (3 * recent_count if before is None else recent_count):
        return None
    now = median(history[-recent_count:], 0)
    if before is None:
        before = usual_row(history[:-recent_count])
    growth = float(now[0] - before[0])
    strength = growth / max(float(before[0]), 1e-3)
    if strength < min_strength_ratio:
        return None
    shares = np.nan_to_num(np.clip((now[1:] - before[1:]) / growth, 0.0, 1.0))
    limit = before[0] + growth / 2
    hot = history[:, 0] > limit
    row = history.shape[0] - 1
    while row > 0 and hot[row - 1]:
        row -= 1
    return JobChange(
        strength, float(now[0]), float(before[0]), float(shares[0]), float(shares[1]), float(shares[2]), row
    )
