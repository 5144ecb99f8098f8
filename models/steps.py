"""Find the slow ranks of a synchronous job from its step records.

In a synchronous job the slow rank is the one that the others wait for. Its *self time* (step without
collectives) is long and its communication time is short; the others' communication time is long.
Three tests, each over a window of steps, because no single step can answer them:

1. Is the same rank (or host) the slowest in nearly all steps? If not: data or jitter.
2. Is its excess large against the spread of its peers of the same role, and against the step time?
3. Do its peers wait for it?

After "who is slowest, step after step" of the straggler study (What-if, OSDI'25).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tocsin.models.robust import median, median_of

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

PHASES = ("data", "forward", "backward", "optimizer")
"""Phases of a rank's self time, in the order of the ``phase_seconds`` arrays."""


@dataclass(frozen=True, slots=True)
class SlowConfig:
    """Alarm lines of the comparison of step times among peers.

    Attributes:
        min_peer_count: least number of ranks of a role to compare them.
        min_excess_seconds: least excess; less is noise of clocks and schedulers.
        min_strength_ratio: least excess as a share of the step time without it. 0.10: the straggler study calls a job
            straggling from 1.1.
        spread_factor: least excess in robust spreads of the peers. 5: at 64 peers and normal noise, one false candidate
            in 40,000 windows before continuity is required.
        min_share_ratio: least share of steps in which the slowest rank is among the suspects.
        min_wait_ratio: least share of the excess that the peers are seen to wait.
        max_suspect_ratio: largest share of a role that can be slow together; more are no outliers.
    """

    min_peer_count: int = 3
    min_excess_seconds: float = 0.005
    min_strength_ratio: float = 0.10
    spread_factor: float = 5.0
    min_share_ratio: float = 0.8
    min_wait_ratio: float = 0.4
    max_suspect_ratio: float = 0.34


@dataclass(frozen=True, slots=True)
class StepWindow:
    """The last steps of all ranks; NaN = not measured.

    Attributes:
        duration_seconds: step time, shape (steps, ranks).
        communication_seconds: time in collectives, shape (steps, ranks).
        phase_seconds: time in each phase, shape (4, steps, ranks), order of ``PHASES``.
        roles: role number of each rank, shape (ranks,); only ranks of equal role are compared.
    """

    duration_seconds: FloatArray
    communication_seconds: FloatArray
    phase_seconds: FloatArray
    roles: IntArray

    @property
    def own_seconds(self) -> FloatArray:
        """Self time: step time without collectives, shape (steps, ranks)."""
        return self.duration_seconds - self.communication_seconds

    def last(self, count: int) -> StepWindow:
        """Return a window of the newest ``count`` steps only."""
        return StepWindow(
            self.duration_seconds[-count:],
            self.communication_seconds[-count:],
            self.phase_seconds[:, -count:],
            self.roles,
        )


@dataclass(frozen=True, slots=True)
class SlowPart:
    """One slow rank of a group of slow ranks.

    Attributes:
        column: column of the rank in the window.
        excess_seconds: self time above the peers' median, median over the window.
        strength_ratio: excess as a share of the step time without the slowest rank.
        own_seconds: self time, median over the window.
        phase: phase with the largest part of the excess, "" where phases are not measured.
        phase_share_ratio: share of the excess in that phase.
        first_row: first row of the window from which the excess lasts to its end.
    """

    column: int
    excess_seconds: float
    strength_ratio: float
    own_seconds: float
    phase: str
    phase_share_ratio: float
    first_row: int


@dataclass(frozen=True, slots=True)
class SlowRanks:
    """The slow ranks of one role, for which the others wait.

    Attributes:
        parts: one entry per slow rank, slowest first.
        score: smallest ratio of the tests to their alarm lines; at least 1.
        peer_seconds: the peers' median self time.
        share_ratio: share of steps in which one of the slow ranks was the slowest.
    """

    parts: tuple[SlowPart, ...]
    score: float
    peer_seconds: float
    share_ratio: float

    @property
    def columns(self) -> tuple[int, ...]:
        """Columns of the slow ranks in the window, slowest first."""
        return tuple(part.column for part in self.parts)


def find_slow(window: StepWindow, config: SlowConfig) -> SlowRanks | None:
    """Return the slow ranks of the role with the largest excess; None where no role passes all tests.

    Args:
        window: at least two steps.
        config: alarm lines.
    """
    found = [
        slow
        for role in np.unique(window.roles)
        if (slow := _find_in_role(window, np.flatnonzero(window.roles == role), config)) is not None
    ]
    return max(found, key=lambda slow: slow.parts[0].excess_seconds, default=None)


