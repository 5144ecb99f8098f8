"""Whose gradient norm is far out: beside its role, and beside its own past."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.models.own_norms import OwnNormConfig, OwnNorms, group_medians

RANKS = np.arange(8)
ONE_ROLE = np.zeros(8, np.int64)


@given(st.lists(st.tuples(st.integers(-1, 3), st.floats(-5, 5)), min_size=1, max_size=40))
def test_medians_are_those_of_each_group(pairs: list[tuple[int, float]]) -> None:
    groups, values = np.array([pair[0] for pair in pairs]), np.array([pair[1] for pair in pairs])
    medians, sizes = group_medians(values, groups)

    assert np.allclose(medians, [np.median(values[groups == group]) for group in groups])
    assert sizes.tolist() == [int((groups == group).sum()) for group in groups]


def _steps(own: OwnNorms, count: int, roles: np.ndarray[tuple[int], np.dtype[np.int64]] = ONE_ROLE) -> None:
    draw = np.random.default_rng(2)
    for _ in range(count):
        assert own.step(RANKS, roles, np.exp(0.1 * draw.standard_normal(8))) == []


def _with(rank: int, norm: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    norms = np.linspace(0.9, 1.1, 8)
    norms[rank] = norm
    return norms


def test_it_judges_when_it_knows_a_rank_and_does_not_learn_what_is_far_out() -> None:
    own = OwnNorms()
    _steps(own, OwnNormConfig().known_count - 1)
    assert own.step(RANKS, ONE_ROLE, _with(3, 2.0)) == []
    for time in range(50):
        [far] = own.step(RANKS, ONE_ROLE, _with(3, 50.0))
        assert (far.rank, far.role_count, round(far.usual_norm, 1)) == (3, 8, 1.0)
        assert far.before_ratio == pytest.approx((time + 1) / (OwnNormConfig().known_count + time + 1))


def test_fewer_than_three_peers_are_none() -> None:
    own = OwnNorms()
    _steps(own, 40, RANKS // 3)

    assert own.step(RANKS, RANKS // 3, _with(3, 50.0)) == []


def test_one_number_of_all_costs_and_teaches_nothing() -> None:
    own = OwnNorms()
    for _ in range(40):
        assert own.step(RANKS, ONE_ROLE, np.full(8, 3.0)) == []

    assert own.past.ranks.size == 0
