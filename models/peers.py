"""Distance of each machine from its peers, metric by metric: numbers in, scores out.

After Minder's similarity idea (NSDI'25): machines of one synchronous job look alike, the
outlier is the suspect. Instead of pairwise distances, which cost N², each row is compared
with the median of its group; instead of absolute values, with **its own learned level times
the group's common factor**: a warm host stays warm, a checkpoint lets everybody fall alike,
a pipeline stage with half of the load has half of the level. What is left is divided by the
largest of four spreads (across the rows now, across the rows as learned, the row's own, a
floor per metric) and added up over time by a cumulative sum (Page, 1954): strong evidence is
believed soon, weak evidence late, a short jitter never.

All cost is linear in the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tocsin.models.peer_groups import became_alike, beyond_others, spread_of_jam
from tocsin.models.peer_scales import Scale
from tocsin.models.robust import MAD_TO_SIGMA, median

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class PeerConfig:
    """Settings of the comparison.

    Attributes:
        min_peer_count: below so many hosts of a role all hosts are compared; below so many hosts, nobody.
        warmup_count: windows that only teach.
        level_count: windows over which a level is remembered (120 of 5 s: ten minutes).
        suspicious_sigmas: beyond it a window teaches nothing (or nearly so).
        suspicious_rate_ratio: how much slower a level follows a row that deviates.
        relative_floor_ratio: no spread is below this share of the level.
        idle_ratio: where the group's common factor is below this, nothing is learned.
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
    """What was learned of rows x metrics (float32, NaN = nothing yet).

    Attributes:
        level: each row's own level.
        own_spread: mean distance of a row from what was expected of it.
        seen_count: windows with a sample, shape (rows, metrics).
        spread: spread across rows as learned, shape (metrics,).
    """

    level: FloatArray
    own_spread: FloatArray
    seen_count: FloatArray
    spread: FloatArray

    @classmethod
    def empty(cls, row_count: int, metric_count: int) -> PeerState:
        """Nothing learned."""
        return cls(
            np.full((row_count, metric_count), np.nan, np.float32),
            np.zeros((row_count, metric_count), np.float32),
            np.zeros((row_count, metric_count), np.float32),
            np.full(metric_count, np.nan, np.float32),
        )

    def grown(self, rows: IntArray, row_count: int) -> PeerState:
        """The same state where row i has moved to ``rows[i]`` of ``row_count``."""
        other = PeerState.empty(row_count, self.spread.size)
        other.level[rows], other.own_spread[rows] = self.level, self.own_spread
        other.seen_count[rows], other.spread = self.seen_count, self.spread
        return other

    def kept(self, rows: IntArray) -> PeerState:
        """The same state of these rows alone."""
        return PeerState(self.level[rows], self.own_spread[rows], self.seen_count[rows], self.spread)

    def of_columns(self, columns: IntArray) -> PeerState:
        """The same state of these metrics alone, a copy."""
        return PeerState(
            self.level.take(columns, 1),
            self.own_spread.take(columns, 1),
            self.seen_count.take(columns, 1),
            self.spread.take(columns),
        )

    def put_columns(self, columns: IntArray, part: PeerState) -> None:
        """Take back what ``of_columns`` gave."""
        # Others may hold the levels of before.
        self.level, self.spread = self.level.copy(), self.spread.copy()
        self.level[:, columns], self.spread[columns] = part.level, part.spread
        self.own_spread[:, columns], self.seen_count[:, columns] = part.own_spread, part.seen_count

    def forget(self, rows: IntArray) -> None:
        """Rows that do other work from now on: what was learned of them says nothing."""
        self.level[rows], self.own_spread[rows], self.seen_count[rows] = np.nan, 0, 0


@dataclass(frozen=True, slots=True)
class PeerWindow:
    """What one window says, each of shape (rows, metrics).

    Attributes:
        sigmas: distance from what was expected, signed; NaN: no sample, no peers, still learning.
        expected: what was expected of the row.
        factor: the group's common factor over its learned level.
    """

    sigmas: FloatArray
    expected: FloatArray
    factor: FloatArray


_NEARLY_NOTHING_FLOORS = 3.0
_MOST_FLOORS = 20.0
"""A level that is nearly nothing may move by so much in a window; others by themselves."""
_NOTHING = 1e-9
"""A level that is nothing: no ratio can be taken (an error counter of a healthy machine)."""


