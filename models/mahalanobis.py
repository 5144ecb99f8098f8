"""The Mahalanobis-distance baseline that Minder is compared with.

For each window and machine: mean, variance, skewness and kurtosis of each metric, then principal
components, then distances in units of the components' own spread (``seed-systems-a.md`` 1.8, from
memory). Not found in the paper: the number of components, the data over which their spread is taken, and whether
a machine's distance is to the centre or to the other machines. Choices made here:

- the first ``COMPONENT_COUNT`` components;
- spread over all windows of the call, because over one window of few machines every machine is equally far;
- distance to the other machines, so that z-score, threshold and continuity are the same as for Minder itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]

COMPONENT_COUNT = 3
"""Number of principal components used; in the first ones several features move together. With as many as explain 95 %
of the variance (tried: 23 of 28) each is noise of its own, and an outlier in one of them drowns in the others."""
_NOTHING = 1e-9
"""A variance or spread at most this counts as zero; it would be rounding error divided by rounding error."""


def moments(windows: Floats) -> NDArray[np.float64]:
    """Return mean, variance, skewness and excess kurtosis over the last axis.

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
    """Return coordinates in which Euclidean distance is Mahalanobis distance.

    Args:
        features: features of all windows of one call, shape (windows, machines, features).

    Returns:
        Shape (windows, machines, components); components without variance are left out.
    """
    rest = features.astype(np.float64)
    rest = rest - rest.mean(axis=1, keepdims=True)  # what all machines do alike is no distance
    usual = np.median(np.abs(rest), axis=(0, 1))
    spread = np.where(
        usual > _NOTHING, usual, rest.std(axis=(0, 1))
    )  # robust: what is far out must lead the components
    flat = spread <= _NOTHING
    rest = np.where(flat, 0.0, rest / np.where(flat, 1.0, spread))
    rows = rest.reshape(-1, rest.shape[2])
    variances, axes = np.linalg.eigh(rows.T @ rows / max(1, len(rows)))
    variances, axes = variances[::-1], axes[:, ::-1]
    counts = (np.arange(variances.size) < COMPONENT_COUNT) & (variances > _NOTHING)
    found: NDArray[np.float64] = rest @ (axes[:, counts] / np.sqrt(variances[counts]))
    return found
