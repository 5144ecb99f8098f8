"""The Mahalanobis-distance baseline."""

from __future__ import annotations

import numpy as np
import pytest

from tocsin.models.mahalanobis import moments, whitened
from tocsin.models.similarity import normal_scores, pairwise_sums


def test_moments_are_mean_variance_skewness_and_excess_kurtosis() -> None:
    found = moments(np.array([[[0.0, 0, 0, 4], [2, 2, 2, 2]]]))[0]

    assert found[[0, 2, 4, 6]] == pytest.approx([1.0, 3.0, 2 / np.sqrt(3), 7 / 3 - 3])
    assert found[[1, 3, 5, 7]].tolist() == [2, 0, 0, 0]


def test_components_are_measured_in_their_own_spread() -> None:
    features = np.random.default_rng(0).standard_normal((3, 60, 4)) * [1, 10, 100, 1000]
    rows = whitened(features).reshape(180, -1)

    np.testing.assert_allclose(rows.T @ rows / 180, np.eye(3), atol=1e-9)


@pytest.mark.parametrize("machines", [4, 8, 64])
def test_a_machine_that_is_far_out_has_the_highest_score_at_any_size(machines: int) -> None:
    features = np.random.default_rng(1).standard_normal((800, machines, 28))
    features[400:, 1, 3:6] += 50.0
    scores = normal_scores(pairwise_sums(whitened(features)))

    assert (scores[400:].argmax(axis=1) == 1).mean() > 0.9
    assert (scores[:400].argmax(axis=1) == 1).mean() < 0.5


def test_identical_machines_have_no_distance() -> None:
    assert not whitened(np.ones((2, 5, 8))).any()
    assert not pairwise_sums(whitened(np.ones((2, 5, 8)))).any()
