"""What a rank used to be like: scored first, learned then."""

from __future__ import annotations

import numpy as np
import pytest

from tocsin.models.rank_past import RankPast


def test_it_is_the_plain_mean_and_deviation_until_its_memory_is_full() -> None:
    past = RankPast(1, 10)
    values = np.random.default_rng(1).normal(3, 2, 10)
    for value in values:
        past.learn(np.array([7]), np.array([[value]]))
    counts, means, deviations = past.look(np.array([7]))

    assert counts.tolist() == [10]
    assert float(means[0, 0]) == pytest.approx(values.mean())
    assert float(deviations[0, 0]) == pytest.approx(values.std() * np.sqrt(11 / 9))


def test_then_it_follows() -> None:
    past = RankPast(1, 4)
    for value in [0.0] * 20 + [1.0] * 20:
        past.learn(np.array([0]), np.array([[value]]))

    assert float(past.look(np.array([0]))[1][0, 0]) == pytest.approx(1.0, abs=0.01)


def test_ranks_come_in_any_order_and_keep_their_own() -> None:
    past = RankPast(2, 4)
    past.learn(np.array([5, 1]), np.array([[5.0, 50.0], [1.0, 10.0]]))
    past.learn(np.array([3]), np.array([[3.0, 30.0]]))

    assert past.look(np.array([1, 3, 5]))[1].tolist() == [[1, 10], [3, 30], [5, 50]]
    assert past.look(np.array([5, 3]))[1].tolist() == [[5, 50], [3, 30]]


def test_a_row_without_a_number_teaches_nothing_and_a_new_rank_has_no_past() -> None:
    past = RankPast(1, 4)
    past.learn(np.array([0, 1]), np.array([[np.nan], [2.0]]))

    assert past.look(np.array([0, 1, 9]))[0].tolist() == [0, 1, 0]
    assert past.look(np.array([9]))[1].tolist() == [[0]]
