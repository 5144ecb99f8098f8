"""Change of a job's speed at a point in time, measured by its steps or by the work of its machines per second."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tocsin.models.robust import MAD_TO_SIGMA, median, median_of, quantile, quantile_of

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Slowdown:
    """A change of a job's speed at a point in time.

    Attributes:
        ratio: growth of the median step time as a share of the time before; infinity: the job makes no more steps.
        is_certain: the growth is beyond the noise of the steps.
        is_gone: the growth is negligible, or was and has ended.
        step_seconds: median step time after the point in time, NaN without steps.
        before_seconds: median step time before it.
        error_ratio: standard error of ``ratio``.
        step_count: number of steps after it; 0: measured by work per second, or by a step that does not end.
        is_of_bursts: some steps are long and the others as before; ``ratio`` is then the growth of their mean.
        is_of_work: measured by work per second instead of steps; times are then in units of the usual time.
        is_of_own: all ranks compute (or wait for data) longer by the growth, and communication is as before.
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
        """Whether the growth is more probable than not; enough where much other evidence exists."""
        return self.ratio >= max(_LIKELY_RATIO, _LIKELY_SIGMAS * self.error_ratio)

    @property
    def is_known(self) -> bool:
        """Whether the standard error is small enough for a missing growth to prove that nothing changed."""
        return self.error_ratio <= _KNOWN_ERROR_RATIO


@dataclass(frozen=True, slots=True)
class PaceChange:
    """What a job's ended steps tell of a change of its speed, whatever the present is.

    Attributes:
        usual_seconds: median step time before the point in time.
        newest_ns: end of the newest step, Unix nanoseconds.
        by_ended: the change while no step is overdue; None: no step ended after the point in time.
    """

    usual_seconds: float
    newest_ns: int
    by_ended: Slowdown | None

    def at(self, now_ns: int) -> Slowdown | None:
        """Return the change at a time; None with no step after the point in time and none overdue."""
        if (now_ns - self.newest_ns) / 1e9 > overdue_seconds(self.usual_seconds):
            return Slowdown(float("inf"), True, False, float("nan"), self.usual_seconds)
        return self.by_ended


_LIKELY_RATIO, _LIKELY_SIGMAS = 0.01, 2.0
_KNOWN_ERROR_RATIO = 0.02
"""Largest standard error at which a missing growth proves that there is no impact."""
_BEFORE_COUNT = 200
_AFTER_COUNT = 100
_FEWEST_BEFORE, _FEWEST_AFTER = 5, 3
_INDEPENDENT_COUNT = 40
"""Most steps that count as independent in a standard error, because step times are correlated."""
_MIN_SLOWDOWN_RATIO = 0.02
"""Smallest growth of the step time that counts; less is the drift of a healthy job."""
_CERTAIN_SIGMAS = 3.5
_RECENT_COUNT = 8
_OVERDUE_SECONDS = 7.0
"""Delay after which a missing step counts as overdue, on top of the step time. Agents send steps once a metric slice (5
s) and with some latency."""
_OVERDUE_FACTOR = 2.5
"""A step that takes this many times the usual step time is overdue: the job is stalled or nearly so."""


def overdue_seconds(step_seconds: float) -> float:
    """Return how long after a job's last step the next one is overdue, seconds."""
    return _OVERDUE_FACTOR * step_seconds + _OVERDUE_SECONDS


