"""How a job's pace changed at a point in time: by its steps, or by the work that its machines do per second."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tocsin.models.robust import MAD_TO_SIGMA, median, quantile

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
        error_ratio: standard error of ``ratio``.
        step_count: steps since then, 0: it is told by work, or by a step that does not end.
        is_of_bursts: some steps since then are long, and the others as ever: ``ratio`` is that of their mean.
        is_of_work: no steps tell it but work a second, and the times are in units of the usual.
        is_of_own: all ranks compute (or wait for data) longer by as much, and their communication is as ever.
    """

    ratio: float
    is_certain: bool
    is_gone: bool
    step_seconds: float
    before_seconds: float
    error_ratio: float = 0.0
    step_count: int = 0
    is_of_bursts: bool = False
    is_of_work: bool = False
    is_of_own: bool = False

    @property
    def is_likely(self) -> bool:
        """Whether the growth is there rather than not: enough where much else speaks for it."""
        return self.ratio >= max(_LIKELY_RATIO, _LIKELY_SIGMAS * self.error_ratio)

    @property
    def is_known(self) -> bool:
        """Whether the steps are many and even enough to show that nothing has changed."""
        return self.error_ratio <= _TELLING_ERROR_RATIO


_LIKELY_RATIO, _LIKELY_SIGMAS = 0.01, 2.0
_TELLING_ERROR_RATIO = 0.02
"""A growth that is known no better shows no absence of harm: few steps, or uneven ones."""
_BEFORE_COUNT = 200
_AFTER_COUNT = 100
_FEWEST_BEFORE, _FEWEST_AFTER = 5, 3
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


def overdue_seconds(step_seconds: float) -> float:
    """How long after the last step of a job the next one is overdue."""
    return _OVERDUE_FACTOR * step_seconds + _OVERDUE_SECONDS


