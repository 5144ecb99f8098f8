"""Whose own gradient norm is far from its peers' and from its own past: numbers in, ranks out.

In logarithms, as norms of one step scatter by a factor. Only ranks of one role are compared, and each by what it used
to be beside them: a stage, a shard or a rank with more data that always differs does not stand out.
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
    """Settings.

    Attributes:
        factor: what is far out is so many times its peers' norm, and its own usual one.
        deviation_factor: and so many times the spread of its role in this step, and its own, beside that.
        equal_ratio: norms that differ by less are one number that all have (the global norm), and tell nothing.
        least_peer_count: with fewer ranks of its role a rank is not judged.
        known_count: before so many steps of its own a rank is not judged.
        odd_factor: what is far from its peers, and so many times its own spread, is not learned: it would spoil that.
        memory_count: steps that a rank's past reaches back over.
    """

    factor: float = 4.0
    deviation_factor: float = 8.0
    equal_ratio: float = 0.01
    least_peer_count: int = 3
    known_count: int = 16
    odd_factor: float = 4.0
    memory_count: int = 128


class FarOut(NamedTuple):
    """A rank whose norm is far out.

    Attributes:
        rank: who.
        norm: its norm.
        usual_norm: what its role's ranks had in the middle.
        role_count: how many they are.
        before_ratio: how many of its steps were far from its peers till then, with one more: few steps tell little.
    """

    rank: int
    norm: float
    usual_norm: float
    role_count: int
    before_ratio: float


@dataclass(slots=True)
class OwnNorms:
    """The past of each rank's norm among its role.

    Attributes:
        config: settings.
        past: mean and deviation of the logarithm beside the role's median.
        often: how often a rank's norm was far from its peers, if not from its own spread.
        step_count: steps that were judged.
    """

    config: OwnNormConfig = field(default_factory=OwnNormConfig)
    past: RankPast = field(init=False)
    often: RankPast = field(init=False)
    step_count: int = 0

    def __post_init__(self) -> None:
        """Know nobody."""
        self.past, self.often = (RankPast(1, self.config.memory_count) for _ in range(2))

    def step(self, ranks: IntArray, roles: IntArray, norms: FloatArray) -> list[FarOut]:
        """Judge one step, then learn it; what is far out is not learned.

        Args:
            ranks: ascending.
            roles: ranks of one number are alike.
            norms: positive, finite.
        """
        self.step_count += 1
        if not norms.size or norms.max() <= (1 + self.config.equal_ratio) * norms.min():
            return []
        logs = np.log(norms)
        middles, sizes = group_medians(logs, roles)
        away = logs - middles
        counts, means, deviations = self.past.look(ranks)
        beside = away - means[:, 0]
        spreads = MAD_TO_SIGMA * group_medians(np.abs(beside - group_medians(beside, roles)[0]), roles)[0]
        own = deviations[:, 0]
        compared = sizes > self.config.least_peer_count
        known = counts >= self.config.known_count
        is_away = np.minimum(away, np.where(known, beside, np.inf)) > np.log(self.config.factor)
        is_odd = known & is_away & (beside > self.config.odd_factor * own)
        self.past.learn(ranks, np.where(compared & ~is_odd, away, np.nan)[:, None])
        is_far = np.flatnonzero(compared & is_odd & (beside > self.config.deviation_factor * np.maximum(spreads, own)))
        steps, rates, _ = self.often.look(ranks)
        self.often.learn(ranks, is_away[:, None].astype(np.float64))
        before = (rates[:, 0] * steps + 1) / (steps + 1)
        columns = (ranks, norms, np.exp(middles), sizes, before)
        return [FarOut(*told) for told in zip(*(column[is_far].tolist() for column in columns), strict=True)]


def group_medians(values: FloatArray, groups: IntArray) -> tuple[FloatArray, IntArray]:
    """For each value the median of its group, and how many the group has."""
    order = np.lexsort((values, groups))
    _, inverse, counts = np.unique(groups, return_inverse=True, return_counts=True)
    first = np.cumsum(counts) - counts
    ordered = values[order]
    medians: FloatArray = (ordered[first + (counts - 1) // 2] + ordered[first + counts // 2]) / 2
    return medians[inverse], counts.astype(np.int64)[inverse]
