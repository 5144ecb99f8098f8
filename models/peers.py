"""Distance of each machine from its peers, metric by metric: numbers in, scores out.

The method follows Minder's similarity idea (NSDI'25): machines of one synchronous job look alike, and the outlier
is the suspect. Two things differ:

- Each row is compared with the median of its group, instead of with every other row: pairwise distances cost N².
- A row is expected at **its own learned level times the group's common factor**, not at an absolute value. So a warm
  host stays warm, all rows fall alike in a checkpoint, and a pipeline stage with half of the load has half the level.

The rest is divided by the largest of four spreads: across the rows now, across the rows as learned, the row's own, and
a floor per metric. A cumulative sum (Page, 1954) adds it up over time: strong evidence is believed soon, weak evidence
late, a short jitter never. All cost is linear in the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tocsin.models.peer_groups import Rows, became_alike, beyond_others, rows_of_groups, spread_of_congestion
from tocsin.models.peer_scales import Scale
from tocsin.models.robust import MAD_TO_SIGMA, median, without_gaps

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class PeerConfig:
    """Settings of the comparison among peers.

    Attributes:
        min_peer_count: a role with fewer hosts is compared with all hosts; a job with fewer hosts is not judged.
        warmup_count: first windows of a row, which are learned from and not judged.
        level_count: windows over which a level is remembered (120 of 5 s: ten minutes).
        suspicious_sigmas: distance beyond which a window is hardly learned from.
        suspicious_rate_ratio: share of the usual rate at which the level of a deviating row follows.
        relative_floor_ratio: least spread, as a share of the level.
        idle_ratio: least common factor of a group from which anything is learned.
    """

    min_peer_count: int = 3
    warmup_count: int = 12
    level_count: int = 120
    suspicious_sigmas: float = 4.0
    suspicious_rate_ratio: float = 0.1
    relative_floor_ratio: float = 0.015
    idle_ratio: float = 0.35


@dataclass(slots=True)
class PeerState:
    """Values learned of each row and metric (float32, NaN = nothing yet).

    Attributes:
        level: usual value of a row, shape (rows, metrics).
        own_spread: mean distance of a row from its expected value, shape (rows, metrics).
        seen_count: windows with a sample, shape (rows, metrics).
        spread: usual spread across rows, shape (metrics,).
    """

    level: FloatArray
    own_spread: FloatArray
    seen_count: FloatArray
    spread: FloatArray

    @classmethod
    def empty(cls, row_count: int, metric_count: int) -> PeerState:
        """Return a state of this shape in which nothing is learned."""
        return cls(
            np.full((row_count, metric_count), np.nan, np.float32),
            np.zeros((row_count, metric_count), np.float32),
            np.zeros((row_count, metric_count), np.float32),
            np.full(metric_count, np.nan, np.float32),
        )

    def grown(self, rows: IntArray, row_count: int) -> PeerState:
        """Return the state of ``row_count`` rows in which row i has moved to ``rows[i]``; the others know nothing."""
        other = PeerState.empty(row_count, self.spread.size)
        other.level[rows], other.own_spread[rows] = self.level, self.own_spread
        other.seen_count[rows], other.spread = self.seen_count, self.spread
        return other

    def kept(self, rows: IntArray) -> PeerState:
        """Return the state of these rows alone."""
        return PeerState(self.level[rows], self.own_spread[rows], self.seen_count[rows], self.spread)

    def of_columns(self, columns: IntArray) -> PeerState:
        """Return a copy of the state of these metrics alone."""
        return PeerState(
            self.level.take(columns, 1),
            self.own_spread.take(columns, 1),
            self.seen_count.take(columns, 1),
            self.spread.take(columns),
        )

    def put_columns(self, columns: IntArray, part: PeerState) -> None:
        """Replace the state of these metrics by ``part``, which ``of_columns`` gave."""
        # Others may hold the levels of before.
        self.level, self.spread = self.level.copy(), self.spread.copy()
        self.level[:, columns], self.spread[columns] = part.level, part.spread
        self.own_spread[:, columns], self.seen_count[:, columns] = part.own_spread, part.seen_count

    def forget(self, rows: IntArray) -> None:
        """Forget what was learned of these rows, as they do other work from now on."""
        self.level[rows], self.own_spread[rows], self.seen_count[rows] = np.nan, 0, 0


@dataclass(frozen=True, slots=True)
class PeerWindow:
    """Comparison of one window; each array has the shape (rows, metrics).

    Attributes:
        sigmas: signed distance from the expected value; NaN = no sample, no peers, or still learning.
        expected: the row's expected value.
        factor: the group's common factor over its learned level.
    """

    sigmas: FloatArray
    expected: FloatArray
    factor: FloatArray


_NEARLY_NOTHING_FLOORS = 3.0
_MOST_FLOORS = 20.0
"""Most floors by which a level near zero may move in a window; other levels may move by their own size."""
_NOTHING = 1e-9
"""Levels below count as zero, of which no ratio can be taken (an error counter of a healthy machine)."""


def compare(
    values: FloatArray,
    groups: IntArray,
    state: PeerState,
    scales: Sequence[Scale],
    config: PeerConfig,
    doubted: NDArray[np.bool_] | None = None,
) -> PeerWindow:
    """Compare rows with the medians of their groups, then learn from them; ``state`` is changed.

    Args:
        values: window means, transformed, shape (rows, metrics), NaN = no sample.
        groups: which group each row belongs to, shape (rows,), -1 = compared with nobody.
        state: what was learned so far.
        scales: one per metric.
        config: settings.
        doubted: rows of deviating machines, from which hardly anything is learned, shape (rows,).
    """
    measured = np.flatnonzero(~np.isnan(values).all(axis=0) | ~np.isnan(state.level).all(axis=0))
    if measured.size == values.shape[1]:
        return _compare(values, groups, state, scales, config, doubted)
    # Many metrics are collected nowhere: half of the time would be spent on their NaNs.
    part = state.of_columns(measured)
    window = _compare(values.take(measured, 1), groups, part, [scales[column] for column in measured], config, doubted)
    state.put_columns(measured, part)
    found = np.full((3, *values.shape), np.nan, np.float32)
    found[:, :, measured] = window.sigmas, window.expected, window.factor
    return PeerWindow(*found)


def _compare(
    values: FloatArray,
    groups: IntArray,
    state: PeerState,
    scales: Sequence[Scale],
    config: PeerConfig,
    doubted: NDArray[np.bool_] | None,
) -> PeerWindow:
    """Compare rows with their groups, then learn from them: ``compare`` where each metric was seen on some row."""
    floors = np.array([scale.floor for scale in scales], np.float32)
    counted = np.array([scale.counted for scale in scales], bool)
    members = rows_of_groups(groups)
    _begin_beyond_nothing(values, members, state, np.where(counted, 0.0, floors))
    level = np.where(np.isfinite(state.level), state.level, values)
    additive = _is_additive(level, members, counted, floors)
    factor, shift, shifts = _group_moves(values, level, groups, members, additive)
    expected = np.where(additive, level + shift, level * factor)
    expected = np.where(np.isfinite(expected), expected, level + shift)
    lows = np.array([scale.low for scale in scales], np.float32)
    expected = np.clip(expected, lows, _highest(values, level, scales)).astype(np.float32)
    rest = values - expected
    shared = spread_of_congestion(shifts, counted)
    sigma = _sigma(rest, expected, members, (state, floors, shared, additive), config)
    ready = state.seen_count >= config.warmup_count
    judged = ready & (groups >= 0)[:, None]
    sigmas = np.where(judged, rest / sigma, np.nan).astype(np.float32)
    suspicious = np.flatnonzero((np.abs(sigmas) > config.suspicious_sigmas).any(axis=0))
    alike = became_alike(
        values[:, suspicious], level[:, suspicious], members, floors[suspicious], config.relative_floor_ratio
    )
    sigmas[:, suspicious] = np.where(judged[:, suspicious] & alike, np.float32(0.0), sigmas[:, suspicious])
    if len(shifts) > 1 and additive.any():
        own = np.where(additive, beyond_others(rest, shift, shifts), rest)
        said = np.where(judged & (sigmas != 0.0), own / sigma, sigmas).astype(np.float32)
    else:
        said = sigmas
    most = np.where(counted | ~ready, np.inf, np.maximum(np.abs(level), _MOST_FLOORS * floors))
    _learn(values, rest, sigmas, (factor, most, doubted), state, config)
    return PeerWindow(said, expected, factor)


def _group_moves(
    values: FloatArray, level: FloatArray, groups: IntArray, members: Sequence[Rows], additive: NDArray[np.bool_]
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return how each group moved away from its rows' learned levels, in the median of its rows.

    Args:
        values: window means, shape (rows, metrics), NaN = no sample.
        level: each row's learned level, same shape.
        groups: which group each row belongs to, shape (rows,), -1 = none.
        members: rows of each group.
        additive: where differences are taken instead of ratios, shape (rows, metrics).

    Returns:
        For each row its group's common factor (NaN where additive) and common difference, both of shape
        (rows, metrics); and the difference of each group, shape (groups, metrics).
    """
    safe = np.where(np.abs(level) < _NOTHING, 1.0, level)
    factor = np.full_like(values, np.nan)
    shift = np.zeros_like(values)
    shifts = np.zeros((int(groups.max(initial=-1)) + 1, values.shape[1]), np.float32)
    for rows in members:
        ratio = np.where(additive[rows], np.nan, values[rows] / safe[rows])
        factor[rows] = median(ratio, 0)
        shift[rows] = shifts[groups[rows][0]] = median(values[rows] - level[rows], 0)
    return factor, shift, shifts