def luck_ratio(window: StepWindow, columns: Sequence[int], count: int, excess_seconds: float) -> float:
    """Return the probability that as many ranks of a role are the slowest this often by luck.

    Luck is asked only where others are struck, too: 0.0 where no other rank of the role was late by half as much in any
    step. Then every rank is as likely to be the slowest in a step: c of N ranks have it in k or more of n steps with a
    binomial probability, and there are N/c such sets of ranks. 1.0 without a step that tells.

    Args:
        window: all known steps.
        columns: columns of the suspected ranks, of one role.
        count: number of newest steps in which they look slow.
        excess_seconds: what the slowest of them is late by.
    """
    members = np.flatnonzero(window.roles == window.roles[columns[0]])
    own = window.own_seconds[:, members]
    is_suspect = np.isin(members, columns)
    if not (own - _nanmedian1(own)[:, None] > excess_seconds / 2)[:, ~is_suspect].any():
        return 0.0
    own = own[-count:] if count else own[:0]
    own = own[np.isfinite(own).sum(axis=1) >= 2]
    hits = int(is_suspect[np.nanargmax(own, axis=1)].sum()) if own.size else 0
    share = len(columns) / members.size
    steps = own.shape[0]
    tail = sum(math.comb(steps, k) * share**k * (1 - share) ** (steps - k) for k in range(hits, steps + 1))
    return min(1.0, float(tail) / share)


def median_excess(window: StepWindow) -> FloatArray:
    """Return each rank's self time above its role's median, as a median over the window; shape (ranks,), seconds."""
    own = window.own_seconds
    excess = np.zeros(own.shape[1])
    for role in np.unique(window.roles):
        members = np.flatnonzero(window.roles == role)
        excess[members] = np.nan_to_num(_nanmedian0(own[:, members] - _nanmedian1(own[:, members])[:, None]))
    return excess


def volatility_ratio(window: StepWindow) -> float:
    """Return how far self times scatter among ranks within a step: median over steps of robust spread over median.

    A single slow rank does not change it; sequences of many lengths do.
    """
    own = window.own_seconds
    middle = _nanmedian1(own)
    spread = 1.4826 * _nanmedian1(np.abs(own - middle[:, None]))
    ratios = spread / np.maximum(middle, 1e-6)
    finite = ratios[np.isfinite(ratios)]
    return median_of(finite) if finite.size else 0.0


def has_peers(roles: IntArray, config: SlowConfig) -> bool:
    """Return whether any role has at least ``min_peer_count`` ranks."""
    return bool(roles.size) and int(np.unique(roles, return_counts=True)[1].max()) >= config.min_peer_count


def _find_in_role(window: StepWindow, members: IntArray, config: SlowConfig) -> SlowRanks | None:
    """Return the slow ranks among the members of one role; None where a test fails.

    Args:
        window: the last steps.
        members: columns of the role's ranks.
        config: alarm lines.
    """
    own = window.own_seconds[:, members]
    enough = np.isfinite(own).sum(axis=1) >= config.min_peer_count
    if enough.sum() < 2:  # one step shows no continuity
        return None
    own = own[enough]
    above = own - _nanmedian1(own)[:, None]
    excess = _nanmedian0(above)
    slow = _slow_columns(excess, config) if np.isfinite(excess).any() else None
    if slow is None:
        return None
    rest = np.setdiff1d(np.arange(members.size), slow)
    top = int(slow[0])
    gain = float(excess[slow].max())
    if not _median_of_all(above[-5:, top]) > gain / 2:  # it was, and is no more
        return None
    step_seconds = float(_median_of_all(window.duration_seconds[:, members]))
    strength = gain / max(step_seconds - gain, 1e-3)
    slowest = np.nanargmax(np.where(np.isfinite(above), above, -np.inf), axis=1)
    share = float(np.isin(slowest, slow).mean())
    if strength < config.min_strength_ratio or share < config.min_share_ratio:
        return None  # the cheap tests first: this is asked every second of every role
    waiting = _wait(window.communication_seconds[:, members], slow, rest)
    score = _score(above, excess, (gain, strength, share, waiting), (top, rest), config)
    if score < 1.0:
        return None
    usual_seconds = max(step_seconds - gain, 1e-3)
    return SlowRanks(
        parts=tuple(_part(window, members, int(column), float(excess[column]), usual_seconds) for column in slow),
        score=score,
        peer_seconds=float(_median_of_all(own[:, rest])),
        share_ratio=share,
    )


