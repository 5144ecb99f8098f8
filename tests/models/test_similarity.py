"""Sums of pairwise distances, normal scores, and runs of one candidate."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.models.similarity import NOBODY, CandidateRun, ceiling, first_run, normal_scores, pairwise_sums


@pytest.mark.parametrize(("windows", "machines"), [(1, 1), (3, 2), (50, 7), (2, 300)])
def test_sums_are_those_of_all_pairs_whatever_the_blocks(windows: int, machines: int) -> None:
    points = np.random.default_rng(0).standard_normal((windows, machines, 8))
    wanted = np.linalg.norm(points[:, :, None] - points[:, None], axis=3).sum(axis=2)

    np.testing.assert_allclose(pairwise_sums(points), wanted, rtol=1e-12)


def test_equal_machines_have_no_distance_at_all() -> None:
    points = np.repeat(np.random.default_rng(0).standard_normal((4, 1, 8)), 9, axis=1).astype(np.float32)

    assert not pairwise_sums(points).any()
    assert not normal_scores(pairwise_sums(points)).any()


@given(machines=st.integers(3, 200), far=st.floats(0.01, 1e6))
def test_one_lone_outlier_reaches_exactly_the_ceiling_however_far_out_it_is(machines: int, far: float) -> None:
    points = np.zeros((1, machines, 8))
    points[0, -1, 3] = far
    scores = normal_scores(pairwise_sums(points))[0]

    assert scores[-1] == pytest.approx(ceiling(machines)) == pytest.approx(math.sqrt(machines - 1))


@given(machines=st.integers(3, 40), seed=st.integers(0, 99), scale=st.floats(1e-3, 1e3))
def test_scores_never_pass_the_ceiling_and_do_not_know_the_scale(machines: int, seed: int, scale: float) -> None:
    points = np.random.default_rng(seed).standard_normal((2, machines, 8))
    scores = normal_scores(pairwise_sums(points))

    assert scores.max() <= ceiling(machines) + 1e-9
    np.testing.assert_allclose(normal_scores(pairwise_sums(points * scale)), scores, rtol=1e-6, atol=1e-9)


def test_a_run_is_longer_than_asked_and_of_one_machine() -> None:
    row = [1] * 4 + [NOBODY] * 9 + [2] * 3 + [1] + [2] * 6

    assert first_run(np.array(row), 1.0, 5.0) == CandidateRun(2, 17, 22)
    assert first_run(np.array(row), 1.0, 6.0) is None
    assert first_run(np.array(row), 2.0, 6.0) == CandidateRun(1, 0, 3)
    assert first_run(np.array(row), 1.0, 0.0) == CandidateRun(1, 0, 0)
    assert first_run(np.array([NOBODY] * 500), 1.0, 10.0) is None
    assert first_run(np.zeros(0, np.intp), 1.0, 10.0) is None