def _highest(values: FloatArray, level: FloatArray, scales: Sequence[Scale]) -> FloatArray:
    """Return the highest value that can be expected of any row, shape (metrics,)."""
    seen = np.fmax(np.fmax.reduce(values, 0, initial=-np.inf), np.fmax.reduce(level, 0, initial=-np.inf))
    return np.fmax(seen, np.array([scale.high for scale in scales], np.float32))


def _begin_beyond_nothing(values: FloatArray, members: Sequence[Rows], state: PeerState, floors: FloatArray) -> None:
    """Forget the levels near zero of groups that have left them, since of zero no ratio can be taken."""
    for rows in members:
        was_nothing = median(np.abs(state.level[rows]), 0) < _NEARLY_NOTHING_FLOORS * floors
        began = was_nothing & (median(values[rows], 0) >= 2 * _NEARLY_NOTHING_FLOORS * floors)
        if began.any():
            cells = np.ix_(np.arange(values.shape[0])[rows], np.flatnonzero(began))
            state.level[cells], state.own_spread[cells], state.seen_count[cells] = np.nan, 0, 0


def _is_additive(
    level: FloatArray, members: Sequence[Rows], counted: NDArray[np.bool_], floors: FloatArray
) -> NDArray[np.bool_]:
    """Return where differences are taken instead of ratios, shape (rows, metrics).

    That is where the group's median level is near zero. It holds for all rows of a group: a single row that has
    left the floor would otherwise be compared with its own new level.
    """
    size = np.abs(level)
    for rows in members:
        size[rows] = median(size[rows], 0)
    additive: NDArray[np.bool_] = (
        counted | (size < _NEARLY_NOTHING_FLOORS * floors) | (size < _NOTHING) | (np.abs(level) < _NOTHING)
    )
    return additive


