"""Runtime entropy: how evenly a rank's time and calls spread over operations, and how far that is from its peers.

Uses execution-time and call entropy as in Kong et al. (QRS-C 2021). It does not reproduce them: how the
paper combines the two was not recovered, so both numbers are kept. Natural logarithms, exclusive times.

Entropy alone is blind to a permutation: two operations that swap their shares leave it unchanged. So the
Jensen-Shannon divergence from the peers is always computed as well. The sign of a change is no verdict: a slow
major operation lowers the entropy, a slow minor one raises it. Both tails count.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tocsin.models.robust import median, quantile, spread
from tocsin.schemas.errors import FieldError
from tocsin.schemas.reasons import Reason

FloatArray = npt.NDArray[np.float64]

FEATURES = ("time_entropy", "call_entropy", "time_divergence", "call_divergence")
"""Columns of ``Measured.values``, all in nats."""
_TWO_SIDED = np.array([True, True, False, False])
"""For each feature, whether changes of both signs count. A divergence that falls means that a rank became more like its
peers, which is no fault."""
_TAIL_SIGMAS = np.array([1.96, 1.96, 1.645, 1.645])
"""For each feature, the 95th percentile of normal noise in standard deviations: two-sided for entropies, one-sided for
divergences."""


@dataclass(frozen=True, slots=True)
class EntropyConfig:
    """Settings and alarm line of the entropy method.

    Attributes:
        min_peer_count: least number of ranks to compare; with fewer, nothing is measured.
        min_operations_factor: a rank with fewer operations in a window than this times the number of used classes is
            not measured (``seed-systems-b.md`` 5.2: refuse n < 4 K).
        max_sigmas: alarm line in robust standard deviations of the peers (5.3: z > 4).
        entropy_floor: least spread of an entropy, nats. 0.02 / 4: sampling alone may move an entropy by 0.02 nats (5.4
            E3), and that must not be an alarm.
        divergence_floor: least spread of a divergence, nats. 0.001: with the line at 4 of them, a share of 0.25 must
            become 0.33 or 0.17 to be an alarm by itself.
        tail_peer_count: with at least so many ranks, the spread is the larger of the median deviation and the one
            implied by the peers' 95th percentile. Heavy tails (sequences of many lengths) are no fault. 256, because a
            host of eight ranks is 3 % of them and cannot set that percentile.
    """

    min_peer_count: int = 3
    min_operations_factor: float = 4.0
    max_sigmas: float = 4.0
    entropy_floor: float = 0.005
    divergence_floor: float = 0.001
    tail_peer_count: int = 256


@dataclass(frozen=True, slots=True)
class Measured:
    """Entropies and divergences of ranks that carry the same load, for one window.

    Attributes:
        values: nats, shape (ranks, 4), columns as ``FEATURES``; NaN: the rank cannot be measured.
        floors: least spread of each value, nats, same shape.
        parts: contribution of each operation class to a rank's divergences from its peers (time plus calls), nats,
            shape (ranks, classes).
        reason: why nothing was measured, None if something was.
    """

    values: FloatArray
    floors: FloatArray
    parts: FloatArray
    reason: Reason | None = None


def shares(amounts: FloatArray) -> FloatArray:
    """Return amounts divided by their row's sum; a row whose sum is not finite and above 0 becomes NaN.

    Args:
        amounts: shape (..., classes).
    """
    total = amounts.sum(axis=-1, keepdims=True)
    good = np.isfinite(total) & (total > 0)
    divided: FloatArray = np.where(good, amounts / np.where(good, total, 1.0), np.nan)
    return divided


def entropy(amounts: FloatArray, event_count: FloatArray | None = None) -> FloatArray:
    """Return the Shannon entropy of each row, nats; NaN for a row whose sum is not above 0.

    Args:
        amounts: at least 0, shape (..., classes).
        event_count: number of events behind each row where they are a sample. The plug-in estimate is low by about
            (K-1)/(2n), which is added (Miller-Madow). None: the rows hold all events.
    """
    part = shares(amounts)
    found: FloatArray = -_x_log_x(part).sum(axis=-1)
    if event_count is not None:
        seen = (amounts > 0).sum(axis=-1)
        found = found + np.maximum(seen - 1, 0) / (2.0 * np.maximum(event_count, 1.0))
    return found


def divergence_parts(left: FloatArray, right: FloatArray) -> FloatArray:
    """Return the contribution of each class to the Jensen-Shannon divergence of two rows of shares, nats, each >= 0."""
    middle = (left + right) / 2
    return np.maximum(0.0, (_x_log_x(left) + _x_log_x(right)) / 2 - _x_log_x(middle))


def jensen_shannon(left: FloatArray, right: FloatArray) -> FloatArray:
    """Return the Jensen-Shannon divergence between rows of shares, nats, from 0 to log 2."""
    found: FloatArray = divergence_parts(left, right).sum(axis=-1)
    return found


def measure(seconds: FloatArray, counts: FloatArray, config: EntropyConfig, *, sampled: bool = False) -> Measured:
    """Compute each rank's time and call entropy and its divergences from the median rank, for one window.

    Args:
        seconds: exclusive time by class, shape (ranks, classes); a row with NaN is not measured.
        counts: number of operations by class, same shape.
        config: least numbers of ranks and operations, and floors.
        sampled: True if the operations are a random sample (stacks). Then entropies and divergences are corrected for
            their small-sample bias, and the floors grow with the sampling error.

    Raises:
        FieldError: an amount is negative or infinite.
    """
    _check("seconds", seconds)
    _check("counts", counts)
    values = np.full((seconds.shape[0], len(FEATURES)), np.nan)
    floors = np.full_like(values, config.entropy_floor)
    floors[:, 2:] = config.divergence_floor
    parts = np.zeros(seconds.shape)
    used_count = int((np.nan_to_num(counts).sum(axis=0) > 0).sum())
    events = counts.sum(axis=1)
    good = (events >= config.min_operations_factor * max(used_count, 1)) & (seconds.sum(axis=1) > 0)
    if good.sum() < config.min_peer_count:
        lacking = Reason.TOO_FEW_PEERS if seconds.shape[0] < config.min_peer_count else Reason.TOO_FEW_OPERATIONS
        return Measured(values, floors, parts, lacking)
    events = events[good]
    for column, amounts in enumerate((seconds[good], counts[good])):
        own = shares(amounts)
        peers = shares(median(own, 0))  # the median of shares need not sum to 1
        by_class = divergence_parts(own, np.broadcast_to(peers, own.shape))
        divergence = by_class.sum(axis=1)
        if sampled:
            # JS is about chi squared / 8n of its K-1 degrees of freedom: this is its mean and its deviation.
            freedom = max(used_count - 1, 1)
            divergence = np.maximum(0.0, divergence - freedom / (8.0 * events))
            floors[good, 2 + column] = np.maximum(config.divergence_floor, np.sqrt(2.0 * freedom) / (8.0 * events))
            floors[good, column] = np.maximum(config.entropy_floor, np.sqrt(1.0 / events) / 2)
        values[good, column] = entropy(amounts, events if sampled else None)
        values[good, 2 + column] = divergence
        parts[good] += by_class
    return Measured(values, floors, parts)


def against_peers(measured: Measured) -> FloatArray:
    """Return each rank's values minus the median over ranks, shape (ranks, 4), so that changes common to all cancel."""
    middle = median(measured.values, 0)
    return measured.values - middle[None, :]


