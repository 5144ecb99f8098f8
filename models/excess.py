"""Whose own time has grown beyond that of its peers, against what it was like before: numbers in, numbers out."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tocsin.models.robust import MAD_TO_SIGMA, median

FloatArray = npt.NDArray[np.float64]

_FEWEST_HOSTS, _FEWEST_BLOCKS = 4, 2
"""Of fewer nobody can say what is usual."""
_LATELY_COUNT = 3
"""Whoever was as slow in two of the last three blocks became so earlier, for another reason."""
_NOISE_FACTOR, _ALONE_FACTOR = 6.0, 2.0
"""Beyond noise, and beyond any other by as much: of a thousand machines one is always a little slower than before."""


def growth_beyond_noise(before: FloatArray, now: FloatArray) -> FloatArray:
    """By how much the one host that stands out has become slower than its peers, shape (hosts,); 0: not beyond noise.

    Args:
        before: excess of each host's slowest rank over its peers in blocks of steps, shape (blocks, hosts), seconds.
        now: the same of the newest block, shape (hosts,).
    """
    known = np.isfinite(now) & (np.isfinite(before).sum(axis=0) >= _FEWEST_BLOCKS)
    found = np.zeros(now.shape)
    if known.sum() < _FEWEST_HOSTS:
        return found
    usual = np.fmax(median(before[:, known], 0), median(before[-_LATELY_COUNT:, known], 0))
    growth = now[known] - usual
    growth = growth - np.median(growth)
    between = MAD_TO_SIGMA * float(np.median(np.abs(growth)))
    scatter = np.abs(before[:, known] - usual)
    within = MAD_TO_SIGMA * float(np.median(scatter[np.isfinite(scatter)]))
    second, first = np.partition(growth, -2)[-2:]
    line = max(_NOISE_FACTOR * max(between, within), _ALONE_FACTOR * float(second))
    found[known] = np.where((growth >= first) & (growth > line), growth, 0.0)
    return found
