"""Which groups go where: Arnold's optimisation, its objective, and a greedy answer.

All groups of the unit (pipeline or data-parallel groups) have one size, and only numbers count: how many hosts of a
group stand in a minipod. The objective is ``used_weight * minipods used + split_weight * most minipods of a group``;
the minipods used stand in for the spread of the other kind of group.

Source: Arnold (ByteDance), equations 4 to 10, with whole hosts in place of shares.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tocsin.models.placement.groups import IntArray


@dataclass(frozen=True, slots=True)
class PlacementProblem:
    """Groups of one size that need hosts.

    Attributes:
        group_count: number of groups.
        group_size: hosts of each.
        free: hosts that each minipod has for them, shape (minipods,).
        used_weight: weight of the number of minipods used.
        split_weight: weight of the most minipods that a group touches.
    """

    group_count: int
    group_size: int
    free: IntArray
    used_weight: float
    split_weight: float

    @property
    def is_solvable(self) -> bool:
        """Whether there are hosts enough."""
        return int(self.free.sum()) >= self.group_count * self.group_size

    def objective(self, counts: IntArray) -> float:
        """Return the objective of a plan.

        Args:
            counts: hosts of each group in each minipod, shape (groups, minipods).
        """
        touches = counts > 0
        return self.used_weight * int(touches.any(axis=0).sum()) + self.split_weight * int(touches.sum(axis=1).max())

    @property
    def least_used(self) -> int:
        """The fewest minipods whose hosts are enough."""
        needed = self.group_count * self.group_size
        return int(np.searchsorted(np.cumsum(-np.sort(-self.free)), needed)) + 1

    @property
    def plain_bound(self) -> float:
        """A lower bound of the objective that needs no solver.

        Either every group sits in one minipod, or some group touches two at least.
        """
        largest = np.cumsum(-np.sort(-self.free))
        touched = max(2, int(np.searchsorted(largest, self.group_size)) + 1)
        bound = self.used_weight * self.least_used + self.split_weight * touched
        whole = np.cumsum(-np.sort(-(self.free // self.group_size)))
        if whole[-1] >= self.group_count:
            used = int(np.searchsorted(whole, self.group_count)) + 1
            bound = min(bound, self.used_weight * used + self.split_weight)
        return bound


def greedy(problem: PlacementProblem) -> IntArray:
    """Return a plan, shape (groups, minipods), without a proof that it is the best.

    Every number of minipods is tried, the largest ones first, and in each two ways: whole groups first and then what is
    left, or group after group so that no host is left over. The best objective wins.

    Raises:
        ValueError: there are not enough hosts.
    """
    if not problem.is_solvable:
        raise ValueError("there are fewer hosts than the groups need")
    order = np.lexsort((-problem.free, -(problem.free // problem.group_size)))
    tried: list[tuple[float, int, int, IntArray]] = []
    for used in range(problem.least_used, problem.free.size + 1):
        chosen = np.zeros_like(problem.free)
        chosen[order[:used]] = problem.free[order[:used]]
        if int(chosen.sum()) >= problem.group_count * problem.group_size:
            for plan in (_packed(problem, chosen), _chained(problem, chosen)):
                tried.append((problem.objective(plan), int((plan > 0).any(axis=0).sum()), len(tried), plan))
            if (tried[-2][3] > 0).sum(axis=1).max() == 1:
                break  # more minipods cannot be better
    return min(tried, key=lambda one: one[:3])[3]


def _packed(problem: PlacementProblem, free: IntArray) -> IntArray:
    """Return a plan that fills minipods with whole groups, and cuts the other groups into few pieces."""
    left, size = free.copy(), problem.group_size
    plan = np.zeros((problem.group_count, free.size), np.int64)
    row = 0
    for pod in np.argsort(-left, kind="stable").tolist():
        whole = min(int(left[pod]) // size, problem.group_count - row)
        plan[row : row + whole, pod] = size
        left[pod] -= whole * size
        row += whole
    for cut in range(row, problem.group_count):
        _cut(plan[cut], left, size)
    return plan


def _chained(problem: PlacementProblem, free: IntArray) -> IntArray:
    """Return a plan that wastes no host: what a minipod has left over joins hosts of the largest one.

    A group touches two minipods at most, unless minipods are smaller than groups.
    """
    left, size = free.copy(), problem.group_size
    plan = np.zeros((problem.group_count, free.size), np.int64)
    row = 0
    while row < problem.group_count:
        rest = np.flatnonzero((left > 0) & (left < size))
        if rest.size:
            pod = int(rest[left[rest].argmin()])
            plan[row, pod] = left[pod]
            left[pod] = 0
            _cut(plan[row], left, size - int(plan[row, pod]))
            row += 1
        else:
            full = np.flatnonzero(left)
            pod = int(full[left[full].argmin()])
            whole = min(int(left[pod]) // size, problem.group_count - row)
            plan[row : row + whole, pod] = size
            left[pod] -= whole * size
            row += whole
    return plan


def _cut(group: IntArray, left: IntArray, missing: int) -> None:
    """Take hosts for a group: from a minipod that is emptied by it, else from one that has enough, else the largest.

    Args:
        group: hosts of the group in each minipod, shape (minipods,); changed.
        left: hosts that minipods have left, shape (minipods,); changed.
        missing: number of hosts that it needs.
    """
    while missing:
        pod = int(np.argmax(left == missing)) if (left == missing).any() else int(left.argmax())
        taken = min(missing, int(left[pod]))
        group[pod] += taken
        left[pod] -= taken
        missing -= taken