def scores(relative: FloatArray, past: FloatArray, floors: FloatArray, config: EntropyConfig) -> FloatArray:
    """Return how far each rank moved from its usual place among its peers; 1.0 is the alarm line.

    A constant difference between ranks comes from how the job is split and is no fault: only the change counts.

    Args:
        relative: values of ``against_peers`` in this window, shape (ranks, 4).
        past: usual values of ``relative``, same shape.
        floors: least spread, same shape: of ``measure``, or a rank's own spread over time where that is larger. The
            divergence of a rank that is unlike its peers by design moves more than theirs.
        config: alarm line.

    Returns:
        Shape (ranks,), at least 0, high is bad; 0 for a rank that cannot be measured.
    """
    moved = relative - past
    moved = np.where(_TWO_SIDED, np.abs(moved - median(moved, 0)[None, :]), moved)
    scatter = np.maximum(np.nan_to_num(spread(relative - past, 0))[None, :], floors)
    if len(moved) >= config.tail_peer_count:
        scatter = np.maximum(scatter, np.nan_to_num(quantile(moved, 0.95, 0))[None, :] / _TAIL_SIGMAS)
    found: FloatArray = np.nan_to_num(np.maximum(0.0, moved) / (config.max_sigmas * scatter)).max(axis=1, initial=0.0)
    return found


def _x_log_x(values: FloatArray) -> FloatArray:
    """Return x ln x of each value, 0 for x at most 0 and NaN for NaN."""
    positive = values > 0
    logs = np.log(np.where(positive, values, 1.0))
    return np.where(np.isnan(values), np.nan, values * logs)


def _check(name: str, amounts: FloatArray) -> None:
    """Raise ``FieldError`` for the first amount that is negative or infinite."""
    bad = np.argwhere((amounts < 0) | np.isinf(amounts))
    if bad.size:
        row, column = bad[0].tolist()
        raise FieldError(f"{name}[{row}, {column}]", float(amounts[row, column]), "finite and at least 0")