def _part(window: StepWindow, members: IntArray, column: int, gain: float, usual_seconds: float) -> SlowPart:
    """Build the entry of one slow rank of a role.

    Args:
        window: the last steps.
        members: columns of the role's ranks.
        column: index of the rank among the members.
        gain: its excess in seconds.
        usual_seconds: step time without the slowest rank.
    """
    own = window.own_seconds[:, members]
    phase, phase_share = _phase_of(window.phase_seconds[:, :, members], column, gain)
    return SlowPart(
        column=int(members[column]),
        excess_seconds=gain,
        strength_ratio=gain / usual_seconds,
        own_seconds=float(_median_of_all(own[:, column])),
        phase=phase,
        phase_share_ratio=phase_share,
        first_row=_first_row(own, column, gain),
    )


def _score(
    above: FloatArray,
    excess: FloatArray,
    measured: tuple[float, float, float, float],
    who: tuple[int, IntArray],
    config: SlowConfig,
) -> float:
    """Return the smallest ratio of the tests to their alarm lines.

    Args:
        above: self time above the step's median, shape (steps, ranks).
        excess: median of ``above`` over the steps.
        measured: gain in seconds, strength, share of steps, seconds that the peers wait longer.
        who: column of the slowest rank, columns of the peers.
        config: the lines.
    """
    gain, strength, share, waiting = measured
    top, rest = who
    spread = _spread(excess[rest], above[:, rest])
    lasting = float((above[:, top] > gain / 2).mean())
    return float(
        min(
            gain / config.min_excess_seconds,
            strength / config.min_strength_ratio,
            gain / (config.spread_factor * spread) if spread > 0 else np.inf,
            share / config.min_share_ratio,
            lasting / config.min_share_ratio,
            waiting / gain / config.min_wait_ratio,
        )
    )


def _slow_columns(excess: FloatArray, config: SlowConfig) -> IntArray | None:
    """Return the columns with at least half of the largest excess, largest first.

    None if the largest excess is below its limit, or if the columns are too many to be outliers.
    """
    finite = np.where(np.isfinite(excess), excess, -np.inf)
    top = float(finite.max())
    if top < config.min_excess_seconds:
        return None
    slow = np.flatnonzero(finite >= top / 2)
    if slow.size > max(1.0, config.max_suspect_ratio * excess.size):
        return None
    return slow[np.argsort(-finite[slow], kind="stable")]


def _spread(excess: FloatArray, above: FloatArray) -> float:
    """Return the robust spread of the peers' excess, seconds.

    It is the larger of the spread between ranks and the standard error of one rank's median over the window.
    """
    finite = excess[np.isfinite(excess)]
    if finite.size == 0:
        return 0.0
    between = 1.4826 * median_of(np.abs(finite - median_of(finite)))
    steps = max(1, above.shape[0])
    within = 1.4826 * float(_median_of_all(np.abs(above - excess[None, :]))) / np.sqrt(steps)
    return max(between, float(within))


def _wait(communication: FloatArray, slow: IntArray, rest: IntArray) -> float:
    """Return how many seconds longer the peers' collectives take than those of the slow ranks; 0.0 if unknown."""
    if rest.size == 0 or not np.isfinite(communication).any():
        return 0.0
    peers = _median_of_all(communication[:, rest])
    suspects = _median_of_all(communication[:, slow])
    return float(peers - suspects) if np.isfinite(peers) and np.isfinite(suspects) else 0.0


def _phase_of(phases: FloatArray, top: int, gain: float) -> tuple[str, float]:
    """Return the phase with the largest excess of one rank, and its share of the whole excess; ("", 0.0) if unknown."""
    above = phases - median(phases, 2)[:, :, None] if np.isfinite(phases).any() else None
    if above is None:
        return "", 0.0
    per_phase = np.array([_median_of_all(above[p, :, top]) for p in range(len(PHASES))])
    if not np.isfinite(per_phase).any():
        return "", 0.0
    best = int(np.nanargmax(per_phase))
    return PHASES[best], float(np.clip(per_phase[best] / gain, 0.0, 1.0))


def _first_row(own: FloatArray, top: int, gain: float) -> int:
    """Return the first row from which the rank's excess stays above half of ``gain``, single rows excepted."""
    above = own[:, top] - _nanmedian1(own)
    hot = above > gain / 2
    row = own.shape[0]
    for index in range(own.shape[0] - 1, -1, -1):
        if hot[index]:
            row = index
        elif index >= 1 and not hot[index - 1]:
            break
    return int(min(row, own.shape[0] - 1))


def _median_of_all(values: FloatArray) -> float:
    """Return the median of all finite numbers of an array, NaN without any."""
    finite = values[np.isfinite(values)]
    return median_of(finite) if finite.size else float("nan")


def _nanmedian0(values: FloatArray) -> FloatArray:
    """Return the median over rows, skipping NaN."""
    return median(values, 0)


def _nanmedian1(values: FloatArray) -> FloatArray:
    """Return the median over columns, skipping NaN."""
    return median(values, 1)
