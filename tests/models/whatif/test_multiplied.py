"""A slow machine multiplies all computations; longer data of one rank do not, and name nobody."""

from __future__ import annotations

import numpy as np
import pytest

from tocsin.models.whatif.compute import Computation
from tocsin.models.whatif.machines import slow_workers
from tocsin.models.whatif.multiplied import data_are_longer
from tocsin.models.whatif.trace import FloatArray

SHAPE = (8, 32, 8)
"""Microbatches, steps, data-parallel ranks."""
ODD = 5
SEEDS = range(20)


def packed(longer: float, random: np.random.Generator, shape: tuple[int, int, int] = SHAPE) -> FloatArray:
    """Microbatches of equal tokens; attention's part goes with the squares of the lengths, longer on one rank."""
    squares = random.lognormal(0.0, 0.6, shape)
    squares[..., ODD] *= longer
    return np.asarray(0.5 + 0.5 * squares)


def pictures(longer: float, random: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Passes of a stage that also encodes pictures, half of which is trained; one rank has more of them."""
    counts = random.poisson(np.where(np.arange(SHAPE[2]) == ODD, 4.0 * longer, 4.0), SHAPE)
    return 1.0 + 0.2 * counts, 2.0 + 0.2 * counts


def parts(forward: FloatArray, backward: FloatArray, seed: int, stage: int = 0) -> list[Computation]:
    """One stage, with a scatter of 1 % of each time."""
    random, rows = np.random.default_rng(seed + 1_000), np.arange(forward.shape[0])
    found = []
    for direction, times in (("forward", forward), ("backward", backward)):
        seconds = times * np.exp(random.normal(0.0, 0.01, times.shape))
        typical = np.broadcast_to(seconds.mean(axis=(0, 1)), (rows.size, times.shape[2]))
        found.append(Computation(direction, stage, rows, rows, seconds, typical))
    return found


def slowed(times: FloatArray, factor: float) -> FloatArray:
    """The times with one rank's multiplied."""
    return np.asarray(times * np.where(np.arange(times.shape[2]) == ODD, factor, 1.0))


@pytest.mark.parametrize("seed", SEEDS)
def test_longer_data_of_one_rank_without_a_pipeline_name_nobody(seed: int) -> None:
    times = packed(2.5, np.random.default_rng(seed))
    assert slow_workers(parts(times, 2 * times, seed)) == ()


@pytest.mark.parametrize("seed", SEEDS)
def test_more_pictures_of_one_rank_that_lengthen_the_first_stage_only_name_nobody(seed: int) -> None:
    ahead, back = pictures(3.0, np.random.default_rng(seed))
    even = np.ones(SHAPE)
    assert slow_workers([*parts(ahead, back, seed), *parts(even, 2 * even, seed, stage=1)]) == ()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_slow_machine_among_such_data_is_named(seed: int) -> None:
    random = np.random.default_rng(seed)
    times, (ahead, back), even = packed(1.0, random), pictures(1.0, random), np.ones(SHAPE)
    for found in (
        parts(slowed(times, 1.6), slowed(2 * times, 1.6), seed),
        [*parts(slowed(ahead, 1.6), slowed(back, 1.6), seed), *parts(even, 2 * even, seed, stage=1)],
    ):
        assert [(worker.stage, worker.dp) for worker in slow_workers(found)] == [(0, ODD)]


def test_a_machine_whose_pace_changes_from_step_to_step_is_named() -> None:
    random = np.random.default_rng(3)
    times, pace = packed(1.0, random), random.uniform(1.4, 2.0, (1, SHAPE[1]))
    times[..., ODD] *= pace
    assert [worker.dp for worker in slow_workers(parts(times, 2 * times, 3))] == [ODD]


def test_even_microbatches_tell_nothing_of_the_data() -> None:
    even = np.ones(SHAPE)
    assert not data_are_longer(parts(slowed(even, 1.5), slowed(2 * even, 1.5), 1), ODD)


def test_pauses_of_forward_passes_are_no_longer_data() -> None:
    random = np.random.default_rng(2)
    ahead = slowed(np.ones(SHAPE), 1.5) + 3.0 * (random.random(SHAPE) < 0.1)
    assert not data_are_longer(parts(ahead, slowed(2 * np.ones(SHAPE), 1.5), 2), ODD)


def test_one_microbatch_in_each_step_tells_the_data_where_the_peers_vary_as_well() -> None:
    random = np.random.default_rng(4)
    times = packed(2.5, random, (1, 128, SHAPE[2]))
    assert data_are_longer(parts(times, 2 * times, 4), ODD)

    throttled = np.ones((1, 128, SHAPE[2]))
    throttled[..., ODD] *= random.uniform(1.3, 2.0, (1, 128))
    assert not data_are_longer(parts(throttled, 2 * throttled, 4), ODD)


def test_passes_that_cannot_be_paired_tell_nothing() -> None:
    times = packed(2.5, np.random.default_rng(5))
    ahead, back = parts(times, 2 * times, 5)
    assert not data_are_longer([ahead], ODD)
    assert not data_are_longer([back], ODD)


def test_a_machine_that_slows_some_microbatches_more_than_others_in_each_step_is_named() -> None:
    """As with chunks of which one is slowed more, or a first microbatch that is longer: it stays, and is no data."""
    factors, even = np.ones(SHAPE), np.ones(SHAPE)
    factors[:, :, ODD] = np.linspace(1.3, 1.8, SHAPE[0])[:, None]
    found = parts(even * factors, 2 * even * factors, 6)
    assert not data_are_longer(found, ODD)
    assert [worker.dp for worker in slow_workers(found)] == [ODD]