def compare(
    values: FloatArray,
    groups: IntArray,
    state: PeerState,
    scales: Sequence[Scale],
    config: PeerConfig,
    doubted: NDArray[np.bool_] | None = None,
) -> PeerWindow:
    """Compare rows with their groups, then learn from them. ``state`` is changed.

    Args:
        values: window means, transformed, shape (rows, metrics), NaN = no sample.
        groups: which group each row belongs to, shape (rows,); -1: compared with nobody.
        state: what was learned.
        scales: one per metric.
        config: settings.
        doubted: rows of machines that differ in some way, shape (rows,): hardly anything is learned from them.
    """
    told = np.flatnonzero(~np.isnan(values).all(axis=0) | ~np.isnan(state.level).all(axis=0))
    if told.size == values.shape[1]:
        return _compare(values, groups, state, scales, config, doubted)
    # Many metrics are collected nowhere: half of the time would be spent on their NaNs.
    part = state.of_columns(told)
    window = _compare(values.take(told, 1), groups, part, [scales[column] for column in told], config, doubted)
    state.put_columns(told, part)
    found = np.full((3, *values.shape), np.nan, np.float32)
    found[:, :, told] = window.sigmas, window.expected, window.factor
    return PeerWindow(*found)


def _compare(
    values: FloatArray,
    groups: IntArray,
    state: PeerState,
    scales: Sequence[Scale],
    config: PeerConfig,
    doubted: NDArray[np.bool_] | None,
) -> PeerWindow:
    """The same where each metric has been seen on some row."""
    floors = np.array([scale.floor for scale in scales], np.float32)
    counted = np.array([scale.counted for scale in scales], bool)
    _begin_beyond_nothing(values, groups, state, np.where(counted, 0.0, floors))
    level = np.where(np.isfinite(state.level), state.level, values)
    additive = _is_additive(level, groups, counted, floors)
    safe = np.where(np.abs(level) < _NOTHING, 1.0, level)
    factor = np.full_like(values, np.nan)
    shift = np.zeros_like(values)
    shifts = np.zeros((int(groups.max(initial=-1)) + 1, values.shape[1]), np.float32)
    for group in np.unique(groups[groups >= 0]):
        rows = np.flatnonzero(groups == group)
        ratio = np.where(additive[rows], np.nan, values[rows] / safe[rows])
        factor[rows] = median(ratio, 0)
        shift[rows] = shifts[group] = median(values[rows] - level[rows], 0)
    expected = np.where(additive, level + shift, level * factor)
    expected = np.where(np.isfinite(expected), expected, level + shift)
    lows = np.array([scale.low for scale in scales], np.float32)
    expected = np.clip(expected, lows, _highest(values, level, scales)).astype(np.float32)
    rest = values - expected
    shared = spread_of_jam(shifts, counted)
    sigma = _sigma(rest, expected, groups, (state, floors, shared, additive), config)
    ready = state.seen_count >= config.warmup_count
    judged = ready & (groups >= 0)[:, None]
    sigmas = np.where(judged, rest / sigma, np.nan).astype(np.float32)
    odd = np.flatnonzero((np.abs(sigmas) > config.suspicious_sigmas).any(axis=0))
    alike = became_alike(values[:, odd], level[:, odd], groups, floors[odd], config.relative_floor_ratio)
    sigmas[:, odd] = np.where(judged[:, odd] & alike, np.float32(0.0), sigmas[:, odd])
    if len(shifts) > 1 and additive.any():
        own = np.where(additive, beyond_others(rest, shift, shifts), rest)
        said = np.where(judged & (sigmas != 0.0), own / sigma, sigmas).astype(np.float32)
    else:
        said = sigmas
    most = np.where(counted | ~ready, np.inf, np.maximum(np.abs(level), _MOST_FLOORS * floors))
    _learn(values, rest, sigmas, (factor, most, doubted), state, config)
    return PeerWindow(said, expected, factor)


def _highest(values: FloatArray, level: FloatArray, scales: Sequence[Scale]) -> FloatArray:
    """The most that can be expected of anybody, shape (metrics,)."""
    seen = np.fmax(np.fmax.reduce(values, 0, initial=-np.inf), np.fmax.reduce(level, 0, initial=-np.inf))
    return np.fmax(seen, np.array([scale.high for scale in scales], np.float32))


def _begin_beyond_nothing(values: FloatArray, groups: IntArray, state: PeerState, floors: FloatArray) -> None:
    """Learn anew what a group did next to nothing of, and does now: of nothing no ratio can be taken."""
    for group in np.unique(groups[groups >= 0]):
        rows = np.flatnonzero(groups == group)
        was_nothing = median(np.abs(state.level[rows]), 0) < _NEARLY_NOTHING_FLOORS * floors
        began = was_nothing & (median(values[rows], 0) >= 2 * _NEARLY_NOTHING_FLOORS * floors)
        if began.any():
            cells = np.ix_(rows, np.flatnonzero(began))
            state.level[cells], state.own_spread[cells], state.seen_count[cells] = np.nan, 0, 0


