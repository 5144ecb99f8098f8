"""Workers that are slow on their own, from computation times."""

from __future__ import annotations

import numpy as np
import pytest

from tocsin.models.whatif.compute import Computation
from tocsin.models.whatif.machines import slow_workers
from tocsin.models.whatif.trace import FloatArray


@pytest.mark.parametrize(("alike_count", "named"), [(0, [0]), (3, [])])
def test_a_worker_that_is_like_its_peers_in_some_steps_is_not_named(alike_count: int, named: list[int]) -> None:
    seconds = np.ones((4, 8, 3))
    seconds[:, :, 0] = 1.5
    seconds[:, :alike_count, 1:] = 1.5  # in these steps all are slow
    rows = np.arange(4)
    parts = [Computation(kind, 0, rows, rows, seconds, seconds.mean(axis=1)) for kind in ("forward", "backward")]

    assert [worker.dp for worker in slow_workers(parts)] == named


def _random_lengths(shape: tuple[int, int, int], seed: int) -> FloatArray:
    """New sequence lengths in each microbatch, shape (microbatches, steps, ranks)."""
    return np.asarray(np.random.default_rng(seed).lognormal(0.0, 0.6, shape))


def _both(seconds: FloatArray) -> list[Computation]:
    """One stage whose backward passes take twice as long as its forward passes."""
    rows = np.arange(seconds.shape[0])
    return [
        Computation(kind, 0, rows, rows, factor * seconds, factor * seconds.mean(axis=1))
        for kind, factor in (("forward", 1.0), ("backward", 2.0))
    ]


@pytest.mark.parametrize(("microbatch_count", "step_count"), [(1, 1), (4, 1), (2, 2), (4, 2), (1, 5), (4, 10)])
def test_random_lengths_in_a_short_trace_name_nobody(microbatch_count: int, step_count: int) -> None:
    named = [slow_workers(_both(_random_lengths((microbatch_count, step_count, 16), seed))) for seed in range(40)]
    assert not any(named)


@pytest.mark.parametrize("factor", [1.5, 2.0])
def test_a_slow_worker_is_named_beside_random_lengths_once_there_are_enough_of_them(factor: float) -> None:
    seconds = _random_lengths((8, 16, 16), seed=1)
    seconds[:, :, 5] *= factor
    assert [worker.dp for worker in slow_workers(_both(seconds))] == [5]


def test_a_slow_worker_of_even_data_is_named_after_two_steps_and_not_after_one() -> None:
    seconds = 1.0 + 0.01 * np.random.default_rng(1).standard_normal((1, 2, 4))
    seconds[:, :, 2] *= 1.3
    assert [worker.dp for worker in slow_workers(_both(seconds))] == [2]
    assert slow_workers(_both(seconds[:, :1])) == ()
