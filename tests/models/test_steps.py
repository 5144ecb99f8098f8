"""Whether a rank that looks slow is so by luck."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tocsin.models.steps import StepWindow, luck_ratio


def window(slowest: list[int], rank_count: int, roles: list[int] | None = None) -> StepWindow:
    """Steps of a second in which one rank each computes longer."""
    own = np.ones((len(slowest), rank_count))
    for step, rank in enumerate(slowest):
        if rank >= 0:
            own[step, rank] = 2.0
    nothing = np.zeros_like(own)
    return StepWindow(own, nothing, np.stack([nothing] * 4), np.array(roles or [0] * rank_count))


def luck(slowest: list[int], rank_count: int, columns: list[int], roles: list[int] | None = None) -> float:
    """Luck in these steps, after one in which another rank was struck."""
    return luck_ratio(window([0, *slowest], rank_count, roles), columns, len(slowest), 1.0)


@pytest.mark.parametrize(("rank_count", "step_count"), [(3, 5), (4, 5), (8, 7), (64, 5)])
def test_a_rank_that_is_always_the_slowest_is_so_by_luck_with_the_chance_of_any_such_row(
    rank_count: int, step_count: int
) -> None:
    assert math.isclose(luck([1] * step_count, rank_count, [1]), rank_count ** (1 - step_count))


def test_four_of_five_steps_say_little_among_four_ranks_and_much_among_a_hundred() -> None:
    steps = [1, 1, 0, 1, 1]
    assert luck(steps, 4, [1]) == pytest.approx(4 * (5 * 0.25**4 * 0.75 + 0.25**5))
    assert luck(steps, 100, [1]) < 1e-5


def test_more_steps_of_the_same_share_are_less_likely_luck() -> None:
    told = [luck([1, 1, 0, 1, 1] * times, 4, [1]) for times in (1, 2, 4)]
    assert told == sorted(told, reverse=True)
    assert told[-1] < 1e-5


def test_several_suspects_have_it_oftener_by_luck_than_one() -> None:
    assert luck([1, 2] * 4, 8, [1, 2]) > luck([1] * 8, 8, [1])


def test_where_nobody_else_is_struck_there_is_no_luck() -> None:
    quiet = window([-1] * 20 + [1] * 3, 4)
    assert luck_ratio(quiet, [1], 3, 1.0) == 0.0
    quiet.duration_seconds[:, 2] = 1.4  # by less than half as much
    assert luck_ratio(quiet, [1], 3, 1.0) == 0.0


def test_only_ranks_of_the_same_role_count() -> None:
    """Ranks of another stage that compute longer are no peers."""
    steps = window([-1, 3, 3, 3, 3, 3], 4, [0, 0, 0, 1])
    steps.duration_seconds[0, 0] = steps.duration_seconds[1:, 1] = 1.5
    assert luck_ratio(steps, [1], 5, 0.5) == pytest.approx(3.0**-4)


def test_without_a_step_that_tells_it_may_all_be_luck() -> None:
    steps = window([0, 1], 4)
    assert luck_ratio(steps, [1], 0, 1.0) == 1.0
    steps.duration_seconds[1] = np.nan
    assert luck_ratio(steps, [1], 1, 1.0) == 1.0