def _is_additive(
    level: FloatArray, groups: IntArray, counted: NDArray[np.bool_], floors: FloatArray
) -> NDArray[np.bool_]:
    """Where differences are taken instead of ratios, shape (rows, metrics): where the group's level is next to nothing.

    All rows of a group are measured alike: a row that alone has left the floor would else be its own measure.
    """
    size = np.abs(level)
    for group in np.unique(groups[groups >= 0]):
        rows = np.flatnonzero(groups == group)
        size[rows] = median(size[rows], 0)
    additive: NDArray[np.bool_] = (
        counted | (size < _NEARLY_NOTHING_FLOORS * floors) | (size < _NOTHING) | (np.abs(level) < _NOTHING)
    )
    return additive


def _sigma(
    rest: FloatArray,
    expected: FloatArray,
    groups: IntArray,
    known: tuple[PeerState, FloatArray, FloatArray, NDArray[np.bool_]],
    config: PeerConfig,
) -> FloatArray:
    """The largest of the spreads, shape (rows, metrics)."""
    state, floors, shared, additive = known
    now = np.zeros_like(rest)
    every = []
    for group in np.unique(groups[groups >= 0]):
        rows = np.flatnonzero(groups == group)
        across = MAD_TO_SIGMA * median(np.abs(rest[rows]), 0)
        now[rows] = np.nan_to_num(across)
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
    found: FloatArray = np.maximum.reduce([now, np.nan_to_num(np.broadcast_to(state.spread, rest.shape)), own, least])
    return np.maximum(found, 1e-9).astype(np.float32)


def _learn(
    values: FloatArray,
    rest: FloatArray,
    sigmas: FloatArray,
    limits: tuple[FloatArray, FloatArray, NDArray[np.bool_] | None],
    state: PeerState,
    config: PeerConfig,
) -> None:
    """Learn from one window; by the common factor, and by no more than the most: one absurd sample is not usual."""
    factor, most, doubted = limits
    fresh = np.isfinite(values)
    idle = np.isfinite(factor) & (factor < config.idle_ratio)
    first = fresh & ~np.isfinite(state.level)
    state.level = np.where(first, values, state.level).astype(np.float32)
    rate = 1.0 / np.clip(state.seen_count + 1, 1, config.level_count)
    odd = np.abs(sigmas) > config.suspicious_sigmas
    # Of a machine that is ill what creeps beside what is odd is not usual either: heat, slowly.
    slowly = odd if doubted is None else odd | doubted[:, None]
    rate = np.where(slowly, rate * config.suspicious_rate_ratio, rate)
    rate = np.where(fresh & ~first & ~idle, rate, 0.0)
    scaled = np.where(np.isfinite(factor), rest / np.clip(factor, 0.3, 3.0), rest)
    scaled = np.clip(scaled, -most, most)
    state.level += np.nan_to_num(rate * scaled).astype(np.float32)
    limit = np.where(state.seen_count >= config.warmup_count, 4 * state.own_spread + 1e-9, np.inf)
    size = np.minimum(np.abs(np.nan_to_num(rest)), np.maximum(limit, 1e-6 * np.abs(np.nan_to_num(state.level))))
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
    """Which rows do much less than all others, by their own measure: what is left of a job that stands.

    Waiting kernels and proxies cost a little of everything, the same everywhere; whoever does not
    even wait does less. Rows are measured in units of their own level, and of the rows' spread now.

    Args:
        values: window means, shape (rows, metrics), NaN = no sample.
        level: each row's level while the job works, same shape.
        groups: which group each row belongs to, shape (rows,); -1: compared with nobody.
        most_ratio: of what the others do: more is not much less.
        least_share: of a row's own level: it is below the others by so much at least.
    """
    share = np.where(level > _NOTHING, values / np.maximum(level, _NOTHING), np.nan)
    found = np.zeros(values.shape, bool)
    for group in np.unique(groups[groups >= 0]):
        rows = np.flatnonzero(groups == group)
        # A level that waiting alone exceeds by far is the noise of something unused: it measures nothing.
        told = np.where(median(share[rows], 0) > _UNUSED_SHARE, values[rows], share[rows])
        middle = median(told, 0)
        width = MAD_TO_SIGMA * median(np.abs(told - middle), 0)
        width = np.maximum(width, _SPREAD_SHARE_RATIO * middle)
        with np.errstate(invalid="ignore"):
            apart = middle - told >= _APART_SPREADS * width
            found[rows] = (middle > 0) & apart & (told <= most_ratio * middle)
            if least_share > 0:
                found[rows] &= median(share[rows], 0) - share[rows] >= least_share
    return found
