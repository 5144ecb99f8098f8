"""Coordinate search: one number at a time, each over a few values, until none improves.

A number leaves the program's default only if that finds one more fault or avoids one false accusation on the
recordings (``budget.worth``). Among equally good values the default stays, because it was fitted on more than these
recordings.
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
    """One number of a model that is searched.

    Attributes:
        section: section of the model.
        name: name of the number.
        values: the program's default, then the other values to try.
    """

    section: str
    name: str
    values: tuple[float, ...]

    @property
    def own(self) -> float:
        """The program's default value."""
        return self.values[0]

    @property
    def path(self) -> str:
        """Section and name as text."""
        return f"{self.section}.{self.name}"


Point = tuple[float, ...]
"""One value for each coordinate."""
Evaluate = Callable[[Sequence[Numbers]], Sequence[Score]]
"""Function that returns the score of each set of numbers on the recordings."""


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The result of a search.

    Attributes:
        choice: all searched numbers, also those that kept their default.
        own: score of the program's default numbers.
        changed: path of each changed number -> (default, new value).
        tried_count: number of sets of numbers that were evaluated.
    """

    choice: Choice[Numbers]
    own: Score
    changed: Mapping[str, tuple[float, float]]
    tried_count: int


def numbers_at(coordinates: Sequence[Coordinate], point: Point) -> Numbers:
    """Return the values of a point as the sections of a model."""
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
    on_progress: Progress | None = None,
) -> SearchResult:
    """Search the numbers with the best score under a budget, one coordinate at a time.

    Args:
        coordinates: numbers and their candidate values.
        evaluate: called once for each set of numbers.
        budget_per_machine_day: allowed false accusations per machine-day; infinite: no budget.
        seed: seed of the order of the coordinates; the same seed and scores give the same numbers.
        max_passes: most passes over all coordinates; a pass without a change ends the search.
        on_progress: called with the progress.
    """
    order = list(range(len(coordinates)))
    random.Random(seed).shuffle(order)
    known = _Known(coordinates, evaluate)
    at: Point = tuple(coordinate.own for coordinate in coordinates)
    [own] = known.tried([at])
    for number in range(max_passes):
        before = at
        for done, index in enumerate(order):
            if on_progress is not None:
                on_progress(f"pass {number + 1}", done, len(order))
            others = [(*at[:index], value, *at[index + 1 :]) for value in _values(coordinates[index])]
            at = choose(known.tried([at, *(point for point in others if point != at)]), budget_per_machine_day).thing
        if on_progress is not None:
            on_progress(f"pass {number + 1}", len(order), len(order))
        if at == before:
            break
    score = known.scores[at]
    choice = Choice(
        numbers_at(coordinates, at), score, budget_state(score, budget_per_machine_day), budget_per_machine_day
    )
    changed = {one.path: (one.own, value) for one, value in zip(coordinates, at, strict=True) if value != one.own}
    return SearchResult(choice, own.score, changed, len(known.scores))


class _Known:
    """Cache of the scores of points."""

    def __init__(self, coordinates: Sequence[Coordinate], evaluate: Evaluate) -> None:
        self._coordinates, self._evaluate = coordinates, evaluate
        self.scores: dict[Point, Score] = {}

    def tried(self, points: Sequence[Point]) -> list[BudgetTrial[Point]]:
        """Return the scored points; only new ones are evaluated."""
        new = [point for point in dict.fromkeys(points) if point not in self.scores]
        if new:
            found = self._evaluate([numbers_at(self._coordinates, point) for point in new])
            self.scores.update(zip(new, found, strict=True))
        return [BudgetTrial(point, self.scores[point]) for point in points]


def _values(coordinate: Coordinate) -> tuple[float, ...]:
    """Return a coordinate's values, nearest to the default first, because the first of equally good ones is chosen."""
    return tuple(sorted(coordinate.values, key=lambda value: (abs(value - coordinate.own), value)))
