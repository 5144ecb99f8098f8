"""Coordinate search: one number after the other, each over a few values, until none is better.

A number leaves the value that the program has only where that brings a fault more or a false
accusation fewer on the recordings (``budget.worth``): of equally good values the program's own stays,
because it was fitted on more than these recordings.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tocsin.models.documents import Numbers
from tocsin.pipeline.lab.parallel import Progress
from tocsin.pipeline.lab.training.budget import (
    BudgetTrial,
    Choice,
    budget_state,
    choose,
)
from tocsin.pipeline.recording.score import Score


@dataclass(frozen=True, slots=True)
class Coordinate:
    """One number of a model.

    Attributes:
        section: of the model.
        name: of the number.
        values: the program's own, then what is tried beside it.
    """

    section: str
    name: str
    values: tuple[float, ...]

    @property
    def own(self) -> float:
        """The program's value."""
        return self.values[0]

    @property
    def path(self) -> str:
        """For people."""
        return f"{self.section}.{self.name}"


Point = tuple[float, ...]
"""A value for each coordinate."""
Evaluate = Callable[[Sequence[Numbers]], Sequence[Score]]
"""What sets of numbers do on the recordings."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Where the search ended.

    Attributes:
        choice: the numbers, all that were searched, also those that stayed.
        own: what the program's own numbers do.
        changed: paths of the numbers that left the program's own value.
        tried_count: sets of numbers that were evaluated.
    """

    choice: Choice[Numbers]
    own: Score
    changed: Mapping[str, tuple[float, float]]
    tried_count: int


def numbers_at(coordinates: Sequence[Coordinate], point: Point) -> Numbers:
    """The sections of a model."""
    found: dict[str, dict[str, float]] = {}
    for coordinate, value in zip(coordinates, point, strict=True):
        found.setdefault(coordinate.section, {})[coordinate.name] = value
    return found


def search(
    coordinates: Sequence[Coordinate],
    evaluate: Evaluate,
    budget_per_machine_day: float,
    *,
    seed: int = 0,
    max_passes: int = 2,
    told: Progress | None = None,
) -> SearchResult:
    """Search.

    Args:
        coordinates: numbers and their values.
        evaluate: asked once for each set of numbers.
        budget_per_machine_day: false accusations per machine-day, infinite: none.
        seed: of the order of the coordinates; the same seed and scores give the same numbers.
        max_passes: over all coordinates; fewer where a pass changes nothing.
        told: progress.
    """
    order = list(range(len(coordinates)))
    random.Random(seed).shuffle(order)
    known = _Known(coordinates, evaluate)
    at: Point = tuple(coordinate.own for coordinate in coordinates)
    [own] = known.tried([at])
    for number in range(max_passes):
        before = at
        for done, index in enumerate(order):
            if told is not None:
                told(f"pass {number + 1}", done, len(order))
            others = [(*at[:index], value, *at[index + 1 :]) for value in _values(coordinates[index])]
            at = choose(known.tried([at, *(point for point in others if point != at)]), budget_per_machine_day).thing
        if told is not None:
            told(f"pass {number + 1}", len(order), len(order))
        if at == before:
            break
    score = known.scores[at]
    choice = Choice(
        numbers_at(coordinates, at), score, budget_state(score, budget_per_machine_day), budget_per_machine_day
    )
    changed = {one.path: (one.own, value) for one, value in zip(coordinates, at, strict=True) if value != one.own}
    return SearchResult(choice, own.score, changed, len(known.scores))


class _Known:
    """Scores of points; each is asked for once."""

    def __init__(self, coordinates: Sequence[Coordinate], evaluate: Evaluate) -> None:
        self._coordinates, self._evaluate = coordinates, evaluate
        self.scores: dict[Point, Score] = {}

    def tried(self, points: Sequence[Point]) -> list[BudgetTrial[Point]]:
        new = [point for point in dict.fromkeys(points) if point not in self.scores]
        if new:
            found = self._evaluate([numbers_at(self._coordinates, point) for point in new])
            self.scores.update(zip(new, found, strict=True))
        return [BudgetTrial(point, self.scores[point]) for point in points]


def _values(coordinate: Coordinate) -> tuple[float, ...]:
    """The nearest to the program's own first: of equally good ones it is taken."""
    return tuple(sorted(coordinate.values, key=lambda value: (abs(value - coordinate.own), value)))
