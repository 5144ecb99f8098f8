"""Find the one host whose self time grew beyond that of its peers, compared with earlier blocks of steps."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tocsin.models.robust import MAD_TO_SIGMA, median, median_of

FloatArray = npt.NDArray[np.float64]

_FEWEST_HOSTS, _FEWEST_BLOCKS = 4, 2
"""Least number of hosts to compare, and of earlier blocks that a host must have."""
_LATELY_COUNT = 3
"""Number of newest earlier blocks that can raise a host's usual value. A host that was equally slow in two of the last
three blocks became slow earlier, for another reason."""
_NOISE_FACTOR, _SECOND_HOST_FACTOR = 6.0, 2.0
"""Alarm line: this many times the noise, and this many times the growth of the second host. Among a thousand hosts one
is always a little slower than before."""


def growth_beyond_noise(before: FloatArray, now: FloatArray) -> FloatArray:
    """Return by how many seconds the single most slowed host exceeds its usual excess, 0 for all other hosts.

    All entries are 0 where the largest growth is not beyond noise or too close to the second largest.

    Args:
        before: excess of each host's slowest rank over its peers in earlier blocks of steps, shape (blocks, hosts),
            seconds; NaN = unknown.
        now: the same for the newest block, shape (hosts,).

    Returns:
        Seconds, shape (hosts,).
    """
    known = np.isfinite(now) & (np.isfinite(before).sum(axis=0) >= _FEWEST_BLOCKS)
    found = np.zeros(now.shape)
    if known.sum() < _FEWEST_HOSTS:
        return found
    usual = np.fmax(median(before[:, known], 0), median(before[-_LATELY_COUNT:, known], 0))
    growth = now[known] - usual
    growth = growth - median_of(growth)
    between = MAD_TO_SIGMA * median_of(np.abs(growth))
    scatter = np.abs(before[:, known] - usual)
    within = MAD_TO_SIGMA * median_of(scatter[np.isfinite(scatter)])
    second, first = np.partition(growth, -2)[-2:]
    line = max(_NOISE_FACTOR * max(between, within), _SECOND_HOST_FACTOR * float(second))
    found[known] = np.where((growth >= first) & (growth > line), growth, 0.0)
    return found
