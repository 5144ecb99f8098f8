"""Minder's similarity for a stream: each machine's distance to its role's centre, linear in the machines.

Minder (NSDI'25; ``seed-systems-a.md`` 1.5, 1.6) compares machines by the reconstruction of a window of one metric, and
by the z-score of each machine's summed distances to all others. Two things differ here:

- The distance is that to the median of the role's reconstructions, coordinate by coordinate. It costs one pass over the
  machines instead of all pairs. Both put the same machine on top in 92 to 97 of 100 windows (docs/minder.md).
- The score is robust: the distance above the role's median one, in median absolute deviations. A z-score of N machines
  cannot exceed sqrt(N - 1), because the outlier widens the spread that it is measured in: among four machines no
  threshold above 1.73 is ever reached. The median of the others does not move with one outlier, so this score has no
  such ceiling, from four machines on.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tocsin.models.lstm_vae import FloatArray, LstmVae
from tocsin.models.robust import MAD_TO_SIGMA, median

LEAST_MACHINES = 4
"""Fewest machines of a role that are compared: one that deviates, and three others."""
FLOOR_RATIO = 0.01
"""Least spread of the distances, as a share of the metric's normalised range and of the square root of the window.

Machines that all do the same differ by less than the samples are precise; without a floor any rounding would be far
out.
"""


def windows_of(samples: FloatArray) -> FloatArray:
    """Return windows whose missing samples are filled from the nearest one in time, of two equally near the earlier.

    Args:
        samples: shape (machines, ticks), NaN = no sample; the last tick is the newest.

    Returns:
        Same shape. A machine without its newest sample, or with less than half of them, is NaN: nothing is known of it
        now.
    """
    known = np.isfinite(samples)
    if known.all():
        return samples
    rows, ticks = samples.shape
    place = np.arange(ticks)
    before = np.maximum.accumulate(np.where(known, place, -1), axis=1)
    after = np.minimum.accumulate(np.where(known, place, ticks)[:, ::-1], axis=1)[:, ::-1]
    to_before = np.where(before >= 0, place - before, ticks)
    to_after = np.where(after < ticks, after - place, ticks)
    source = np.clip(np.where(to_before <= to_after, before, after), 0, ticks - 1)
    filled = np.take_along_axis(samples, source, axis=1)
    judged = known[:, -1] & (2 * known.sum(axis=1) >= ticks)
    return np.where(judged[:, None], filled, np.nan).astype(np.float32) if rows else samples


def embeddings_of(windows: FloatArray, vae: LstmVae) -> FloatArray:
    """Return the reconstruction of each window of one metric, shape (machines, ticks), in normalised units.

    Args:
        windows: in the metric's unit, shape (machines, ticks); a row of NaN stays NaN.
        vae: network of the metric.
    """
    return vae.reconstruct(vae.limits[0].normalise(windows)[:, :, None])[:, :, 0]


def centre_scores(embeddings: FloatArray, groups: NDArray[np.intp]) -> FloatArray:
    """Return how far each machine is from the centre of its group, in robust standard deviations of the distances.

    Args:
        embeddings: shape (machines, features), NaN = nothing is known of the machine.
        groups: group of each machine, shape (machines,); -1: compared with none.

    Returns:
        Float32, shape (machines,): at least 0; NaN for machines that are not compared: unknown ones, and those of a
        group with fewer than ``LEAST_MACHINES`` known machines.
    """
    found = np.full(embeddings.shape[0], np.nan, np.float32)
    known = np.isfinite(embeddings).all(axis=1)
    for group in np.unique(groups[groups >= 0]):
        rows = np.flatnonzero(known & (groups == group))
        if rows.size < LEAST_MACHINES:
            continue
        own = embeddings[rows]
        away = np.sqrt(((own - median(own, axis=0)) ** 2).sum(axis=1))
        middle = np.median(away)
        spread = MAD_TO_SIGMA * np.median(np.abs(away - middle))
        floor = FLOOR_RATIO * np.sqrt(embeddings.shape[1])
        found[rows] = np.maximum(0.0, (away - middle) / max(float(spread), floor))
    return found
