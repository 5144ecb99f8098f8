"""Spread of communication groups over minipods (or leaves), as Arnold defines it.

A host is a one-hot vector over the k minipods. The spread D of a group is the number of positions in which two of its
vectors differ: 0 where the group sits in one minipod, otherwise the number of minipods it touches; it is never 1. What
is kept is ``pods_touched``; D is derived from it, and the two are never mixed in one ratio.

Source: Arnold (ByteDance), on the alignment of communication groups with the topology of the cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from tocsin.models.placement.groups import HostGroups, IntArray
from tocsin.schemas.kinds import GroupKind


def pods_touched(groups: HostGroups, pod: IntArray) -> IntArray:
    """Return the number of minipods that each group touches, shape (groups,).

    Args:
        groups: groups of one kind.
        pod: index of each host's minipod, shape (hosts,); hosts with -1 are left out.
    """
    pods = pod[groups.host]
    known = pods >= 0
    width = int(pod.max(initial=0)) + 1
    different = np.unique(groups.group[known] * width + pods[known])
    return np.bincount(different // width, minlength=len(groups.names)).astype(np.int64)


def spread_of(touched: IntArray) -> IntArray:
    """Return Arnold's D of groups that touch so many minipods."""
    return np.where(touched >= 2, touched, 0)


@dataclass(frozen=True, slots=True)
class KindSpread:
    """How far the groups of one kind are spread.

    Attributes:
        touched: minipods that each group touches, shape (groups,).
        max_pod_count: the largest number of them; a step is as slow as its slowest group.
        worst_index: index of the first group that touches so many.
    """

    touched: IntArray
    max_pod_count: int
    worst_index: int

    @property
    def max_spread(self) -> int:
        """Arnold's D of the group that is spread most."""
        return self.max_pod_count if self.max_pod_count >= 2 else 0

    @property
    def mean_pods(self) -> float:
        """Mean number of minipods that a group touches."""
        return float(self.touched.mean())


def kind_spread(groups: HostGroups, pod: IntArray) -> KindSpread:
    """Return the spread of the groups of one kind; arguments as for ``pods_touched``."""
    touched = pods_touched(groups, pod)
    worst = int(touched.argmax())
    return KindSpread(touched, int(touched[worst]), worst)


@dataclass(frozen=True, slots=True)
class JobSpread:
    """Spread of all of a job's groups.

    Attributes:
        kinds: kind -> its spread.
        alpha_ratio: weight of the data-parallel groups, 0 to 1; the pipeline's have the rest.
    """

    kinds: Mapping[GroupKind, KindSpread]
    alpha_ratio: float

    @property
    def max_pods_dp(self) -> int:
        """Most minipods that a data-parallel group touches, 0 without such groups."""
        return self.kinds[GroupKind.DP].max_pod_count if GroupKind.DP in self.kinds else 0

    @property
    def max_pods_pp(self) -> int:
        """Most minipods that a pipeline-parallel group touches, 0 without such groups."""
        return self.kinds[GroupKind.PP].max_pod_count if GroupKind.PP in self.kinds else 0

    @property
    def weighted_pods(self) -> float:
        """``alpha * max_pods_dp + (1 - alpha) * max_pods_pp``: the objective of the optimisation, in minipods."""
        return self.alpha_ratio * self.max_pods_dp + (1 - self.alpha_ratio) * self.max_pods_pp

    @property
    def weighted_spread(self) -> float:
        """The same of Arnold's D: 0 where every group sits in one minipod."""
        dp, pp = (pods if pods >= 2 else 0 for pods in (self.max_pods_dp, self.max_pods_pp))
        return self.alpha_ratio * dp + (1 - self.alpha_ratio) * pp


def job_spread(groups: Mapping[GroupKind, HostGroups], pod: IntArray, alpha: float) -> JobSpread:
    """Return the spread of all kinds that have groups; arguments as for ``pods_touched`` and ``JobSpread``."""
    return JobSpread({kind: kind_spread(of, pod) for kind, of in groups.items() if of.names}, alpha)
