"""Batches of a drill whose sequences differ in length, as the rank and the hook see them."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch", reason="the ranks of a drill need torch")

from tocsin.cli.drill.model import ModelSize
from tocsin.cli.drill.uneven import UnevenBatch, UnevenLoader, work_ratio
from tocsin.collectors.hook._lengths import facts_of

SIZE = ModelSize()


def batches(seed: int, spread_ratio: float, count: int) -> list[UnevenBatch]:
    return list(itertools.islice(UnevenLoader(SIZE, seed, lambda: 0.0, lambda: spread_ratio), count))


def test_until_it_is_told_all_sequences_are_equal() -> None:
    lengths = [batch["lengths"] for batch in batches(1, 0.0, 5)]

    assert lengths == [[SIZE.sequence] * SIZE.batch] * 5


def test_ranks_draw_lengths_of_their_own_whose_mean_is_the_usual_one() -> None:
    one, other = ([batch["lengths"] for batch in batches(seed, 0.6, 300)] for seed in (1, 2))
    drawn = [length for lengths in one for length in lengths]

    assert one != other
    assert len({sum(lengths) for lengths in one}) > 30
    assert sum(drawn) / len(drawn) == pytest.approx(SIZE.sequence, rel=0.1)


def test_the_hook_reads_the_lengths_and_the_model_has_every_token() -> None:
    for batch in batches(3, 0.8, 50):
        told = facts_of(batch)

        assert (told.rows, told.tokens, told.max_length) == (SIZE.batch, sum(batch["lengths"]), max(batch["lengths"]))
        assert batch["input_ids"].shape == (SIZE.batch, max(batch["lengths"]) + 1)
        assert 0 <= int(batch["input_ids"].min()) <= int(batch["input_ids"].max()) < SIZE.vocabulary


@given(st.lists(st.integers(1, 96), min_size=1, max_size=8), st.integers(1, 96), st.integers(1, 50))
def test_work_is_that_of_usual_sequences_and_grows_with_each_token(lengths: list[int], usual: int, more: int) -> None:
    assert work_ratio([usual] * len(lengths), usual) == pytest.approx(1.0)
    assert work_ratio([lengths[0] + more, *lengths[1:]], usual) > work_ratio(lengths, usual)