def _around(seconds: FloatArray, ends_ns: IntArray, onset_ns: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the row indices of the last steps before a point in time, and of the last ones after it.

    A step in progress at that time counts as after if at least half of it lies behind.
    """
    begins_ns = ends_ns - (seconds * 1e9).astype(np.int64)
    before = np.flatnonzero(ends_ns <= onset_ns)[-_BEFORE_COUNT:]
    return before, np.flatnonzero((begins_ns + ends_ns) // 2 >= onset_ns)[-_AFTER_COUNT:]


def find_slowdown(seconds: FloatArray, ends_ns: IntArray, onset_ns: int, now_ns: int) -> Slowdown | None:
    """Compare step times before and after a point in time.

    Args:
        seconds: the job's step times, shape (steps,).
        ends_ns: end of each step, Unix nanoseconds, ascending.
        onset_ns: the point in time.
        now_ns: the present.

    Returns:
        The change; None with fewer than five steps before, or with no step after it and none overdue.
    """
    change = find_pace_change(seconds, ends_ns, onset_ns)
    return None if change is None else change.at(now_ns)


def find_pace_change(seconds: FloatArray, ends_ns: IntArray, onset_ns: int) -> PaceChange | None:
    """Compare step times before and after a point in time; None with fewer than five steps before.

    Args:
        seconds: the job's step times, shape (steps,).
        ends_ns: end of each step, Unix nanoseconds, ascending.
        onset_ns: the point in time.
    """
    before, after = (seconds[rows] for rows in _around(seconds, ends_ns, onset_ns))
    if before.size < _FEWEST_BEFORE:
        return None
    usual, settled = median_of(before), _settled_seconds(seconds, ends_ns, onset_ns)
    if settled > _CHANGED_FACTOR * usual:
        usual = settled
    return PaceChange(usual, int(ends_ns[-1]), _growth(before, after, usual) if after.size else None)


def _growth(before: FloatArray, after: FloatArray, usual: float) -> Slowdown:
    """Return the change from the steps before a point in time to those after it, by the usual step time."""
    noise = 1.4826 * median_of(np.abs(before - usual)) / max(usual, 1e-6)
    found = median_of(after)
    ratio = found / max(usual, 1e-6) - 1
    error = noise / math.sqrt(min(after.size, _INDEPENDENT_COUNT))
    line = max(_MIN_SLOWDOWN_RATIO, _CERTAIN_SIGMAS * error)
    bursts = _growth_by_bursts(before, after, usual)
    if ratio < line and bursts:
        return Slowdown(bursts, True, False, usual * (1 + bursts), usual, error, after.size, is_of_bursts=True)
    recent = median_of(after[-_RECENT_COUNT:]) / max(usual, 1e-6) - 1
    gone = min(ratio, recent) < max(_MIN_SLOWDOWN_RATIO / 2, noise / math.sqrt(min(after.size, _RECENT_COUNT)))
    return Slowdown(ratio, ratio >= line, gone and recent < line, found, usual, error, after.size)


def most_growth_seconds(seconds: FloatArray, ends_ns: IntArray, onset_ns: int) -> float | None:
    """Return an upper bound of the growth of the step time since a point in time, seconds.

    It is the larger growth of median and mean, plus two standard errors.

    Args:
        seconds: the job's step times, shape (steps,).
        ends_ns: end of each step, Unix nanoseconds, ascending.
        onset_ns: the point in time.

    Returns:
        Seconds; None with fewer than eight steps before or four after.
    """
    before, after = (seconds[rows] for rows in _around(seconds, ends_ns, onset_ns))
    if before.size < _MIN_GROWTH_COUNTS[0] or after.size < _MIN_GROWTH_COUNTS[1]:
        return None
    usual = median_of(before)
    noise = 1.4826 * median_of(np.abs(before - usual))
    grown = max(median_of(after) - usual, float(after.mean() - before.mean()))
    return grown + 2.0 * noise / math.sqrt(min(after.size, _INDEPENDENT_COUNT))


_MIN_GROWTH_COUNTS = (8, 4)


def _growth_by_bursts(before: FloatArray, after: FloatArray, usual: float) -> float:
    """Return the growth of the mean step time caused by single long steps, as a share of the usual time.

    0 if there are few such steps, or hardly more than before. An intermittent data loader makes one step in eight
    twenty times as long and leaves the median unchanged.
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
    """Return the lower quartile of step times from five minutes to one before a point in time, 0.0 with too few.

    A slowness already present then began earlier. The last minute is left out because a fault is detected some time
    after the first slow step.
    """
    lately = (ends_ns > onset_ns - _SETTLED_NS[0]) & (ends_ns <= onset_ns - _SETTLED_NS[1])
    return quantile_of(seconds[lately], _SETTLED_QUANTILE) if lately.sum() >= _MIN_SETTLED_COUNT else 0.0


_MIN_BURSTS_BEFORE, _MIN_BURST_COUNT = 20, 3
_LONG_FACTOR, _LEAST_BURST_RATIO, _BURST_FACTOR = 1.5, 0.15, 3.0
"""Limits of bursts: step time over the usual that counts as long, least lost share of time, least growth of that share.
Unannounced checkpoints and garbage collections cost a healthy job up to a tenth of its time."""
_SETTLED_NS = 300 * 10**9, 60 * 10**9
_MIN_SETTLED_COUNT = 8
_CHANGED_FACTOR = 1.1
"""Least ratio of settled to usual step time that counts as an earlier slowdown; less is noise or drift."""
_SETTLED_QUANTILE = 0.25
"""Quantile of the settled step time. With an intermittent fault at least a quarter of the steps are normal."""
_MIN_BEFORE, _MIN_AFTER = 6, 2
_MIN_FALL_RATIO = 0.04
"""Smallest fall of work per second that counts; less is the drift of a healthy job."""
_FALL_SIGMAS = 3.0
_NO_FALL_RATIO = 0.01
_CHANGED_WORKLOAD_RATIO = 0.1
"""Smallest rise of one metric, while others fall, that shows another kind of work. When steps take longer all work per
second falls alike; in an evaluation, memory reads rose to 1.28 times and GPU exchange fell to a sixth."""
_UNEVEN_RATIO, _UNEVEN_QUANTILE = 0.1, 0.85
"""Limits of ``is_uneven``: scatter over the usual, and quantile of the scatter. A checkpoint in one window of ten does
not make a job uneven."""
_MIN_SPANS_BEFORE = 4


def is_uneven(work: NDArray[np.float64]) -> bool:
    """Return whether metric windows vary with the position inside a step, because steps are longer than windows.

    Such windows do not show the job's speed: a longer wait at the end of a step leaves most windows, and their median,
    unchanged.

    Args:
        work: shape (windows, metrics): work per second as a share of its usual, NaN = no sample.
    """
    if work.shape[0] < _MIN_BEFORE:
        return False
    usual = median(work, 0)
    away = quantile(np.abs(work - usual), _UNEVEN_QUANTILE, 0) / np.maximum(usual, 1e-6)
    known = away[np.isfinite(away)]
    return bool(known.size and median_of(known) > _UNEVEN_RATIO)


_OWN_GROWTH_RATIO, _OTHER_GROWTH_RATIO = 0.6, 0.25
"""Least share of the growth in self time, and largest share in communication, for ``grew_in_self_time``. A slow link on
one machine makes the communication of all others longer."""


def grew_in_self_time(history: NDArray[np.float64], ends_ns: NDArray[np.int64], onset_ns: int) -> bool:
    """Return whether steps became longer by self time on nearly all ranks, and not by communication.

    Args:
        history: shape (steps, 4), seconds: step time, data wait (20th percentile over ranks), other self time (median),
            communication (median).
        ends_ns: end of each step, Unix nanoseconds, shape (steps,).
        onset_ns: the point in time that separates before and after.
    """
    before, after = (history[rows] for rows in _around(history[:, 0], ends_ns, onset_ns))
    if before.shape[0] < _FEWEST_BEFORE or after.shape[0] < _FEWEST_AFTER:
        return False
    step, data, own, communication = median(after, 0) - median(before, 0)
    if not step > 0.0:
        return False
    return bool(data + own >= _OWN_GROWTH_RATIO * step and communication <= _OTHER_GROWTH_RATIO * step)


def means_of_spans(work: NDArray[np.float64], window_count: int) -> NDArray[np.float64]:
    """Return means over spans of ``window_count`` windows each, shape (spans, metrics).

    Spans end at the newest window; the oldest windows that fill no whole span are left out.

    Args:
        work: shape (windows, metrics), NaN = no sample.
        window_count: windows in a span.
    """
    count = work.shape[0] // window_count
    spans = work[work.shape[0] - count * window_count :].reshape(count, window_count, work.shape[1])
    known = np.isfinite(spans)
    total = np.where(known, spans, 0.0).sum(axis=1)
    means: NDArray[np.float64] = np.where(known.any(axis=1), total / np.maximum(known.sum(axis=1), 1), np.nan)
    return means


def slowdown_of_spans(before: NDArray[np.float64], after: NDArray[np.float64]) -> Slowdown | None:
    """Return the change of speed of an uneven job, from means over spans longer than its steps.

    Like ``slowdown_of_work``, but the error of the few spans before counts as well. With too few spans the result is
    neither certain nor gone.

    Args:
        before: shape (spans, metrics): work per second as a share of its usual, NaN = no sample.
        after: the same, later.
    """
    if before.shape[0] < _MIN_SPANS_BEFORE or after.shape[0] < _MIN_AFTER:
        return Slowdown(0.0, False, False, 1.0, 1.0, math.inf, is_of_work=True)
    return _fall(before, after, math.sqrt(1 / before.shape[0] + 1 / after.shape[0]))


def slowdown_of_work(before: NDArray[np.float64], after: NDArray[np.float64]) -> Slowdown | None:
    """Return the change of speed by work per second before and after a point in time.

    Args:
        before: shape (windows, metrics): work per second as a share of its usual, NaN = no sample.
        after: the same, later.

    Returns:
        The change, with times in units of the usual time; None with too few windows.
    """
    if before.shape[0] < _MIN_BEFORE or after.shape[0] < _MIN_AFTER:
        return None
    return _fall(before, after, 1 / math.sqrt(after.shape[0]))


def _fall(before: NDArray[np.float64], after: NDArray[np.float64], error_factor: float) -> Slowdown | None:
    """Return the change of speed from the fall of the median work per second; None without usable metrics.

    Where some metrics rise while others fall, the job does another kind of work (an evaluation, a compilation) and the
    result is neither certain nor gone.

    Args:
        before: work per second as a share of its usual, shape (rows, metrics).
        after: the same, later.
        error_factor: standard error of the median in units of the rows' scatter.
    """
    usual, now = median(before, 0), median(after, 0)
    known = np.isfinite(usual) & np.isfinite(now) & (usual > 0.1)
    if not known.any():
        return None
    noise = MAD_TO_SIGMA * median(np.abs(before - usual), 0)[known] / usual[known]
    falls = 1.0 - now[known] / usual[known]
    fall = median_of(falls)
    error = median_of(noise) * error_factor
    line = max(_MIN_FALL_RATIO, _FALL_SIGMAS * error)
    is_stalled = fall > 0.9
    ratio = float("inf") if is_stalled else 1.0 / max(1.0 - fall, 0.05) - 1.0
    gone = fall < min(line / 3, _NO_FALL_RATIO) and error <= _KNOWN_ERROR_RATIO
    rose = -falls >= np.maximum(_CHANGED_WORKLOAD_RATIO, _FALL_SIGMAS * error_factor * noise)
    if not is_stalled and rose.any() and falls.max() >= _CHANGED_WORKLOAD_RATIO:
        return Slowdown(ratio, False, False, 1.0 + ratio, 1.0, math.inf, is_of_work=True)
    return Slowdown(ratio, fall >= line, gone, 1.0 + ratio, 1.0, error, is_of_work=True)
