"""Re-placement: the optimisation and the greedy rule, compared with every possible plan of small cases."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.models.placement.test_spread import aligned
from tocsin.models.placement.groups import IntArray, host_groups
from tocsin.models.placement.mip import solve
from tocsin.models.placement.problem import PlacementProblem, greedy
from tocsin.models.placement.replacement import AdviceReason, advise, assign
from tocsin.schemas.kinds import GroupKind

SECONDS = 60.0
PRODUCTION = [84, 122, 96, 73, 151, 70, 82, 61, 94, 112, 74]
"""Free hosts of eleven minipods, 1,019 in all."""


def shares(size: int, pods: int) -> list[tuple[int, ...]]:
    """All ways to lay the hosts of one group into minipods."""
    return [row for row in product(range(size + 1), repeat=pods) if sum(row) == size]


def plans(problem: PlacementProblem) -> Iterator[IntArray]:
    """Every plan that fits."""
    for rows in product(shares(problem.group_size, problem.free.size), repeat=problem.group_count):
        plan = np.array(rows)
        if (plan.sum(axis=0) <= problem.free).all():
            yield plan


def check(problem: PlacementProblem, plan: IntArray) -> None:
    assert plan.shape == (problem.group_count, problem.free.size)
    assert (plan >= 0).all()
    assert (plan.sum(axis=1) == problem.group_size).all()
    assert (plan.sum(axis=0) <= problem.free).all()


@pytest.mark.parametrize(
    ("groups", "size", "free", "alpha", "optimum"),
    [
        (3, 2, [3, 3, 2], 0.0, 1.0),
        (3, 2, [3, 3, 2], 0.3, 1.6),
        (3, 2, [3, 3, 2], 1.0, 2.0),
        (4, 2, [5, 3, 3], 0.3, 1.6),
        (3, 3, [4, 4, 3], 0.5, 2.0),
    ],
)
def test_reference_optima(groups: int, size: int, free: list[int], alpha: float, optimum: float) -> None:
    problem = PlacementProblem(groups, size, np.array(free), alpha, 1 - alpha)
    plan = solve(problem, SECONDS)

    check(problem, plan.counts)
    assert plan.objective_count == pytest.approx(optimum)
    assert (plan.is_solved, plan.bound_count) == (True, plan.objective_count)
    assert min(map(problem.objective, plans(problem))) == pytest.approx(optimum)


@settings(max_examples=15, deadline=None)
@given(
    groups=st.integers(1, 3),
    size=st.integers(1, 3),
    free=st.lists(st.integers(0, 4), min_size=1, max_size=3),
    alpha=st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.9, 1.0]),
)
def test_no_plan_is_better_than_the_solved_one(groups: int, size: int, free: list[int], alpha: float) -> None:
    problem = PlacementProblem(groups, size, np.array(free), alpha, 1 - alpha)
    assume(problem.is_solvable)
    best = min(map(problem.objective, plans(problem)))
    plan, quick = solve(problem, SECONDS), greedy(problem)

    check(problem, plan.counts)
    check(problem, quick)
    assert plan.is_solved
    assert plan.objective_count == pytest.approx(best)
    assert problem.plain_bound <= best + 1e-9
    assert problem.objective(quick) >= best - 1e-9


def test_a_case_in_which_the_greedy_rule_is_not_the_best() -> None:
    problem = PlacementProblem(2, 8, np.array([3, 4, 4, 6]), 0.3, 0.7)
    plan = solve(problem, SECONDS)

    check(problem, plan.counts)
    assert plan.is_solved
    assert plan.objective_count == pytest.approx(0.3 * 4 + 0.7 * 2)
    assert problem.objective(greedy(problem)) == pytest.approx(0.3 * 4 + 0.7 * 3)


@settings(max_examples=15, deadline=None)
@given(size=st.integers(1, 6), extra=st.lists(st.integers(0, 9), min_size=2, max_size=8))
def test_full_minipods_as_large_as_a_group_need_no_solver(size: int, extra: list[int]) -> None:
    free = np.array([size + more for more in extra])
    problem = PlacementProblem(int(free.sum()) // size, size, free, 0.3, 0.7)
    quick = greedy(problem)

    check(problem, quick)
    assert int((quick > 0).sum(axis=1).max()) <= 2
    plan = solve(problem, 0.0)
    assert (plan.is_solved, plan.bound_count) == (True, plan.objective_count)
    assert plan.objective_count == problem.objective(quick)


def test_without_time_the_greedy_plan_and_a_bound_are_given() -> None:
    problem = PlacementProblem(2, 8, np.array([3, 4, 4, 6]), 0.3, 0.7)
    plan = solve(problem, 0.0)

    check(problem, plan.counts)
    assert plan.bound_count <= 2.6 + 1e-9 <= plan.objective_count + 2e-9
    assert plan.is_solved or 0 < plan.gap_ratio < 1


def test_too_few_hosts() -> None:
    with pytest.raises(ValueError, match="fewer hosts"):
        solve(PlacementProblem(2, 3, np.array([5]), 0.3, 0.7), SECONDS)


@pytest.mark.parametrize(("alpha", "used"), [(0.0, 3), (0.3, 3), (0.5, 3)])
def test_forty_six_groups_of_eight_over_eleven_minipods(alpha: float, used: int) -> None:
    problem = PlacementProblem(46, 8, np.array(PRODUCTION), alpha, 1 - alpha)
    plan = solve(problem, SECONDS)

    check(problem, plan.counts)
    assert plan.is_solved
    assert int((plan.counts > 0).any(axis=0).sum()) == used  # without weight, too: not 11 of 11
    assert int((plan.counts > 0).sum(axis=1).max()) == 1


def test_a_job_whose_pipelines_cross_minipods_is_aligned() -> None:
    groups = aligned(rows=4, stages=4)
    pod = np.repeat([0, 1], 8)  # stages 0, 1 in one minipod, 2, 3 in the other
    advice = advise(groups, pod, np.array([], np.int64), 0.3, SECONDS)

    assert (advice.now.max_pods_dp, advice.now.max_pods_pp) == (1, 2)
    assert advice.reason is AdviceReason.LESS_SPREAD
    assert advice.best is not None
    assert (advice.best.spread.max_pods_dp, advice.best.spread.max_pods_pp) == (2, 1)
    assert advice.best.moved == 8
    assert sorted(advice.best.new_host.tolist()) == list(range(16))


def test_data_parallel_groups_are_aligned_where_they_weigh_more() -> None:
    groups = aligned(rows=4, stages=4)
    pod = np.tile([0, 0, 1, 1], 4)
    advice = advise(groups, pod, np.array([], np.int64), 0.9, SECONDS)

    assert advice.best is not None
    assert advice.best.unit is GroupKind.DP
    assert (advice.best.spread.max_pods_dp, advice.best.spread.max_pods_pp) == (1, 2)


def test_a_spare_is_taken_where_it_helps_and_only_there() -> None:
    groups = aligned(rows=2, stages=2)
    pod = np.array([0, 1, 0, 2])  # row 1 has a host in minipod 2
    advice = advise(groups, pod, np.array([1, 2]), 0.0, SECONDS)

    assert advice.best is not None
    assert advice.best.moved == 1
    assert advice.best.new_host.tolist() in ([0, 1, 2, 4], [0, 5, 2, 3])


def test_an_aligned_job_is_left_alone() -> None:
    advice = advise(aligned(rows=4, stages=4), np.tile([0, 0, 1, 1], 4), np.array([1, 0]), 0.3, SECONDS)

    assert advice.reason is AdviceReason.NO_BETTER
    assert advice.best is None


def test_groups_of_different_sizes_have_no_plan() -> None:
    groups = {GroupKind.PP: host_groups([("a", [0, 1]), ("b", [2])])}

    assert advise(groups, np.array([0, 1, 0]), np.array([], np.int64), 0.3, 1.0).reason is AdviceReason.UNEQUAL_GROUPS


@settings(max_examples=15, deadline=None)
@given(
    rows=st.integers(1, 4),
    size=st.integers(1, 4),
    pods=st.integers(1, 4),
    spares=st.lists(st.integers(0, 3), max_size=4),
    data=st.data(),
)
def test_hosts_are_assigned_as_planned(rows: int, size: int, pods: int, spares: list[int], data: st.DataObject) -> None:
    own = data.draw(st.lists(st.integers(0, pods - 1), min_size=rows * size, max_size=rows * size))
    places = np.array([*own, *(spare % pods for spare in spares)])
    order = np.array(data.draw(st.permutations(range(rows * size)))).reshape(rows, size)
    plan = greedy(PlacementProblem(rows, size, np.bincount(places, minlength=pods), 0.3, 0.7))

    new_host = assign(order, places, plan)

    assert np.unique(new_host).size == rows * size
    placed = [np.bincount(places[new_host[group]], minlength=plan.shape[1]).tolist() for group in order]
    assert sorted(placed) == sorted(plan.tolist())
