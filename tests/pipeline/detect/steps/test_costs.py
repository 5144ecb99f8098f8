"""What slow ranks cost a job, by its steps."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tocsin.pipeline.detect.steps.costs import costs_ratio, least_communication_ratio
from tocsin.pipeline.detect.steps.rows import StepRows
from tocsin.schemas.records import StepRecord


def steps_of(*own_seconds: Sequence[float], transfer: float = 0.1) -> list[StepRows]:
    """Steps as long as the slowest rank's own time and a transfer; a rank that computes less waits."""
    made = []
    for step, own in enumerate(own_seconds):
        meet = max(own) + transfer
        rows = {
            rank: StepRecord(step, rank, step, meet, communication_seconds=meet - mine) for rank, mine in enumerate(own)
        }
        made.append(StepRows.of(rows))
    return made


ONE_STAGE = (0, 0, 0, 0)


def test_a_rank_costs_what_it_computes_longer_than_the_slowest_of_the_others() -> None:
    steps = steps_of((0.5, 0.9, 0.5, 0.5), (0.5, 0.9, 0.5, 0.5))

    assert costs_ratio(steps, ONE_STAGE, {1}) == pytest.approx(0.4 / 1.0)


def test_what_another_rank_would_take_as_well_is_no_cost_of_this_one() -> None:
    assert costs_ratio(steps_of((0.5, 0.9, 0.8, 0.5)), ONE_STAGE, {1}) == pytest.approx(0.1 / 1.0)
    assert costs_ratio(steps_of((0.5, 0.9, 0.8, 0.5)), ONE_STAGE, {2}) == 0.0
    assert costs_ratio(steps_of((0.5, 0.9, 0.9, 0.5)), ONE_STAGE, {1, 2}) == pytest.approx(0.4 / 1.0)


def test_records_that_are_lost_make_no_cost_and_hide_none() -> None:
    steps = steps_of((0.5, 0.9, 0.5, 0.5), (0.5, 0.9, 0.5, 0.5), (0.5, 0.9, 0.5, 0.5))
    for step, lost in zip(steps, (0, 2, 1), strict=True):
        step.values[lost] = float("nan")  # of the third step the suspect's: it says nothing

    assert costs_ratio(steps, ONE_STAGE, {1}) == pytest.approx(0.4 / 1.0)
    assert costs_ratio(steps, ONE_STAGE, {3}) == 0.0
    for step in steps:
        step.values[[0, 2]] = float("nan")
    assert costs_ratio(steps, ONE_STAGE, {1}) is None


def test_a_rank_is_compared_with_its_own_stage_and_not_with_the_longest_one() -> None:
    steps = steps_of((0.3, 0.3, 0.9, 0.9))

    assert costs_ratio(steps, (0, 0, 1, 1), {2}) == 0.0
    assert costs_ratio(steps_of((0.3, 0.3, 0.9, 0.7)), (0, 0, 1, 1), {2}) == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("steps", "stages", "suspects"),
    [
        ([], ONE_STAGE, {1}),
        (steps_of((0.5, 0.9, 0.5, 0.5)), ONE_STAGE, {7}),
        (steps_of((0.5, 0.9, 0.5, 0.5)), (0, 1, 2, 3), {1}),
        ([StepRows.of({rank: StepRecord(1, rank, 1, 1.0) for rank in range(4)})], ONE_STAGE, {1}),
    ],
)
def test_it_is_unknown_without_steps_ranks_peers_or_own_times(
    steps: list[StepRows], stages: tuple[int, ...], suspects: set[int]
) -> None:
    assert costs_ratio(steps, stages, suspects) is None


def test_transfers_cost_no_more_than_the_rank_communicates_that_does_so_least() -> None:
    steps = steps_of((0.5, 0.8, 0.9, 0.5), (0.5, 0.8, 0.9, 0.5), (0.5, 0.8, 0.9, 0.5))
    assert least_communication_ratio(steps) == pytest.approx(0.1)
    assert least_communication_ratio([]) is None
    unmeasured = StepRows.of({rank: StepRecord(1, rank, 1, 1.0) for rank in range(2)})
    assert least_communication_ratio([unmeasured]) is None
