"""The Mahalanobis-distance baseline that Minder is compared with.

Per window and machine the mean, variance, skewness and kurtosis of each metric, then principal
components, then distances in units of the components' own spread (``seed-systems-a.md`` 1.8, from
memory). Not found: how many components, and whether a machine's distance is taken to the centre or to
the other machines. Here: those that explain ``EXPLAINED_RATIO`` of the variance, at most machines - 2
(with machines - 1 all machines are equally far, whatever they show), and to the other machines, so
that z-score, threshold and continuity are the same as for Minder itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]

EXPLAINED_RATIO = 0.95
"""Share of the variance that the components must explain; the rest is taken for noise."""
_NOTHING = 1e-9
"""A variance below this is none: its component would be rounding, divided by rounding."""


def moments(windows: Floats) -> NDArray[np.float64]:
    """Mean, variance, skewness and excess kurtosis over the last axis.

    Args:
        windows: shape (..., metrics, ticks).

    Returns:
        Shape (..., 4 * metrics); skewness and kurtosis of a constant are 0.
    """
    values = windows.astype(np.float64)
    mean = values.mean(axis=-1)
    rest = values - mean[..., None]
    variance = (rest**2).mean(axis=-1)
    flat = variance <= _NOTHING**2
    scale = np.sqrt(np.where(flat, 1.0, variance))
    skewness = np.where(flat, 0.0, (rest**3).mean(axis=-1) / scale**3)
    kurtosis = np.where(flat, 0.0, (rest**4).mean(axis=-1) / scale**4 - 3.0)
    return np.concatenate([mean, variance, skewness, kurtosis], axis=-1)


def whitened(features: Floats) -> NDArray[np.float64]:
    """Coordinates in which plain Euclidean distance is Mahalanobis distance.

    Args:
        features: shape (windows, machines, features).

    Returns:
        Shape (windows, machines, components); components that do not count are 0.
    """
    values = features.astype(np.float64)
    values = values - values.mean(axis=1, keepdims=True)
    spread = values.std(axis=1, keepdims=True)
    values = np.where(spread > _NOTHING, values / np.where(spread > _NOTHING, spread, 1.0), 0.0)
    machines = values.shape[1]
    covariance = values.transpose(0, 2, 1) @ values / max(1, machines)
    variances, axes = np.linalg.eigh(covariance)
    variances, axes = variances[:, ::-1], axes[:, :, ::-1]
    total = variances.sum(axis=1, keepdims=True)
    before = np.cumsum(variances, axis=1) - variances
    counts = (before < EXPLAINED_RATIO * total) & (variances > _NOTHING)
    counts[:, max(1, machines - 2) :] = False
    factor = np.where(counts, 1.0 / np.sqrt(np.where(counts, variances, 1.0)), 0.0)
    found: NDArray[np.float64] = (values @ axes) * factor[:, None, :]
    return found
