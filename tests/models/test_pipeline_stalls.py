"""What uneven microbatches make a pipeline wait, beside a simulation of another author."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.bench.why_job import Work, play
from tocsin.models.pipeline_stalls import expected_stalls
from tocsin.models.step_causes import DATA, StepCauses, find_step_causes
from tocsin.models.steps import StepWindow

FloatArray = NDArray[np.float64]


def work_of(lengths: FloatArray, stages: int) -> Work:
    """Steps of a pipeline that computes these microbatches, shape (steps, microbatches, replicas), and nothing else."""
    steps, count, replicas = lengths.shape
    passes = np.repeat(lengths[:, :, None], stages, axis=2)
    pairs, tail = np.zeros((steps, count, stages - 1, replicas)), np.zeros((steps, stages))
    workers, ranks = np.zeros((steps, stages, replicas)), np.zeros((steps, stages, replicas, 1))
    return Work(
        passes / 3, passes * 2 / 3, pairs, pairs, tail, tail, workers, workers, ranks + 1, ranks, ranks, lengths
    )


def drawn(steps: int, count: int, replicas: int, deviation: float, *, together: bool = False) -> FloatArray:
    """Lengths of microbatches with a mean of 0.1 s; ``together``: all of a rank's in a step are as long."""
    shape = (steps, 1 if together else count, replicas)
    lengths = np.random.default_rng(1).lognormal(-(deviation**2) / 2, deviation, shape)
    return np.repeat(lengths, count // shape[1], axis=1) * 0.1


def causes_of(lengths: FloatArray, stages: int, *, known: bool = True) -> tuple[StepCauses, float]:
    """Return the causes that a pipeline's step records show, and the share of its time that uneven lengths cost."""
    work = work_of(lengths, stages)
    seconds = play(work).step_seconds
    even = play(work_of(np.full_like(lengths, lengths.mean()), stages)).step_seconds
    steps = lengths.shape[0]
    forward, backward = (part.sum(axis=1).reshape(steps, -1) for part in (work.forward, work.backward))
    duration = np.broadcast_to(seconds[:, None], forward.shape)
    phases = np.stack([np.zeros_like(forward), forward, backward, np.zeros_like(forward)])
    stage, replica = (one.ravel() for one in np.indices((stages, lengths.shape[2])))
    window = StepWindow(duration, duration - forward - backward, phases, stage)
    found = find_step_causes(window, replica if known else None)
    assert found is not None
    return found, float(1.0 - even.mean() / seconds.mean())


@pytest.mark.parametrize(("stages", "variation"), [(1, 0.3), (4, 0.0)])
def test_without_a_pipeline_or_with_equal_steps_nobody_stalls(stages: int, variation: float) -> None:
    assert expected_stalls(stages, 8, variation).mean_ratio == 0.0


@pytest.mark.parametrize(("stages", "replicas", "variation"), [(2, 2, 0.1), (4, 8, 0.2), (8, 4, 0.1)])
def test_stalls_are_those_of_a_simulated_pipeline(stages: int, replicas: int, variation: float) -> None:
    count, steps = 2 * stages, 4000 // replicas
    lengths = drawn(steps, count, replicas, float(np.sqrt(np.log1p(count * variation**2))))
    lengths /= lengths.mean() * count
    seconds = play(work_of(lengths, stages)).step_seconds - 3e-3  # the simulation's barrier and embedding
    waits = seconds - lengths.sum(axis=1).max(axis=1)
    found = expected_stalls(stages, replicas, variation)

    assert found.mean_ratio == pytest.approx(waits.mean() - (stages - 1) / count, rel=0.15)
    assert found.spread_ratio == pytest.approx(waits.std(), rel=0.2)


def test_more_stages_more_replicas_and_more_variation_stall_longer() -> None:
    usual = expected_stalls(4, 4, 0.1).mean_ratio
    assert expected_stalls(8, 4, 0.1).mean_ratio > usual
    assert expected_stalls(4, 16, 0.1).mean_ratio > usual
    assert expected_stalls(4, 4, 0.2).mean_ratio > usual


@pytest.mark.parametrize(
    ("stages", "count", "within"), [(2, 4, 0.1), (4, 8, 0.1), (8, 16, 0.1), (4, 4, 0.15), (4, 16, 0.15), (8, 24, 0.15)]
)
def test_step_records_of_a_pipeline_tell_what_uneven_microbatches_cost(stages: int, count: int, within: float) -> None:
    """Closest at two microbatches for each stage, which is what is reckoned with where records do not tell."""
    found, truth = causes_of(drawn(24, count, 4, 0.5), stages)
    assert truth > 0.2
    assert found.costs[DATA] == pytest.approx(truth, abs=within)
    assert 1.0 - 1.0 / found.slowdown_ratio == pytest.approx(truth, abs=within)


def test_microbatches_that_are_long_together_stall_less() -> None:
    found, truth = causes_of(drawn(24, 8, 4, 0.2, together=True), 4)
    assert found.costs[DATA] == pytest.approx(truth, abs=0.1)


def test_of_unknown_replicas_only_the_sums_are_compared() -> None:
    lengths = drawn(24, 8, 4, 0.5)
    found, truth = causes_of(lengths, 4, known=False)
    assert found.costs[DATA] < truth / 2
