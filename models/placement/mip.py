"""Arnold's optimisation as a mixed-integer program, solved by HiGHS.

Groups are alike, so they are not told apart: for each minipod there is the number of whole groups, and only as many
groups as can be cut are described one by one. Of the best plans there is one in which groups and minipods form a forest
(a basic solution of the transport problem on the plan's own pairs). So with m minipods in use at most m - 1 groups are
cut, and the program stays exact.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import lil_matrix

from tocsin.models.placement.groups import IntArray
from tocsin.models.placement.problem import PlacementProblem, greedy

_OPTIMAL: Final = 0


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """An answer, and how good it is known to be.

    Attributes:
        counts: hosts of each group in each minipod, shape (groups, minipods).
        objective_count: its value, a weighted number of minipods; smaller is better.
        bound_count: no plan is better than this.
        is_solved: whether the solver proved it; False where its time ran out, and the greedy plan or the solver's best
            so far is given.
    """

    counts: IntArray
    objective_count: float
    bound_count: float
    is_solved: bool

    @property
    def gap_ratio(self) -> float:
        """Share of the objective by which a better plan could be better at most."""
        return (self.objective_count - self.bound_count) / self.objective_count if self.objective_count > 0 else 0.0


def solve(problem: PlacementProblem, limit_seconds: float) -> GroupPlan:
    """Return the best plan that is found in the time.

    Args:
        problem: the groups and hosts.
        limit_seconds: time for the solver; building the program comes on top.

    Raises:
        ValueError: there are not enough hosts.
    """
    first = greedy(problem)
    value = problem.objective(first)
    if value <= problem.plain_bound + 1e-9:
        return GroupPlan(first, value, value, is_solved=True)
    program = _Program(problem, _most_cut(problem, first))
    found = program.solve(limit_seconds)
    plan, bound = found if found is not None else (None, -np.inf)
    if plan is not None and problem.objective(plan) <= value:
        first, value = plan, problem.objective(plan)
    is_solved = bound >= value - 1e-6
    return GroupPlan(first, value, value if is_solved else max(bound, problem.plain_bound), is_solved)


def _most_cut(problem: PlacementProblem, known: IntArray) -> int:
    """Return how many groups a plan can have to cut that is at least as good as a known one."""
    used = problem.free.size
    if problem.used_weight > 0:
        room = problem.objective(known) - problem.split_weight
        used = min(used, int(room / problem.used_weight + 1e-9))
    elif (known > 0).sum(axis=1).max() == 1:
        used = 1  # only the cuts count, and no group needs one
    return max(0, min(problem.group_count, used - 1))


class _Program:
    """The program: variables are y, x (minipods), s, n (cut groups x minipods) and T, in this order."""

    def __init__(self, problem: PlacementProblem, cut: int) -> None:
        """Prepare a program with so many groups that may be cut."""
        self._problem, self._cut = problem, cut
        self._pods = problem.free.size
        self._size = 2 * self._pods * (1 + cut) + 1

    def _at(self, row: int, *, is_count: bool) -> slice:
        """Return the columns of s, or of n, of one cut group."""
        first = 2 * self._pods + (row + self._cut * is_count) * self._pods
        return slice(first, first + self._pods)

    def solve(self, limit_seconds: float) -> tuple[IntArray | None, float] | None:
        """Return the plan and a lower bound of the objective, None if the solver has neither."""
        problem, pods = self._problem, self._pods
        # A weight of 0 leaves a number free; half of the smallest difference keeps it small without deciding.
        tie = 0.5 / (pods + 1)
        cost = np.zeros(self._size)
        cost[:pods] = problem.used_weight or tie * problem.split_weight
        cost[-1] = problem.split_weight or tie * problem.used_weight
        high = np.full(self._size, float(problem.group_size))
        high[:pods] = 1.0
        high[pods : 2 * pods] = problem.free // problem.group_size
        high[2 * pods : 2 * pods + self._cut * pods] = 1.0
        high[-1] = pods
        low = np.zeros(self._size)
        low[-1] = 1.0
        found = milp(
            cost,
            integrality=np.ones(self._size),
            bounds=Bounds(low, high),
            constraints=self._constraints(),
            options={"time_limit": limit_seconds, "mip_rel_gap": 0.0},
        )
        bound = found.get("mip_dual_bound")
        slack = float(cost[:pods].sum()) if not problem.used_weight else 0.0
        slack += 0.0 if problem.split_weight else float(cost[-1]) * pods
        known = -np.inf if bound is None else float(bound) - slack
        if found.x is None:
            return None if bound is None else (None, known)
        plan = self._plan(np.rint(found.x).astype(np.int64))
        return plan, problem.objective(plan) if found.status == _OPTIMAL else known

    def _constraints(self) -> LinearConstraint:
        """Return the constraints, the objective's T included."""
        problem, pods, cut = self._problem, self._pods, self._cut
        rows = 1 + 2 * cut + cut * pods + pods
        matrix = lil_matrix((rows, self._size))
        low, high = np.full(rows, -np.inf), np.zeros(rows)
        matrix[0, pods : 2 * pods] = 1.0
        low[0] = high[0] = problem.group_count - cut
        for group in range(cut):
            counts, touches = self._at(group, is_count=True), self._at(group, is_count=False)
            matrix[1 + group, counts] = 1.0
            low[1 + group] = high[1 + group] = problem.group_size
            matrix[1 + cut + group, touches] = 1.0
            matrix[1 + cut + group, -1] = -1.0
            for pod in range(pods):
                row = 1 + 2 * cut + group * pods + pod
                matrix[row, counts.start + pod] = 1.0
                matrix[row, touches.start + pod] = -float(min(problem.group_size, problem.free[pod]))
        for pod in range(pods):
            row = 1 + 2 * cut + cut * pods + pod
            matrix[row, pods + pod] = problem.group_size
            matrix[row, 2 * pods + cut * pods + pod :: pods] = 1.0
            matrix[row, -1] = 0.0
            matrix[row, pod] = -float(problem.free[pod])
        return LinearConstraint(matrix.tocsr(), low, high)

    def _plan(self, values: IntArray) -> IntArray:
        """Return the plan of a solution, whole groups first."""
        pods, size = self._pods, self._problem.group_size
        whole = np.repeat(np.arange(pods), values[pods : 2 * pods])
        plan = np.zeros((self._problem.group_count, pods), np.int64)
        plan[np.arange(whole.size), whole] = size
        plan[whole.size :] = values[2 * pods + self._cut * pods : -1].reshape(self._cut, pods)
        return plan
