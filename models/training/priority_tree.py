"""Learn the order in which Minder tries metrics, by a decision tree over labelled windows (``seed-systems-a.md`` 1.7).

It is the only supervised step of Minder. It sets the order of the metrics and nothing of the verdict.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from sklearn.tree import DecisionTreeClassifier

from tocsin.models.lstm_vae import FloatArray
from tocsin.schemas.errors import ConfigError

_DEPTH_COUNT = 8
"""Depth of the tree: enough for seven metrics to appear, too little to memorise the windows."""


def max_z_features(means: FloatArray) -> FloatArray:
    """Return for each metric the largest absolute z-score of any machine in each window.

    Both signs count: power falls, packets rise.

    Args:
        means: mean of each machine in a window, shape (windows, machines, metrics), NaN = no sample.

    Returns:
        Shape (windows, metrics); 0 where the machines do not differ or have no sample.
    """
    known = np.isfinite(means)
    count = np.maximum(known.sum(axis=1, keepdims=True), 1)
    middle = np.where(known, means, 0).sum(axis=1, keepdims=True) / count
    rest = np.where(known, means - middle, 0.0)
    spread = np.sqrt((rest**2).sum(axis=1, keepdims=True) / count)
    scores = np.abs(rest) / np.where(spread > 0, spread, np.inf)
    return np.asarray(scores.max(axis=1, initial=0.0), np.float32)


def metric_priority(
    features: FloatArray, faulty: NDArray[np.bool_], metrics: Sequence[str], *, seed: int = 0
) -> tuple[str, ...]:
    """Order metrics by how near to the root a decision tree first splits on them.

    At the same depth the one with the larger importance comes first. Metrics without a split come last, in the given
    order.

    Args:
        features: result of ``max_z_features``, shape (windows, metrics).
        faulty: whether a machine was faulty in the window, shape (windows,).
        metrics: names of the columns.
        seed: seed for ties between splits.

    Raises:
        ConfigError: all windows have the same label.
    """
    if len(np.unique(faulty)) < 2:
        raise ConfigError("labelled windows", f"all {'faulty' if faulty.any() else 'normal'}", "of both kinds")
    tree = DecisionTreeClassifier(max_depth=_DEPTH_COUNT, class_weight="balanced", random_state=seed)
    tree.fit(features, faulty)
    depth = _first_depth(tree.tree_)
    shares = tree.feature_importances_
    nowhere = _DEPTH_COUNT + 1
    order = sorted(range(len(metrics)), key=lambda column: (depth.get(column, nowhere), -shares[column], column))
    return tuple(metrics[column] for column in order)


def _first_depth(tree: object) -> dict[int, int]:
    """Return column -> smallest depth of a node of a scikit-learn tree that splits on it."""
    left, right, feature = (getattr(tree, name) for name in ("children_left", "children_right", "feature"))
    found: dict[int, int] = {}
    level, depth = [0], 0
    while level:
        splits = [node for node in level if left[node] >= 0]
        for node in splits:
            found.setdefault(int(feature[node]), depth)
        level = [child for node in splits for child in (int(left[node]), int(right[node]))]
        depth += 1
    return found
