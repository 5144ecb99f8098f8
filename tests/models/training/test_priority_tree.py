"""The decision tree that orders the metrics (``seed-systems-a.md`` 1.7)."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("sklearn", reason="training needs tocsin[train]")

from tocsin.models.lstm_vae import FloatArray
from tocsin.models.minder import PRIORITY
from tocsin.models.training.priority_tree import max_z_features, metric_priority
from tocsin.schemas.errors import ConfigError


def labelled(shares: dict[str, float], count: int = 2000) -> tuple[FloatArray, np.ndarray]:  # type: ignore[type-arg]
    """Features of windows of which half are faulty; a metric shows this share of the faults."""
    rng = np.random.default_rng(0)
    faulty = np.arange(count) % 2 == 0
    features = rng.uniform(1.5, 2.5, (count, len(PRIORITY))).astype(np.float32)
    for metric, share in shares.items():
        shown = faulty & (rng.random(count) < share)
        features[shown, PRIORITY.index(metric)] += 5.0
    return features, faulty


def test_the_metric_that_shows_most_faults_is_asked_first() -> None:
    features, faulty = labelled({"cpu_util_ratio": 0.5, "gpu_power_watts": 0.9})

    assert metric_priority(features, faulty, PRIORITY)[:2] == ("gpu_power_watts", "cpu_util_ratio")


def test_the_papers_order_comes_out_where_faults_show_as_in_the_paper() -> None:
    shares = dict(zip(PRIORITY, (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3), strict=True))
    features, faulty = labelled(shares, 20_000)

    assert metric_priority(features[:, ::-1], faulty, PRIORITY[::-1]) == PRIORITY


def test_every_metric_is_in_the_order_once_also_those_that_decide_nothing() -> None:
    features, faulty = labelled({"nvlink_bytes_per_second": 1.0})
    order = metric_priority(features, faulty, PRIORITY)

    assert order[0] == "nvlink_bytes_per_second"
    assert sorted(order) == sorted(PRIORITY)


def test_labels_of_one_kind_teach_nothing() -> None:
    with pytest.raises(ConfigError, match="all normal"):
        metric_priority(np.zeros((5, 7), np.float32), np.zeros(5, bool), PRIORITY)


def test_the_feature_is_the_largest_z_score_of_any_machine_to_either_side() -> None:
    means = np.zeros((1, 10, 3), np.float32)
    means[0, 4, 0], means[0, 7, 1] = 9.0, -9.0
    means[0, 2, 1] = np.nan

    assert max_z_features(means)[0] == pytest.approx([3.0, np.sqrt(8), 0.0])
