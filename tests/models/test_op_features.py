"""Distributions of operation times as features."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.models.op_features import BIN_COUNT, PHASES, OpRows, OpWindow, Vocabulary, feature_count, sum_up
from tocsin.schemas.errors import FieldError

MIDDLE = BIN_COUNT // 2


def rows_of(seconds: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> OpRows:
    """From times of shape (ranks, classes, operations)."""
    rank, kind, _ = np.indices(seconds.shape)
    return OpRows(rank.reshape(-1), kind.reshape(-1), seconds.reshape(-1))


def window(scale: float = 1.0, slow: float = 1.0) -> OpWindow:
    """Four ranks, three classes, five operations each; rank 2 is slow in class 1."""
    seconds = np.tile(np.array([0.4, 0.5, 0.1])[None, :, None], (4, 1, 5)) * scale
    seconds[2, 1] *= slow
    return sum_up(rows_of(seconds), 3)


def test_sums_and_counts_are_those_of_the_rows() -> None:
    found = window()

    assert found.seconds.tolist() == pytest.approx(np.tile([2.0, 2.5, 0.5], (4, 1)))
    assert found.counts.tolist() == [[5.0] * 3] * 4
    assert found.features.shape == (4, feature_count(3))


def test_ranks_that_are_like_their_peers_fill_the_middle_bin() -> None:
    assert (window().histograms[:, :, MIDDLE] == 1).all()


@pytest.mark.parametrize(("slow", "bin_index"), [(0.4, 0), (0.95, 4), (1.05, 4), (1.1, 5), (1.3, 6), (1.5, 7), (3, 8)])
def test_a_slow_class_moves_its_own_histogram_and_no_other(slow: float, bin_index: int) -> None:
    found = window(slow=slow)

    assert found.histograms[2, 1, bin_index] == 1
    assert (np.delete(found.histograms.reshape(12, BIN_COUNT), 2 * 3 + 1, 0)[:, MIDDLE] == 1).all()


@given(st.floats(1e-2, 1e3))
def test_a_change_of_all_ranks_changes_no_feature(scale: float) -> None:
    assert window(scale, 1.5).features == pytest.approx(window(1.0, 1.5).features, abs=1e-9)


@given(st.permutations(range(4)))
def test_other_ranks_permute_the_rows(order: list[int]) -> None:
    seconds = np.random.default_rng(1).uniform(0.1, 1.0, (4, 3, 5))

    assert sum_up(rows_of(seconds[order]), 3).features == pytest.approx(sum_up(rows_of(seconds), 3).features[order])


def test_a_class_that_takes_no_time_has_no_shape() -> None:
    seconds = np.tile(np.array([0.4, 0.5, 1e-5])[None, :, None], (4, 1, 5))
    seconds[2, 2] *= 3

    assert (sum_up(rows_of(seconds), 3).histograms[:, 2, MIDDLE] == 1).all()


def test_a_rank_with_too_few_operations_or_no_time_has_not_enough() -> None:
    seconds = np.ones((4, 2, 5))
    seconds[1] = 0.0
    rows = rows_of(seconds)
    few = (rows.ranks != 2) | (np.arange(rows.ranks.size) % 2 == 0)

    found = sum_up(OpRows(rows.ranks[few], rows.classes[few], rows.seconds[few]), 6)

    assert found.has_enough(4.0).tolist() == [True, False, False, True]


def test_times_of_zero_give_numbers() -> None:
    assert np.isfinite(sum_up(rows_of(np.zeros((4, 3, 5))), 3).features).all()


@pytest.mark.parametrize("value", [-1e-9, np.nan, np.inf])
def test_a_time_that_cannot_be_is_an_error_that_names_it(value: float) -> None:
    seconds = np.ones((3, 1, 2))
    seconds[1, 0, 1] = value

    with pytest.raises(FieldError, match=r"ops.seconds\[3\]"):
        rows_of(seconds)


def test_columns_of_different_length_are_refused() -> None:
    with pytest.raises(FieldError, match="one length"):
        OpRows(np.zeros(2, np.int64), np.zeros(1, np.int64), np.zeros(2))


def test_unknown_operations_are_other() -> None:
    known = Vocabulary(PHASES)

    assert known.encode(["forward", "never_seen", "rest"]).tolist() == [1, 6, 5]
    assert known.classes[6] == "other"
    assert known.class_count == 7


def test_a_vocabulary_has_different_words() -> None:
    for words in (("a", "a"), ("a", "other")):
        with pytest.raises(FieldError, match="vocabulary"):
            Vocabulary(words)
