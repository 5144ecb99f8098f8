"""Costs of batches, imbalance, slow sources and loaders on generated data: statements O1, O2, O4, O6 and O7."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.models.test_step_causes import told, window_of
from tocsin.models.loading.cost import CostModel, fit_cost, slow_for_their_batches
from tocsin.models.loading.imbalance import find_imbalance, loader_cost_seconds
from tocsin.models.loading.sources import Fetch, find_slow_loaders, find_slow_sources
from tocsin.models.step_causes import DATA, MACHINE, STAGE, find_step_causes

FloatArray = NDArray[np.float64]
TRUE = CostModel(0.02, 4e-6, 3e-10)


def batches(steps: int = 24, ranks: int = 8, seed: int = 0, documents: int = 12) -> tuple[FloatArray, FloatArray]:
    """Tokens and squared lengths of batches of documents with a long tail, shape (steps, ranks)."""
    lengths = np.minimum(np.random.default_rng(seed).lognormal(7.5, 1.0, (steps, ranks, documents)), 32_768).round()
    return lengths.sum(axis=2), (lengths**2).sum(axis=2)


def measured(tokens: FloatArray, squares: FloatArray, noise: float = 0.03) -> FloatArray:
    """Pass times of such batches with noise."""
    factor = np.asarray(np.random.default_rng(9).normal(1.0, noise, tokens.shape))
    return np.asarray(TRUE.predict(tokens, squares) * factor)


def test_o1_a_cost_fitted_on_one_half_of_the_steps_predicts_the_other() -> None:
    tokens, squares = batches()
    seconds = measured(tokens, squares)
    found = fit_cost(tokens[::2], squares[::2], seconds[::2])

    assert found is not None
    assert found.r2_ratio(tokens[1::2], squares[1::2], seconds[1::2]) >= 0.9
    assert found.squared_token_seconds == pytest.approx(TRUE.squared_token_seconds, rel=0.15)


def test_a_fit_with_few_or_equal_batches_is_none_and_times_without_lengths_are_not_explained() -> None:
    tokens, squares = batches()
    noise = np.asarray(np.random.default_rng(1).normal(1.0, 0.1, tokens.shape))
    found = fit_cost(tokens, squares, noise)

    assert fit_cost(tokens[:1], squares[:1], noise[:1]) is None
    assert fit_cost(np.ones((24, 8)), np.ones((24, 8)), noise) is None
    assert found is not None
    assert found.r2_ratio(tokens, squares, noise) < 0.1
    assert min(found.fixed_seconds, found.token_seconds, found.squared_token_seconds) >= 0.0


def test_two_documents_of_30_and_70_cost_16_percent_more_attention_than_two_of_50() -> None:
    attention = CostModel(0.0, 0.0, 1.0)
    uneven, even = (attention.predict(np.array(100.0), np.array(squares)) for squares in (30.0**2 + 70**2, 2 * 50.0**2))

    assert float(uneven / even) == pytest.approx(1.16)


@given(st.integers(2, 9), st.integers(0, 1000))
def test_an_imbalance_is_at_least_one_and_even_parts_have_none(ranks: int, seed: int) -> None:
    parts = np.random.default_rng(seed).uniform(0.0, 5.0, (6, ranks))
    found, even = find_imbalance(parts), find_imbalance(np.ones((6, ranks)))

    assert found is not None
    assert even is not None
    assert 1.0 <= found.max_to_mean_ratio <= found.most_ratio <= ranks
    assert (even.max_to_mean_ratio, even.excess_ratio) == (1.0, 0.0)
    assert find_imbalance(parts[:, :1]) is None
    assert find_imbalance(parts * 0.0) is None


def test_a_wait_that_another_rank_hides_costs_nothing() -> None:
    compute = np.array([[1.0, 2.0], [1.0, 2.0]])

    assert loader_cost_seconds(compute, np.array([[0.9, 0.0], [0.9, 0.0]])) == 0.0
    assert loader_cost_seconds(compute, np.array([[1.5, 0.0], [1.5, 0.0]])) == pytest.approx(0.5)
    assert loader_cost_seconds(compute, np.full((2, 2), 0.3)) == pytest.approx(0.3)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("what", [DATA, MACHINE, STAGE, ""])
def test_o2_data_machine_and_stage_are_told_as_they_are(what: str, seed: int) -> None:
    draw = np.random.default_rng(seed)
    forward, backward = 0.4 * draw.normal(1.0, 0.02, (24, 16)), 0.6 * draw.normal(1.0, 0.02, (24, 16))
    stages = np.arange(16) // 8
    factor = np.ones((24, 16))
    if what == DATA:
        tokens, squares = batches(ranks=16, seed=seed)
        factor = TRUE.predict(tokens, squares) / TRUE.predict(tokens, squares).mean()
        stages = np.zeros(16, np.int64)
    if what == MACHINE:
        factor[:, seed % 16] = 1.4
    if what == STAGE:
        factor[:, stages == 1] = 1.4
    found = find_step_causes(window_of(forward * factor, backward * factor, stages))

    assert found is not None
    assert told(found) == ({what} if what else set())


def fetches(seconds: dict[int, float], sources: int = 2, ranks: int = 8) -> list[Fetch]:
    """Readers of some sources, turn by turn; a few wait longer than the others."""
    return [Fetch(rank, f"s{rank % sources}", seconds.get(rank, 0.02), 0.02) for rank in range(ranks)]


def test_o4_a_source_that_is_five_times_slower_is_named_and_its_readers_are_not() -> None:
    slow = fetches(dict.fromkeys((1, 3, 5, 7), 0.1))
    [found] = find_slow_sources(slow, 0.5)

    assert (found.source, found.ranks) == ("s1", (1, 3, 5, 7))
    assert (found.seconds, found.other_seconds) == (0.1, 0.02)
    assert find_slow_loaders(slow, 0.5) == []


def test_a_loader_that_is_slow_beside_readers_of_its_source_is_named_and_the_source_is_not() -> None:
    slow = fetches({3: 0.3})
    [found] = find_slow_loaders(slow, 0.5)

    assert (found.rank, found.source, found.by_past) == (3, "s1", False)
    assert find_slow_sources(slow, 0.5) == []


def test_waits_that_are_short_beside_a_step_or_equal_on_all_are_nothing() -> None:
    for waits in (fetches({3: 0.3}), fetches(dict.fromkeys((1, 3, 5, 7), 0.1))):
        assert not find_slow_loaders(waits, 30.0)
        assert not find_slow_sources(waits, 30.0)
    alike = fetches(dict.fromkeys(range(8), 0.3))
    assert not find_slow_loaders(alike, 0.5)
    assert not find_slow_sources(alike, 0.5)


def test_o6_a_small_fault_that_uneven_lengths_hide_is_found_once_times_are_divided_by_their_cost() -> None:
    tokens, squares = batches(steps=48)
    seconds = measured(tokens, squares)
    seconds[:, 5] *= 1.15
    model = fit_cost(tokens, squares, seconds)
    assert model is not None
    predicted = model.predict(tokens, squares)

    assert slow_for_their_batches(seconds, predicted) == [5]
    assert slow_for_their_batches(seconds, np.ones_like(seconds)) == []
    assert slow_for_their_batches(measured(tokens, squares), predicted) == []


def test_o7_with_two_readers_the_comparison_abstains_and_a_ranks_past_tells_of_no_peer() -> None:
    two = [Fetch(0, "a", 0.02, 0.02), Fetch(1, "a", 0.4, 0.02)]
    [found] = find_slow_loaders(two, 0.5)

    assert (found.rank, found.by_past) == (1, True)
    assert find_slow_loaders([Fetch(0, "a", 0.02), Fetch(1, "a", 0.4)], 0.5) == []
    assert slow_for_their_batches(np.array([[1.0, 2.0]] * 20), np.ones((20, 2))) == []
