"""How a job's pace changed at a point in time: by its steps, or by the work that its machines do per second."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tocsin.models.robust import MAD_TO_SIGMA, median

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Slowdown:
    """How a job's pace changed at a point in time.

    Attributes:
        ratio: growth of the median step time; infinity: it makes no steps any more.
        is_certain: the growth is beyond the noise of the steps.
        is_gone: there is no growth to speak of.
        step_seconds: median step time since then (of those seen), NaN: none.
        before_seconds: median step time before.
    """

    ratio: float
    is_certain: bool
    is_gone: bool
    step_seconds: float
    before_seconds: float


_BEFORE_COUNT = 200
_AFTER_COUNT = 100
_INDEPENDENT_COUNT = 40
"""Step times are correlated: a hundred of them tell no more than so many."""
_MIN_SLOWDOWN_RATIO = 0.02
"""Less is the drift of a healthy job."""
_CERTAIN_SIGMAS = 3.5
_RECENT_COUNT = 8
_OVERDUE_SECONDS = 7.0
"""Agents send steps once a metric slice (5 s), and some time later."""
_OVERDUE_FACTOR = 2.5
"""A step that takes so many times as long as the others: the job stands, or nearly so."""


def find_slowdown(seconds: FloatArray, ends_ns: IntArray, onset_ns: int, now_ns: int) -> Slowdown | None:
    """Compare the steps before a point in time with those after it.

    Args:
        seconds: the job's step times, shape (steps,).
        ends_ns: when they ended, ascending.
        onset_ns: the point in time.
        now_ns: the present.

    Returns:
        None where fewer than five steps lie before, or none after and none is overdue.
    """
    begins_ns = ends_ns - (seconds * 1e9).astype(np.int64)
    before = seconds[ends_ns <= onset_ns][-_BEFORE_COUNT:]
    if before.size < 5:
        return None
    usual = float(np.median(before))
    noise = 1.4826 * float(np.median(np.abs(before - usual))) / max(usual, 1e-6)
    overdue = (now_ns - int(ends_ns[-1])) / 1e9 > _OVERDUE_FACTOR * usual + _OVERDUE_SECONDS
    # A step that was under way at the onset counts: half of it or more lies behind.
    after = seconds[(begins_ns + ends_ns) // 2 >= onset_ns][-_AFTER_COUNT:]
    if overdue:
        return Slowdown(float("inf"), True, False, float("nan"), usual)
    if not after.size:
        return None
    found = float(np.median(after))
    ratio = found / max(usual, 1e-6) - 1
    line = max(_MIN_SLOWDOWN_RATIO, _CERTAIN_SIGMAS * noise / math.sqrt(min(after.size, _INDEPENDENT_COUNT)))
    recent = float(np.median(after[-_RECENT_COUNT:])) / max(usual, 1e-6) - 1
    gone = min(ratio, recent) < max(_MIN_SLOWDOWN_RATIO / 2, noise / math.sqrt(min(after.size, _RECENT_COUNT)))
    return Slowdown(ratio, ratio >= line, gone and recent < line, found, usual)


_MIN_BEFORE, _MIN_AFTER = 6, 2
_MIN_FALL_RATIO = 0.04
"""Less is the drift of a healthy job."""
_FALL_SIGMAS = 3.0
_NO_FALL_RATIO = 0.01
_TELLING_ERROR_RATIO = 0.02
"""A mean fall that is known no better shows no absence of harm: windows of a job whose steps are longer than they."""


def slowdown_of_work(before: NDArray[np.float64], after: NDArray[np.float64]) -> Slowdown | None:
    """How much longer a unit of work takes, by work per second before and after a point in time.

    Args:
        before: shape (windows, metrics): work per second over its usual, NaN = no sample.
        after: the same, later.

    Returns:
        None where there are too few windows. The times are in units of the usual.
    """
    if before.shape[0] < _MIN_BEFORE or after.shape[0] < _MIN_AFTER:
        return None
    usual, now = median(before, 0), median(after, 0)
    known = np.isfinite(usual) & np.isfinite(now) & (usual > 0.1)
    if not known.any():
        return None
    noise = MAD_TO_SIGMA * median(np.abs(before - usual), 0)[known] / usual[known]
    falls = 1.0 - now[known] / usual[known]
    fall = float(np.median(falls))
    error = float(np.median(noise)) / float(np.sqrt(after.shape[0]))
    line = max(_MIN_FALL_RATIO, _FALL_SIGMAS * error)
    stands = fall > 0.9
    ratio = float("inf") if stands else 1.0 / max(1.0 - fall, 0.05) - 1.0
    gone = fall < min(line / 3, _NO_FALL_RATIO) and error <= _TELLING_ERROR_RATIO
    return Slowdown(ratio, fall >= line, gone, 1.0 + ratio, 1.0)
