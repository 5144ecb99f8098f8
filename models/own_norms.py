"""Find ranks whose local gradient norm is far from that of their peers and from their own past.

Norms are compared as logarithms because the norms of one step differ by a factor. Only ranks of one role are compared,
and each relative to its usual distance from them. So a stage, a shard or a rank with more data that always differs does
not stand out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tocsin.models.rank_past import RankPast
from tocsin.models.robust import MAD_TO_SIGMA

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class OwnNormConfig:
    """Settings of the gradient norm comparison.

    Attributes:
        factor: an outlier has at least this many times its peers' norm and its own usual norm.
        deviation_factor: and is at least this many spreads away from its own usual distance to its role; the spread is
            the larger of the role's in this step and the rank's own.
        equal_ratio: norms that differ by less than this share are the global norm, which all ranks have, and say
            nothing.
        least_peer_count: a rank with at most so many ranks in its role, itself included, is not judged.
        known_count: a rank is not judged before so many steps of its own.
        outlier_factor: a norm far from the peers' and this many own spreads away is not learned, because it would
            inflate the spread.
        memory_count: number of steps in a rank's moving statistics.
    """

    factor: float = 4.0
    deviation_factor: float = 8.0
    equal_ratio: float = 0.01
    least_peer_count: int = 3
    known_count: int = 16
    outlier_factor: float = 4.0
    memory_count: int = 128


class FarOut(NamedTuple):
    """A rank whose gradient norm is an outlier.

    Attributes:
        rank: global rank.
        norm: its gradient norm.
        usual_norm: median norm of its role in this step.
        role_count: number of ranks in its role.
        before_ratio: share of its earlier steps that were far from its peers, counted with one such step more because
            few steps prove little.
    """

    rank: int
    norm: float
    usual_norm: float
    role_count: int
    before_ratio: float


@dataclass(slots=True)
class OwnNorms:
    """Moving statistics of each rank's gradient norm relative to its role, and the outlier test.

    Attributes:
        config: settings.
        past: mean and deviation of each rank's log norm minus the role's median.
        often: share of steps in which a rank's norm was far from its peers.
        step_count: number of steps judged so far.
    """

    config: OwnNormConfig = field(default_factory=OwnNormConfig)
    past: RankPast = field(init=False)
    often: RankPast = field(init=False)
    step_count: int = 0

    def __post_init__(self) -> None:
        """Start without any known rank."""
        self.past, self.often = (RankPast(1, self.config.memory_count) for _ in range(2))

    def step(self, ranks: IntArray, roles: IntArray, norms: FloatArray) -> list[FarOut]:
        """Return the outliers of one step, then learn the norms of all other ranks.

        Args:
            ranks: ascending.
            roles: role number of each rank; ranks with the same number are comparable.
            norms: positive, finite gradient norms, shape (ranks,).
        """
        self.step_count += 1
        if not norms.size or norms.max() <= (1 + self.config.equal_ratio) * norms.min():
            return []
        logs = np.log(norms)
        middles, sizes = group_medians(logs, roles)
        away = logs - middles
        counts, means, deviations = self.past.look(ranks)
        beyond_usual = away - means[:, 0]
        spreads = MAD_TO_SIGMA * group_medians(np.abs(beyond_usual - group_medians(beyond_usual, roles)[0]), roles)[0]
        own = deviations[:, 0]
        compared = sizes > self.config.least_peer_count
        known = counts >= self.config.known_count
        is_away = np.minimum(away, np.where(known, beyond_usual, np.inf)) > np.log(self.config.factor)
        is_outlier = known & is_away & (beyond_usual > self.config.outlier_factor * own)
        self.past.learn(ranks, np.where(compared & ~is_outlier, away, np.nan)[:, None])
        is_far = np.flatnonzero(
            compared & is_outlier & (beyond_usual > self.config.deviation_factor * np.maximum(spreads, own))
        )
        steps, rates, _ = self.often.look(ranks)
        self.often.learn(ranks, is_away[:, None].astype(np.float64))
        before = (rates[:, 0] * steps + 1) / (steps + 1)
        columns = (ranks, norms, np.exp(middles), sizes, before)
        return [FarOut(*values) for values in zip(*(column[is_far].tolist() for column in columns), strict=True)]


def group_medians(values: FloatArray, groups: IntArray) -> tuple[FloatArray, IntArray]:
    """Return for each value the median of its group and the size of its group."""
    order = np.lexsort((values, groups))
    _, inverse, counts = np.unique(groups, return_inverse=True, return_counts=True)
    first = np.cumsum(counts) - counts
    ordered = values[order]
    medians: FloatArray = (ordered[first + (counts - 1) // 2] + ordered[first + counts // 2]) / 2
    return medians[inverse], counts.astype(np.int64)[inverse]
