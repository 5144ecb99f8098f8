"""A budget in, a choice out: what is provable, what only the count says, and what is refused."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import poisson

from tocsin.pipeline.lab.training.budget import (
    CONFIDENCE_RATIO,
    BudgetReason,
    BudgetTrial,
    budget_state,
    check_budget,
    choose,
    provable_days,
    upper_bound,
    worth,
)
from tocsin.pipeline.recording.score import Score
from tocsin.schemas.errors import ConfigError

TRIED = st.builds(
    lambda hits, missed, false, days: Score(hits, missed, false, machine_days=days),
    st.integers(0, 20),
    st.integers(0, 20),
    st.integers(0, 30),
    st.floats(0.01, 5000.0),
)


def score(hits: int, missed: int, false: int, days: float = 10.0) -> Score:
    return Score(hits, missed, false, machine_days=days)


@given(st.integers(0, 200), st.floats(0.01, 10_000.0))
def test_at_the_bound_so_few_accusations_are_just_as_unlikely_as_it_says(count: int, days: float) -> None:
    assert poisson.cdf(count, upper_bound(count, days) * days) == pytest.approx(1 - CONFIDENCE_RATIO, rel=1e-6)


def test_the_rule_of_three_and_what_it_takes_to_prove_a_budget() -> None:
    assert upper_bound(0, 1.0) == pytest.approx(2.996, abs=0.001)
    assert provable_days(0.01) == pytest.approx(299.6, abs=0.1)
    assert upper_bound(0, 0.0) == math.inf


@given(st.lists(TRIED, min_size=1, max_size=8), st.floats(0.001, 10.0))
def test_a_choice_is_within_the_budget_wherever_anything_is(tried: list[Score], budget: float) -> None:
    choice = choose([BudgetTrial(index, one) for index, one in enumerate(tried)], budget)
    order = [BudgetReason.BUDGET_EXCEEDED, BudgetReason.COUNT_WITHIN_BUDGET, BudgetReason.BOUND_WITHIN_BUDGET]
    best = max((budget_state(one, budget) for one in tried), key=order.index)

    assert choice.reason is best is budget_state(choice.score, budget)
    alike = [one for one in tried if budget_state(one, budget) is best]
    if best is BudgetReason.BUDGET_EXCEEDED:
        assert choice.score.false_count == min(one.false_count for one in alike)
    else:
        assert (choice.score.f1 or 0.0) == max(one.f1 or 0.0 for one in alike)


def test_what_is_proven_goes_before_what_finds_more() -> None:
    proven, keen = BudgetTrial("proven", score(5, 5, 0, 400.0)), BudgetTrial("keen", score(10, 0, 4, 400.0))

    choice = choose([keen, proven], 0.01)

    assert (choice.thing, choice.reason) == ("proven", BudgetReason.BOUND_WITHIN_BUDGET)
    assert choice.bound_per_machine_day <= 0.01


def test_too_few_machine_days_prove_nothing_and_the_answer_says_how_many_it_takes() -> None:
    choice = choose([BudgetTrial("loud", score(10, 0, 1)), BudgetTrial("quiet", score(8, 2, 0))], 0.01)

    assert (choice.thing, choice.reason) == ("quiet", BudgetReason.COUNT_WITHIN_BUDGET)
    assert "0 false accusations in 10 machine-days: below 0.3 per machine-day" in choice.sentence()
    assert "takes 300 without any" in choice.sentence()


def test_nothing_within_the_budget_is_said_and_the_quietest_named() -> None:
    choice = choose([BudgetTrial("a", score(10, 0, 5)), BudgetTrial("b", score(2, 8, 3))], 0.01)

    assert (choice.thing, choice.reason) == ("b", BudgetReason.BUDGET_EXCEEDED)
    assert "0.3 per machine-day: the budget is 0.01" in choice.sentence()


def test_without_a_budget_the_best_f1_and_of_equally_good_ones_the_first() -> None:
    tried = [BudgetTrial("a", score(9, 1, 0)), BudgetTrial("b", score(9, 1, 0)), BudgetTrial("c", score(9, 1, 3))]

    choice = choose(tried, math.inf)

    assert (choice.thing, choice.reason) == ("a", BudgetReason.NO_BUDGET)
    assert choose([tried[2], tried[1]], math.inf).thing == "b"


def test_without_faults_the_fewest_false_accusations() -> None:
    assert worth(score(0, 0, 0), 1.0) > worth(score(0, 0, 3), 1.0)


@pytest.mark.parametrize("budget", [0.0, -1.0, math.nan])
def test_a_budget_that_is_none(budget: float) -> None:
    with pytest.raises(ConfigError, match=r"--budget-per-machine-day = .*must be above 0"):
        check_budget(budget)
    with pytest.raises(ConfigError, match="at least one to try"):
        choose([], 1.0)
