"""Choice of a threshold under a budget of false accusations.

False accusations are rare and independent, so their count is Poisson. From k of them in D machine-days the rate is
below ``upper_bound(k, D)`` with 95 % confidence (exact, one-sided); without any it is below 3.0 / D. So a budget of
0.01 a machine-day takes 300 machine-days to prove. Recordings seldom have as many. Then only the count must
be within the budget, and the result says that this is no proof.

The bound holds for one threshold. Among many that were tried the best one is a little lucky; only recordings that
nothing was fitted on show by how much.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from scipy.special import gammaincinv

from tocsin.pipeline.recording.score import Score
from tocsin.schemas.errors import ConfigError

ThingT = TypeVar("ThingT")
CONFIDENCE_RATIO = 0.95


class BudgetReason(StrEnum):
    """Relation of a choice to the budget."""

    NO_BUDGET = "no_budget"
    """No budget was requested: the best F1 was chosen."""
    BOUND_WITHIN_BUDGET = "bound_within_budget"
    """The upper confidence bound of false accusations is within the budget."""
    COUNT_WITHIN_BUDGET = "count_within_budget"
    """The count is within the budget but the bound is not: too few machine-days to prove it."""
    BUDGET_EXCEEDED = "budget_exceeded"
    """No candidate is within the budget."""


_ORDER = (BudgetReason.BUDGET_EXCEEDED, BudgetReason.COUNT_WITHIN_BUDGET, BudgetReason.BOUND_WITHIN_BUDGET)


@dataclass(frozen=True, slots=True)
class BudgetTrial(Generic[ThingT]):
    """One candidate threshold (or set of numbers) with its score on the recordings.

    Attributes:
        thing: the candidate.
        score: hits, misses, false accusations, machine-days.
    """

    thing: ThingT
    score: Score


@dataclass(frozen=True, slots=True)
class Choice(Generic[ThingT]):
    """The chosen candidate.

    Attributes:
        thing: the candidate.
        score: its score on the recordings that it was chosen on.
        reason: how it relates to the budget.
        budget_per_machine_day: allowed false accusations per machine-day; infinite: no budget.
    """

    thing: ThingT
    score: Score
    reason: BudgetReason
    budget_per_machine_day: float

    @property
    def bound_per_machine_day(self) -> float:
        """Upper confidence bound of false accusations per machine-day."""
        return upper_bound(self.score.false_count, self.score.machine_days)

    def sentence(self) -> str:
        """Return a sentence on how the choice relates to the budget."""
        score = self.score
        found = f"{score.false_count} false accusations in {score.machine_days:.3g} machine-days"
        bound = f"below {self.bound_per_machine_day:.3g} per machine-day with {CONFIDENCE_RATIO:.0%} confidence"
        if self.reason is BudgetReason.NO_BUDGET:
            return f"{found}: {bound} (no budget was asked for)"
        if self.reason is BudgetReason.BOUND_WITHIN_BUDGET:
            return f"{found}: {bound}, within the budget of {self.budget_per_machine_day:g}"
        if self.reason is BudgetReason.COUNT_WITHIN_BUDGET:
            needed = provable_days(self.budget_per_machine_day)
            text = (
                f"too few to prove the budget of {self.budget_per_machine_day:g}, which takes {needed:.0f} without any"
            )
            return f"{found}: {bound}; {text}"
        text = f"the budget is {self.budget_per_machine_day:g}, and nothing that was tried accuses less"
        return f"{found}, {score.false_per_machine_day or math.inf:.3g} per machine-day: {text}"


def upper_bound(false_count: int, machine_days: float) -> float:
    """Return the upper 95 % confidence bound of the rate of false accusations per machine-day.

    Infinite without any days.
    """
    if machine_days <= 0:
        return math.inf
    return float(gammaincinv(false_count + 1, CONFIDENCE_RATIO)) / machine_days


def provable_days(budget_per_machine_day: float) -> float:
    """Return the number of machine-days without a false accusation that are needed to prove a budget."""
    return upper_bound(0, 1.0) / budget_per_machine_day


def check_budget(budget_per_machine_day: float) -> None:
    """Check that a budget is above 0 (infinite: no budget).

    Raises:
        ConfigError: it is not.
    """
    if not budget_per_machine_day > 0:
        raise ConfigError("--budget-per-machine-day", budget_per_machine_day, "above 0 (inf: no budget)")


def budget_state(score: Score, budget_per_machine_day: float) -> BudgetReason:
    """Return how a score relates to a budget."""
    if math.isinf(budget_per_machine_day):
        return BudgetReason.NO_BUDGET
    if upper_bound(score.false_count, score.machine_days) <= budget_per_machine_day:
        return BudgetReason.BOUND_WITHIN_BUDGET
    if score.false_count <= budget_per_machine_day * score.machine_days:
        return BudgetReason.COUNT_WITHIN_BUDGET
    return BudgetReason.BUDGET_EXCEEDED


def choose(tried: Sequence[BudgetTrial[ThingT]], budget_per_machine_day: float) -> Choice[ThingT]:
    """Return the best candidate under a budget of false accusations.

    It has the best F1 among those that are provably within the budget, else among those with a count within it. If no
    candidate is within the budget, the one with the fewest false accusations is returned. Among equals, the first one
    is.

    Args:
        tried: candidates, at least one, preferred ones first.
        budget_per_machine_day: allowed false accusations per machine-day; infinite: no budget.

    Raises:
        ConfigError: the budget is invalid, or there is no candidate.
    """
    check_budget(budget_per_machine_day)
    if not tried:
        raise ConfigError("thresholds", "none", "at least one to try")
    best = tried[0]
    for other in tried[1:]:
        if worth(other.score, budget_per_machine_day) > worth(best.score, budget_per_machine_day):
            best = other
    return Choice(best.thing, best.score, budget_state(best.score, budget_per_machine_day), budget_per_machine_day)


def worth(score: Score, budget_per_machine_day: float) -> tuple[int, float, float]:
    """Return the sort key of scores under a budget; larger is better."""
    reason = budget_state(score, budget_per_machine_day)
    f1, false = score.f1 or 0.0, float(-score.false_count)
    if reason is BudgetReason.BUDGET_EXCEEDED:
        return 0, false, f1
    return (_ORDER.index(reason) if reason in _ORDER else 1), f1, false