def _around(seconds: FloatArray, ends_ns: IntArray, onset_ns: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Rows of the last steps before a point in time, and of the last ones after it.

    A step that was under way then counts as after where half of it or more lies behind.
    """
    begins_ns = ends_ns - (seconds * 1e9).astype(np.int64)
    before = np.flatnonzero(ends_ns <= onset_ns)[-_BEFORE_COUNT:]
    return before, np.flatnonzero((begins_ns + ends_ns) // 2 >= onset_ns)[-_AFTER_COUNT:]


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
    before, after = (seconds[rows] for rows in _around(seconds, ends_ns, onset_ns))
    if before.size < _FEWEST_BEFORE:
        return None
    usual, settled = float(np.median(before)), _settled_seconds(seconds, ends_ns, onset_ns)
    if settled > _CHANGED_FACTOR * usual:
        usual = settled
    noise = 1.4826 * float(np.median(np.abs(before - usual))) / max(usual, 1e-6)
    overdue = (now_ns - int(ends_ns[-1])) / 1e9 > overdue_seconds(usual)
    if overdue:
        return Slowdown(float("inf"), True, False, float("nan"), usual)
    if not after.size:
        return None
    found = float(np.median(after))
    ratio = found / max(usual, 1e-6) - 1
    error = noise / math.sqrt(min(after.size, _INDEPENDENT_COUNT))
    line = max(_MIN_SLOWDOWN_RATIO, _CERTAIN_SIGMAS * error)
    bursts = _growth_by_bursts(before, after, usual)
    if ratio < line and bursts:
        return Slowdown(bursts, True, False, usual * (1 + bursts), usual, error, after.size, is_of_bursts=True)
    recent = float(np.median(after[-_RECENT_COUNT:])) / max(usual, 1e-6) - 1
    gone = min(ratio, recent) < max(_MIN_SLOWDOWN_RATIO / 2, noise / math.sqrt(min(after.size, _RECENT_COUNT)))
    return Slowdown(ratio, ratio >= line, gone and recent < line, found, usual, error, after.size)


def most_growth_seconds(seconds: FloatArray, ends_ns: IntArray, onset_ns: int) -> float | None:
    """By how much steps may at most be longer since a point in time: by median or mean, and two errors more.

    Args:
        seconds: the job's step times, shape (steps,).
        ends_ns: when they ended, ascending.
        onset_ns: the point in time.

    Returns:
        None where fewer than eight steps lie before, or four after.
    """
    before, after = (seconds[rows] for rows in _around(seconds, ends_ns, onset_ns))
    if before.size < _MIN_GROWTH_COUNTS[0] or after.size < _MIN_GROWTH_COUNTS[1]:
        return None
    noise = 1.4826 * float(np.median(np.abs(before - np.median(before))))
    grown = max(float(np.median(after) - np.median(before)), float(after.mean() - before.mean()))
    return grown + 2.0 * noise / math.sqrt(min(after.size, _INDEPENDENT_COUNT))


_MIN_GROWTH_COUNTS = (8, 4)


def _growth_by_bursts(before: FloatArray, after: FloatArray, usual: float) -> float:
    """How much longer steps take in the mean where some are long and the others as ever; 0: no more than before.

    A loader that comes and goes makes one step of eight twenty times as long; their median is as ever.
    """
    if before.size < _MIN_BURSTS_BEFORE:
        return 0.0
    lost_ratios, counts = [], []
    for steps in (before, after):
        long = steps > _LONG_FACTOR * usual
        lost_ratios.append(float((steps[long] - usual).sum() / (usual * steps.size)))
        counts.append(int(long.sum()))
    (lost_before, lost_after), (_, count) = lost_ratios, counts
    is_more = count >= _MIN_BURST_COUNT and lost_after >= max(_LEAST_BURST_RATIO, _BURST_FACTOR * lost_before)
    return lost_after - lost_before if is_more else 0.0


def _settled_seconds(seconds: FloatArray, ends_ns: IntArray, onset_ns: int) -> float:
    """What nearly all steps took for minutes before a point in time: what was so slow already began before it.

    Not the last minute: what a machine shows is seen some time after the steps that it slowed.
    """
    lately = (ends_ns > onset_ns - _SETTLED_NS[0]) & (ends_ns <= onset_ns - _SETTLED_NS[1])
    return float(np.quantile(seconds[lately], _SETTLED_QUANTILE)) if lately.sum() >= _MIN_SETTLED_COUNT else 0.0


_MIN_BURSTS_BEFORE, _MIN_BURST_COUNT = 20, 3
_LONG_FACTOR, _LEAST_BURST_RATIO, _BURST_FACTOR = 1.5, 0.15, 3.0
"""Checkpoints and collections that nobody announced cost a healthy job up to a tenth of its time, before as after."""
_SETTLED_NS = 300 * 10**9, 60 * 10**9
_MIN_SETTLED_COUNT = 8
_CHANGED_FACTOR = 1.1
"""Less is noise, or drift."""
_SETTLED_QUANTILE = 0.25
"""Where a fault comes and goes, a quarter of the steps or more are as ever."""
_MIN_BEFORE, _MIN_AFTER = 6, 2
_MIN_FALL_RATIO = 0.04
"""Less is the drift of a healthy job."""
_FALL_SIGMAS = 3.0
_NO_FALL_RATIO = 0.01
_OTHER_WORK_RATIO = 0.1
"""All work per second falls alike where steps take longer; of an evaluation memory was read 1.28 times as much, and
GPUs exchanged a sixth."""
_UNEVEN_RATIO, _UNEVEN_QUANTILE = 0.1, 0.85
"""See ``is_uneven``; a pause now and then (a checkpoint in one window of ten) makes no job uneven."""
_MIN_SPANS_BEFORE = 4


def is_uneven(work: NDArray[np.float64]) -> bool:
    """Whether windows show where in a step the job is, and not its pace: its steps are longer than they.

    A job that waits longer at the end of such a step does as much as ever in most windows, and in their median.

    Args:
        work: shape (windows, metrics): work per second over its usual, NaN = no sample.
    """
    if work.shape[0] < _MIN_BEFORE:
        return False
    usual = median(work, 0)
    away = quantile(np.abs(work - usual), _UNEVEN_QUANTILE, 0) / np.maximum(usual, 1e-6)
    known = away[np.isfinite(away)]
    return bool(known.size and float(np.median(known)) > _UNEVEN_RATIO)


_OWN_GROWTH_RATIO, _OTHER_GROWTH_RATIO = 0.6, 0.25
"""Of what the steps are longer by: a machine whose link is slow makes the communication of the others longer."""


def grew_in_own_time(history: NDArray[np.float64], ends_ns: NDArray[np.int64], onset_ns: int) -> bool:
    """Whether the steps since then are longer by what nearly all ranks do by themselves, and not by communication.

    Args:
        history: shape (steps, 4): step, data (20th percentile over ranks), other own time (median), communication
            (median), all seconds.
        ends_ns: shape (steps,).
        onset_ns: a time of the past.
    """
    before, after = (history[rows] for rows in _around(history[:, 0], ends_ns, onset_ns))
    if before.shape[0] < _FEWEST_BEFORE or after.shape[0] < _FEWEST_AFTER:
        return False
    step, data, own, communication = median(after, 0) - median(before, 0)
    if not step > 0.0:
        return False
    return bool(data + own >= _OWN_GROWTH_RATIO * step and communication <= _OTHER_GROWTH_RATIO * step)


def means_of_spans(work: NDArray[np.float64], window_count: int) -> NDArray[np.float64]:
    """Means over so many windows each, the newest ones; windows that fill no span are left out."""
    count = work.shape[0] // window_count
    spans = work[work.shape[0] - count * window_count :].reshape(count, window_count, work.shape[1])
    known = np.isfinite(spans)
    total = np.where(known, spans, 0.0).sum(axis=1)
    means: NDArray[np.float64] = np.where(known.any(axis=1), total / np.maximum(known.sum(axis=1), 1), np.nan)
    return means


def slowdown_of_spans(before: NDArray[np.float64], after: NDArray[np.float64]) -> Slowdown | None:
    """The same as ``slowdown_of_work`` of an uneven job: means over spans longer than its steps.

    What was before is known from a few spans only: its own error counts as well. Too few spans to tell is neither
    certain nor gone.
    """
    if before.shape[0] < _MIN_SPANS_BEFORE or after.shape[0] < _MIN_AFTER:
        return Slowdown(0.0, False, False, 1.0, 1.0, math.inf, is_of_work=True)
    return _fall(before, after, math.sqrt(1 / before.shape[0] + 1 / after.shape[0]))


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
    return _fall(before, after, 1 / math.sqrt(after.shape[0]))


def _fall(before: NDArray[np.float64], after: NDArray[np.float64], error_factor: float) -> Slowdown | None:
    """The fall of the median over rows; ``error_factor`` times the rows' scatter is its error.

    Where some metrics rise and others fall it is other work (they evaluate, or compile), and no slowdown can be told.
    """
    usual, now = median(before, 0), median(after, 0)
    known = np.isfinite(usual) & np.isfinite(now) & (usual > 0.1)
    if not known.any():
        return None
    noise = MAD_TO_SIGMA * median(np.abs(before - usual), 0)[known] / usual[known]
    falls = 1.0 - now[known] / usual[known]
    fall = float(np.median(falls))
    error = float(np.median(noise)) * error_factor
    line = max(_MIN_FALL_RATIO, _FALL_SIGMAS * error)
    stands = fall > 0.9
    ratio = float("inf") if stands else 1.0 / max(1.0 - fall, 0.05) - 1.0
    gone = fall < min(line / 3, _NO_FALL_RATIO) and error <= _TELLING_ERROR_RATIO
    rose = -falls >= np.maximum(_OTHER_WORK_RATIO, _FALL_SIGMAS * error_factor * noise)
    if not stands and rose.any() and falls.max() >= _OTHER_WORK_RATIO:
        return Slowdown(ratio, False, False, 1.0 + ratio, 1.0, math.inf, is_of_work=True)
    return Slowdown(ratio, fall >= line, gone, 1.0 + ratio, 1.0, error, is_of_work=True)
