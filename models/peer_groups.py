"""Comparisons of whole groups of peers: rows that became like their peers, group shifts, spread under congestion."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tocsin.models.robust import MAD_TO_SIGMA, median, without_gaps

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.intp]
Rows = IntArray | slice

_SHARED_CONGESTION_FACTOR = math.e
"""Spread of packet counts between machines, as a factor, in a job that is congested as a whole. One healthy machine had
16 times what its peers had."""
_UNLIKE_SPREADS, _ALIKE_SPREADS = 2.5, 2.0
"""Distances from the median, in spreads, beyond which a row is unlike its peers and below which it is like them. About
one row of 15,000 and one of 20 lie beyond, if levels are normally distributed."""
_NOTHING = 1e-9


def rows_of_groups(groups: IntArray) -> list[Rows]:
    """Return the rows of each group, in order of the groups' numbers.

    Args:
        groups: group number of each row, negative for none.
    """
    numbers = np.unique(groups)
    if numbers.size == 1 and numbers[0] >= 0:
        return [slice(0, groups.size)]  # views of all rows instead of copies
    return [np.flatnonzero(groups == number) for number in numbers if number >= 0]


def became_alike(
    values: FloatArray, level: FloatArray, members: Sequence[Rows], floors: FloatArray, relative_floor_ratio: float
) -> NDArray[np.bool_]:
    """Return which rows were unlike their peers before and are like them now, as booleans of shape (rows, metrics).

    Such a change is no fault. A first pipeline stage that does less in training does as much as the others while all
    evaluate.

    Args:
        values: values now, shape (rows, metrics).
        level: usual values, same shape.
        members: rows of each group.
        floors: least spread of each metric.
        relative_floor_ratio: least spread as a share of the median.
    """
    found = np.zeros(values.shape, bool)
    for rows in members:
        usual, now = (_spreads_from_middle(of[rows], floors, relative_floor_ratio) for of in (level, values))
        with np.errstate(invalid="ignore"):
            found[rows] = (usual > _UNLIKE_SPREADS) & (now < _ALIKE_SPREADS)
    return found


def _spreads_from_middle(values: FloatArray, floors: FloatArray, relative_floor_ratio: float) -> FloatArray:
    """Return each row's distance from the median row in robust spreads, shape (rows, metrics)."""
    middle = median(values, 0)
    apart = np.abs(values - middle)
    least = np.maximum(floors, relative_floor_ratio * np.abs(middle))
    spread = np.maximum(MAD_TO_SIGMA * median(apart, 0), least)
    found: FloatArray = apart / np.maximum(spread, _NOTHING)
    return found


def beyond_others(rest: FloatArray, shift: FloatArray, shifts: FloatArray) -> FloatArray:
    """Return what is left of the rows' distances after subtracting the shift of some other group as a whole.

    Example: two hosts of a stage in a congested minipod are outliers among their peers. The whole next stage in the
    same minipod has the same congestion marks, so its shift explains theirs. A machine's own fault does not reach all
    machines of another stage alike. Use it only for metrics compared by differences, not for ratios.

    Args:
        rest: distance of each row from what was expected, shape (rows, metrics).
        shift: how far each row's group moved, same shape.
        shifts: how far each group moved, shape (groups, metrics).
    """
    known = without_gaps(shifts)
    high, low = known.max(0), known.min(0)
    allowed = np.maximum(np.where(rest > 0, high - shift, shift - low), 0)
    found: FloatArray = np.sign(rest) * np.maximum(np.abs(rest) - allowed, 0)
    return found


def spread_of_congestion(shifts: FloatArray, counted: NDArray[np.bool_]) -> FloatArray:
    """Return the spread of packet counts between machines when a whole group is congested, shape (metrics,).

    With many packets one machine has several times as many as another, which is a constant in logarithms; with few it
    is a share.

    Args:
        shifts: how far each group moved, after ``transform``, shape (groups, metrics).
        counted: which metrics are packet counts, shape (metrics,).
    """
    moved = np.maximum(without_gaps(shifts).max(0, initial=0), 0)
    # log1p(factor * congestion) - log1p(congestion), where log1p(congestion) is what they moved by
    return np.where(
        counted, np.log(_SHARED_CONGESTION_FACTOR - (_SHARED_CONGESTION_FACTOR - 1) * np.exp(-moved)), 0
    ).astype(np.float32)