def _sigma(
    rest: FloatArray,
    expected: FloatArray,
    members: Sequence[Rows],
    known: tuple[PeerState, FloatArray, FloatArray, NDArray[np.bool_]],
    config: PeerConfig,
) -> FloatArray:
    """Return the largest of the four spreads, shape (rows, metrics); the learned spread across rows is updated."""
    state, floors, shared, additive = known
    now = np.zeros_like(rest)
    every = []
    for rows in members:
        across = MAD_TO_SIGMA * median(np.abs(rest[rows]), 0)
        now[rows] = without_gaps(across)
        every.append(across)
    if every:
        across = median(np.stack(every), 0)
        rate = 1.0 / 24
        fresh = np.isfinite(across)
        first = fresh & ~np.isfinite(state.spread)
        capped = np.minimum(across, np.where(np.isfinite(state.spread), 3 * state.spread + floors, np.inf))
        state.spread = np.where(
            first, across, np.where(fresh, state.spread + rate * (capped - state.spread), state.spread)
        ).astype(np.float32)
    floor = np.maximum(floors, np.where(additive, 0.0, config.relative_floor_ratio * np.abs(expected)))
    own = 1.25 * state.own_spread
    least = np.maximum(floor, shared)
    found: FloatArray = np.maximum.reduce([now, without_gaps(np.broadcast_to(state.spread, rest.shape)), own, least])
    return np.maximum(found, 1e-9).astype(np.float32)


