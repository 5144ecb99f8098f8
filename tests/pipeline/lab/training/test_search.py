"""Coordinate search: finds what is better, leaves what is not, the same way each time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tocsin.models.documents import Numbers, write_numbers
from tocsin.models.model_formats import FORMATS
from tocsin.pipeline.lab.training.budget import BudgetReason
from tocsin.pipeline.lab.training.numbers import COORDINATES
from tocsin.pipeline.lab.training.search import Coordinate, numbers_at, search
from tocsin.pipeline.recording.score import Score

LINE = Coordinate("working", "alarm_sum", (10.0, 5.0, 20.0))
DRIFT = Coordinate("working", "drift_sigmas", (3.0, 2.0, 4.0))


class Bench:
    """Recordings that answer by a rule, and what they were asked."""

    def __init__(self, false_below: float, days: float = 10.0) -> None:
        self.asked: list[Numbers] = []
        self._false_below, self._days = false_below, days

    def evaluate(self, candidates: Sequence[Numbers]) -> list[Score]:
        """The lower the line the more is found; below a line healthy machines are accused."""
        self.asked += candidates
        found = []
        for numbers in candidates:
            line = numbers["working"]["alarm_sum"]
            hits = {5.0: 10, 10.0: 8, 20.0: 5}[line]
            found.append(Score(hits, 10 - hits, 4 * (line < self._false_below), machine_days=self._days))
        return found


def test_it_goes_where_more_is_found_and_no_further_than_the_budget_lets_it() -> None:
    free, bound = Bench(false_below=1.0), Bench(false_below=6.0)
    lower = search((LINE, DRIFT), free.evaluate, 0.01)
    stays = search((LINE, DRIFT), bound.evaluate, 0.01)

    assert lower.choice.thing == {"working": {"alarm_sum": 5.0, "drift_sigmas": 3.0}}
    assert lower.changed == {"working.alarm_sum": (10.0, 5.0)}
    assert (stays.choice.score.hit_count, stays.choice.score.false_count, stays.changed) == (8, 0, {})
    assert stays.choice.reason is BudgetReason.COUNT_WITHIN_BUDGET


def test_it_retreats_until_the_budget_is_kept() -> None:
    found = search((LINE,), Bench(false_below=15.0).evaluate, 0.01)

    assert found.choice.thing["working"]["alarm_sum"] == 20.0
    assert (found.own.false_count, found.choice.score.false_count) == (4, 0)


def test_healthy_recordings_alone_move_a_number_only_where_it_accuses() -> None:
    def quiet(candidates: Sequence[Numbers]) -> list[Score]:
        return [Score(machine_days=10.0) for _ in candidates]

    def loud(candidates: Sequence[Numbers]) -> list[Score]:
        return [Score(false_count=3 * (one["working"]["alarm_sum"] < 20), machine_days=10.0) for one in candidates]

    assert search((LINE, DRIFT), quiet, 0.01).changed == {}
    assert search((LINE, DRIFT), loud, 0.01).changed == {"working.alarm_sum": (10.0, 20.0)}


def test_a_number_that_changes_nothing_stays_the_programs_own() -> None:
    found = search((DRIFT, LINE), Bench(false_below=1.0).evaluate, 0.01)

    assert found.choice.thing["working"]["drift_sigmas"] == 3.0


def test_nothing_is_evaluated_twice() -> None:
    bench = Bench(false_below=1.0)
    found = search((LINE, DRIFT), bench.evaluate, 0.01, max_passes=5)
    asked = [write_numbers(numbers) for numbers in bench.asked]

    assert len(asked) == len(set(asked)) == found.tried_count


@pytest.mark.parametrize("seed", range(4))
def test_the_same_seed_asks_the_same_in_the_same_order(seed: int) -> None:
    benches = [Bench(false_below=6.0) for _ in range(2)]
    found = [search((LINE, DRIFT), bench.evaluate, 0.01, seed=seed) for bench in benches]

    assert benches[0].asked == benches[1].asked
    assert found[0] == found[1]


@pytest.mark.parametrize("detector", sorted(COORDINATES))
def test_every_value_that_is_tried_can_be_announced(detector: str) -> None:
    coordinates = COORDINATES[detector]
    own = tuple(coordinate.own for coordinate in coordinates)
    for index, coordinate in enumerate(coordinates):
        assert len(set(coordinate.values)) == len(coordinate.values)
        for value in coordinate.values:
            numbers = numbers_at(coordinates, (*own[:index], value, *own[index + 1 :]))
            assert FORMATS[detector].read(write_numbers(numbers)) == numbers
