"""Names of the operation classes in which a rank's window differs from its peers', for its anomaly."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tocsin.models.op_features import OpWindow
from tocsin.models.robust import median
from tocsin.pipeline.detect.traces.windows import RoleWindow

_TOP_CLASSES = 5
"""Number of operation classes that an anomaly lists (``seed-systems-b.md`` 5.3)."""


def class_distances(summed: OpWindow, row: int) -> NDArray[np.float64]:
    """Return how far one rank is from the median rank in each class, shape (classes,), 0 = not at all.

    It is the sum of the differences of the class's features: histogram, share of time and share of calls.

    Args:
        summed: window of one role.
        row: row of the rank.
    """
    class_count = summed.seconds.shape[1]
    features = summed.features
    far = np.abs(features[row] - median(features, 0))
    bins, shares = far[: -2 * class_count].reshape(class_count, -1), far[-2 * class_count :].reshape(2, class_count)
    found: NDArray[np.float64] = bins.sum(axis=1) + shares.sum(axis=0)
    return found


def named_classes(summed: OpWindow, row: int, parts: NDArray[np.float64], window: RoleWindow) -> dict[str, Any]:
    """Return the details of an anomaly that name the classes in which a rank differs most.

    Args:
        summed: window of one role.
        row: row of the rank.
        parts: contribution of each class to the difference, shape (classes,), each at least 0.
        window: the same window before it was summed up.

    Returns:
        ``classes``: up to five [class, share of the difference], largest first. Of the first class ``value``, this
        rank's mean seconds of one operation, and ``expected``, those of the median rank. ``text``: a sentence, after
        which the two numbers can stand in parentheses.
    """
    total = max(float(parts.sum()), 1e-12)
    top = [column for column in np.argsort(-parts, kind="stable")[:_TOP_CLASSES].tolist() if parts[column] > 0]
    classes = [[window.vocabulary.classes[column], float(parts[column]) / total] for column in top]
    if not top:
        return {"classes": []}
    means = summed.seconds[:, top[0]] / np.maximum(summed.counts[:, top[0]], 1.0)
    own, usual, rank = float(means[row]), float(np.median(means)), int(summed.ranks[row])
    text = (
        f"rank {rank}: times of {window.family} unlike those of {len(means) - 1} peers, mostly {classes[0][0]}: seconds"
    )
    return {"classes": classes, "value": own, "expected": usual, "text": text}
