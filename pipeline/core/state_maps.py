"""Maps in an operator's state: JSON has no keys but strings, so a map is written as rows, its keys ascending."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

K = TypeVar("K", int, str)
V = TypeVar("V")


def pairs_state(values: Mapping[K, V]) -> list[tuple[K, V]]:
    """Return a map as [(key, value), ...], its keys ascending."""
    return [(key, values[key]) for key in sorted(values)]


def pairs_from(state: Iterable[Iterable[Any]]) -> dict[Any, Any]:
    """Take back what ``pairs_state`` gave."""
    return dict(map(tuple, state))


def rows_state(values: Mapping[Any, Iterable[Any]]) -> list[list[Any]]:
    """Return a map of short rows, e.g. of a rank's numbers, as [[key, *row], ...], its keys ascending."""
    return [[key, *values[key]] for key in sorted(values)]


def rows_from(state: Iterable[Sequence[Any]]) -> dict[Any, list[Any]]:
    """Take back what ``rows_state`` gave, each row as a list."""
    return {row[0]: list(row[1:]) for row in state}
