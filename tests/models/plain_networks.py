"""One-class networks that nobody trained, for tests that need no torch."""

from __future__ import annotations

import numpy as np

from tocsin.models.bilstm_ocnn import OcnnModel, Singles
from tocsin.models.op_features import Vocabulary, feature_count


def plain_network(vocabulary: Vocabulary, size: int = 2) -> OcnnModel:
    """Drawn weights of the right shapes."""
    draw, features = np.random.default_rng(3), feature_count(vocabulary.class_count)
    shapes = {"input": (4 * size, features), "state": (4 * size, size), "bias": (4 * size,)}
    weights: dict[str, Singles] = {
        f"{way}_{part}": draw.standard_normal(shape).astype(np.float32)
        for way in ("forward", "backward")
        for part, shape in shapes.items()
    }
    weights |= {"mean": np.zeros(features, np.float32), "deviation": np.ones(features, np.float32)}
    weights |= {"V": np.ones((size, 2 * size), np.float32), "w": np.ones(size, np.float32)}
    return OcnnModel(vocabulary, 6, weights, 0.5, 1.0, 2.0, 0.05)
