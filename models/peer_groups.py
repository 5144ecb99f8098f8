"""What the groups of a job do as wholes: who became like its peers, what another group shares, how a jam spreads."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tocsin.models.robust import MAD_TO_SIGMA, median

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.intp]

_SHARED_JAM_FACTOR = math.e
"""One had 16 times what its peers had, in a job that was jammed as a whole, and nothing ailed it."""
_UNLIKE_SPREADS, _ALIKE_SPREADS = 2.5, 2.0
"""Of the rows of a group, about one of 15,000 and one of 20, if their levels were normally distributed."""
_NOTHING = 1e-9


def became_alike(
    values: FloatArray, level: FloatArray, groups: IntArray, floors: FloatArray, relative_floor_ratio: float
) -> NDArray[np.bool_]:
    """Who was unlike its peers and is like them now, shape (rows, metrics): that is no fault, whatever it was before.

    A first stage that does less in training does as much as the others while all evaluate.
    """
    found = np.zeros(values.shape, bool)
    for group in np.unique(groups[groups >= 0]):
        rows = np.flatnonzero(groups == group)
        usual, now = (_spreads_from_middle(of[rows], floors, relative_floor_ratio) for of in (level, values))
        with np.errstate(invalid="ignore"):
            found[rows] = (usual > _UNLIKE_SPREADS) & (now < _ALIKE_SPREADS)
    return found


def _spreads_from_middle(values: FloatArray, floors: FloatArray, relative_floor_ratio: float) -> FloatArray:
    """How far each row lies from the middle one, in spreads of all, shape (rows, metrics)."""
    middle = median(values, 0)
    apart = np.abs(values - middle)
    least = np.maximum(floors, relative_floor_ratio * np.abs(middle))
    spread = np.maximum(MAD_TO_SIGMA * median(apart, 0), least)
    found: FloatArray = apart / np.maximum(spread, _NOTHING)
    return found


def beyond_others(rest: FloatArray, shift: FloatArray, shifts: FloatArray) -> FloatArray:
    """What is left of the rows' distances once they are allowed what some other group moved by as a whole.

    Two hosts of a stage that lie in a congested minipod stand out among their peers while all of the next stage, which
    lies there too, has the same marks. A machine's own fault does not reach every machine of another stage alike.
    Only where differences are taken: ratios of a stage that works less say nothing of another one.

    Args:
        rest: distance from what was expected, shape (rows, metrics).
        shift: how far each row's group moved, same shape.
        shifts: how far each group moved, shape (groups, metrics).
    """
    high, low = np.nan_to_num(shifts).max(0), np.nan_to_num(shifts).min(0)
    allowed = np.maximum(np.where(rest > 0, high - shift, shift - low), 0)
    found: FloatArray = np.sign(rest) * np.maximum(np.abs(rest) - allowed, 0)
    return found


def spread_of_jam(shifts: FloatArray, counted: NDArray[np.bool_]) -> FloatArray:
    """By how much packets differ between machines where a whole group of them is jammed, shape (metrics,).

    One has several times as many as another: a constant of the logarithm where they are many, a share where few.

    Args:
        shifts: how far each group moved, transformed, shape (groups, metrics).
        counted: which metrics are packets.
    """
    moved = np.maximum(np.nan_to_num(shifts).max(0, initial=0), 0)
    # log1p(factor * jam) - log1p(jam), where log1p(jam) is what they moved by
    return np.where(counted, np.log(_SHARED_JAM_FACTOR - (_SHARED_JAM_FACTOR - 1) * np.exp(-moved)), 0).astype(
        np.float32
    )
