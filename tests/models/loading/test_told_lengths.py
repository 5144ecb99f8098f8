"""What told lengths explain of a rank's excess over its peers."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.models.loading.test_loading import TRUE, batches
from tocsin.models.loading.told_lengths import WeighedLengths, weigh_lengths

FloatArray = NDArray[np.float64]


def weighed(
    longer: float, slower: float, *, varies: bool, excess_ratio: float = 0.25, new_count: int = 8
) -> WeighedLengths | None:
    """A rank with so much longer sequences and so much slower passes beside seven others, over eight steps."""
    tokens, squares = batches(8, 8) if varies else (np.full((8, 8), 16_000.0), np.full((8, 8), 4e7))
    tokens[:, 0] *= longer
    squares[:, 0] *= longer**2
    seconds = TRUE.predict(tokens, squares) * np.random.default_rng(3).normal(1.0, 0.01, tokens.shape)
    seconds[:, 0] *= slower
    return weigh_lengths(tokens, squares, seconds, np.arange(8) >= 8 - new_count, excess_ratio)


@pytest.mark.parametrize("varies", [False, True])
def test_longer_data_explain_longer_passes(varies: bool) -> None:
    found = weighed(1.6, 1.0, varies=varies)

    assert found is not None
    assert found.is_explained
    assert found.left_ratio <= 1.05


@pytest.mark.parametrize("varies", [False, True])
def test_lengths_like_the_peers_explain_no_slow_machine(varies: bool) -> None:
    found = weighed(1.0, 1.6, varies=varies)

    assert found is not None
    assert not found.is_explained
    assert found.left_ratio == pytest.approx(1.6, rel=0.06)


def test_a_slow_machine_with_longer_data_is_slow_where_the_peers_show_what_lengths_cost() -> None:
    found = weighed(1.6, 1.5, varies=True)

    assert found is not None
    assert not found.is_explained
    assert found.left_ratio == pytest.approx(1.5, rel=0.06)


def test_a_small_excess_is_not_explained_by_equal_lengths() -> None:
    """What is left is below a tenth, but it is all of the excess."""
    found = weighed(1.0, 1.08, varies=False, excess_ratio=0.08)

    assert found is not None
    assert not found.is_explained


def test_steps_before_the_onset_and_steps_without_the_excess_tell_nothing() -> None:
    assert weighed(1.6, 1.0, varies=False, new_count=0) is None
    assert weighed(1.0, 1.0, varies=False) is None
    assert weighed(1.0, 1.6, varies=False, new_count=1) is not None


def test_batches_that_are_not_told_and_a_lone_peer_tell_nothing() -> None:
    nothing = np.full((4, 3), np.nan)
    one_peer = np.array([[1.6, 1.0, np.nan]] * 4)
    new = np.ones(4, dtype=bool)

    assert weigh_lengths(nothing, nothing, nothing, new, 0.5) is None
    assert weigh_lengths(one_peer, one_peer, one_peer, new, 0.5) is None
    assert weigh_lengths(one_peer[:0], one_peer[:0], one_peer[:0], new[:0], 0.5) is None


@pytest.mark.parametrize("told", ["padded", "packed"])
@pytest.mark.parametrize("seed", range(6))
def test_lengths_that_cost_the_peers_nothing_free_no_slow_machine(told: str, seed: int) -> None:
    """Padded batches tell their real tokens, packed ones the squares of their parts; computation hardly follows."""
    random = np.random.default_rng(seed)
    tokens, squares = batches(8, 8, seed)
    squares[:, 0] *= 1.6
    if told == "padded":
        tokens[:, 0] *= 1.6
    else:
        tokens[:] = 16_000.0
    seconds: FloatArray = np.asarray(random.normal(1.0, 0.02, tokens.shape))
    seconds[:, 0] *= 1.3
    found = weigh_lengths(tokens, squares, seconds, np.ones(8, dtype=bool), 0.3)

    assert found is not None
    assert not found.is_explained


def test_few_batches_of_varying_lengths_tell_nothing_yet() -> None:
    tokens, squares = batches(1, 8)
    tokens[:, 0] *= 3.0
    assert weigh_lengths(tokens, squares, np.full((1, 8), 1.0), np.ones(1, dtype=bool), 0.0) is None


def test_lengths_below_one_are_none() -> None:
    ones = np.ones((4, 4))
    assert weigh_lengths(ones, ones * 0.0, ones, np.ones(4, dtype=bool), 0.0) is None
    assert weigh_lengths(ones * 1e-300, ones, ones, np.ones(4, dtype=bool), 0.0) is None