def _learn(
    values: FloatArray,
    rest: FloatArray,
    sigmas: FloatArray,
    limits: tuple[FloatArray, FloatArray, NDArray[np.bool_] | None],
    state: PeerState,
    config: PeerConfig,
) -> None:
    """Update levels and spreads from one window.

    Args:
        values: window means, shape (rows, metrics).
        rest: distance from the expected values, same shape.
        sigmas: the same in units of the spread.
        limits: the common factors, the most by which a level may move, and the doubted rows (``compare``).
        state: what was learned so far; it is changed.
        config: settings.
    """
    factor, most, doubted = limits
    fresh = np.isfinite(values)
    idle = np.isfinite(factor) & (factor < config.idle_ratio)
    first = fresh & ~np.isfinite(state.level)
    state.level = np.where(first, values, state.level).astype(np.float32)
    rate = 1.0 / np.clip(state.seen_count + 1, 1, config.level_count)
    suspicious = np.abs(sigmas) > config.suspicious_sigmas
    # Of a machine that is ill what creeps beside what is odd is not usual either: heat, slowly.
    slowly = suspicious if doubted is None else suspicious | doubted[:, None]
    rate = np.where(slowly, rate * config.suspicious_rate_ratio, rate)
    rate = np.where(fresh & ~first & ~idle, rate, 0.0)
    scaled = np.where(np.isfinite(factor), rest / np.clip(factor, 0.3, 3.0), rest)
    scaled = np.clip(scaled, -most, most)
    state.level += without_gaps(rate * scaled).astype(np.float32)
    limit = np.where(state.seen_count >= config.warmup_count, 4 * state.own_spread + 1e-9, np.inf)
    size = np.minimum(np.abs(without_gaps(rest)), np.maximum(limit, 1e-6 * np.abs(without_gaps(state.level))))
    pace = 1.0 / np.clip(state.seen_count + 1, 1, config.level_count / 2)
    pace = np.where(slowly, pace * config.suspicious_rate_ratio, pace)
    pace = np.where(fresh & ~first & ~idle, pace, 0.0)
    state.own_spread += (pace * (size - state.own_spread)).astype(np.float32)
    state.seen_count += (fresh & ~idle).astype(np.float32)


_APART_SPREADS, _SPREAD_SHARE_RATIO = 5.0, 0.1
_UNUSED_SHARE = 2.0


def below_all(
    values: FloatArray, level: FloatArray, groups: IntArray, most_ratio: float = 1.0, least_share: float = 0.0
) -> NDArray[np.bool_]:
    """Return which rows do much less than the others in a stalled job, shape (rows, metrics).

    Waiting kernels and proxies cost a little of everything, the same on each machine; a machine that does not
    even wait does less. Rows are measured in units of their own level, and of the spread across rows now.

    Args:
        values: window means, shape (rows, metrics), NaN = no sample.
        level: each row's level while the job works, same shape.
        groups: which group each row belongs to, shape (rows,), -1 = compared with nobody.
        most_ratio: most that a row may do, as a share of the others' median.
        least_share: least distance below the others' median, as a share of the row's own level.
    """
    share = np.where(level > _NOTHING, values / np.maximum(level, _NOTHING), np.nan)
    found = np.zeros(values.shape, bool)
    for rows in rows_of_groups(groups):
        # A level that waiting alone exceeds by far is the noise of something unused: it measures nothing.
        compared = np.where(median(share[rows], 0) > _UNUSED_SHARE, values[rows], share[rows])
        middle = median(compared, 0)
        width = MAD_TO_SIGMA * median(np.abs(compared - middle), 0)
        width = np.maximum(width, _SPREAD_SHARE_RATIO * middle)
        with np.errstate(invalid="ignore"):
            apart = middle - compared >= _APART_SPREADS * width
            found[rows] = (middle > 0) & apart & (compared <= most_ratio * middle)
            if least_share > 0:
                found[rows] &= median(share[rows], 0) - share[rows] >= least_share
    return found
