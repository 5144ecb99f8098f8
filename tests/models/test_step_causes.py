"""Causes of slowness by the form of step times: who is slow, in which steps, and in which passes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tocsin.models.step_causes import DATA, JITTER, MACHINE, STAGE, StepCauses, find_step_causes
from tocsin.models.steps import StepWindow

FloatArray = NDArray[np.float64]
LINE_RATIO = 0.1 / 1.1
"""Share of the job's time from which on a cause is told."""


def window_of(
    forward: FloatArray, backward: FloatArray, stages: NDArray[np.int64] | None = None, transfer: float = 0.02
) -> StepWindow:
    """Synchronous steps of ranks with these passes, shape (steps, ranks)."""
    own = forward + backward
    duration = np.broadcast_to(own.max(axis=1, keepdims=True) + transfer, own.shape).copy()
    phases = np.stack([np.zeros_like(own), forward, backward, np.zeros_like(own)])
    roles = np.zeros(own.shape[1], np.int64) if stages is None else stages
    return StepWindow(duration, duration - own, phases, roles)


def passes(ranks: int = 8, steps: int = 24, noise: float = 0.02, seed: int = 0) -> tuple[FloatArray, FloatArray]:
    """Forward and backward seconds of a healthy job with independent noise."""
    draw = np.random.default_rng(seed)
    forward, backward = (draw.normal(1.0, noise, (steps, ranks)) for _ in range(2))
    return 0.4 * forward, 0.6 * backward


def lengths(ranks: int, steps: int = 24, seed: int = 1) -> FloatArray:
    """How much longer than usual the passes of each rank are in each step."""
    return np.clip(np.random.default_rng(seed).normal(1.0, 0.3, (steps, ranks)), 0.3, None)


def found_of(window: StepWindow) -> StepCauses:
    """The causes of a window that has some."""
    found = find_step_causes(window)
    assert found is not None
    return found


def told(found: StepCauses) -> set[str]:
    """The causes that cost enough to be told."""
    return {cause for cause, ratio in found.costs.items() if ratio >= LINE_RATIO}


@pytest.mark.parametrize(("ranks", "noise"), [(4, 0.05), (8, 0.05), (64, 0.05), (1024, 0.05), (64, 0.08)])
def test_a_healthy_job_has_no_cause_however_many_ranks_it_has(ranks: int, noise: float) -> None:
    found = found_of(window_of(*passes(ranks, noise=noise)))

    assert told(found) == set()
    assert found.slowdown_ratio < 1.3


def test_lengths_that_differ_in_each_step_are_data() -> None:
    forward, backward = passes()
    longer = lengths(8)
    found = found_of(window_of(forward * longer, backward * longer))

    assert told(found) == {DATA}
    assert found.costs[DATA] == pytest.approx(1.0 - 1.0 / found.slowdown_ratio, abs=0.06)


def test_a_stage_that_is_longer_on_all_replicas_is_the_stage() -> None:
    forward, backward = passes(16)
    stages = np.arange(16) // 4
    factor = np.where(stages == 3, 1.4, 1.0)
    found = found_of(window_of(forward * factor, backward * factor, stages))

    assert told(found) == {STAGE}
    assert found.long_stage == 3
    assert found.stage_ratio == pytest.approx(1.4 / 1.1 - 1.0, abs=0.02)


def test_a_stage_that_is_longer_on_one_replica_is_a_machine() -> None:
    forward, backward = passes(16)
    stages = np.arange(16) // 4
    factor = np.where(np.arange(16) == 13, 1.4, 1.0)
    found = found_of(window_of(forward * factor, backward * factor, stages))

    assert told(found) == {MACHINE}


def test_pauses_of_changing_ranks_are_jitter() -> None:
    forward, backward = passes()
    for step in range(24):
        forward[step, (step * 5) % 8] += 0.4
    assert told(found_of(window_of(forward, backward))) == {JITTER}


@pytest.mark.parametrize("every", [1, 3])
def test_pauses_and_lengths_of_one_rank_are_neither_jitter_nor_data(every: int) -> None:
    forward, backward = passes()
    forward[::every, 2] += 0.4
    assert not told(found_of(window_of(forward, backward))) & {JITTER, DATA}
    forward, backward = passes()
    forward[::every, 2] *= 1.6
    backward[::every, 2] *= 1.6
    assert not told(found_of(window_of(forward, backward))) & {JITTER, DATA}


@pytest.mark.parametrize("every", [3, 6])
def test_pauses_at_the_same_step_on_all_ranks_are_no_jitter(every: int) -> None:
    forward, backward = passes()
    forward[::every] += 0.4
    assert told(found_of(window_of(forward, backward))) == set()


def test_lengths_that_differ_by_step_and_are_equal_on_all_ranks_are_no_data() -> None:
    forward, backward = passes()
    longer = np.where(np.arange(24) % 3 == 0, 2.0, 1.0)[:, None]
    found = found_of(window_of(forward * longer, backward * longer))

    assert told(found) == set()
    assert found.slowdown_ratio < 1.1


def test_a_long_stage_and_uneven_data_at_once_are_both_told_with_their_shares() -> None:
    forward, backward = passes(16)
    stages, longer = np.arange(16) // 4, lengths(16)
    factor = longer * np.where(stages == 3, 1.6, 1.0)
    found = found_of(window_of(forward * factor, backward * factor, stages))

    assert told(found) == {STAGE, DATA}
    assert sum(found.costs.values()) == pytest.approx(1.0 - 1.0 / found.slowdown_ratio, abs=0.1)


def test_a_slow_machine_beside_uneven_data_is_no_stage_and_no_jitter() -> None:
    forward, backward = passes()
    longer = lengths(8)
    longer[:, 3] *= 2.5
    assert not told(found_of(window_of(forward * longer, backward * longer))) & {STAGE, JITTER}


def test_passes_that_vary_by_themselves_are_no_data() -> None:
    forward, backward = passes(noise=0.3)
    assert DATA not in told(found_of(window_of(forward, backward)))


def test_too_few_steps_or_ranks_or_unknown_passes_have_no_answer() -> None:
    assert find_step_causes(window_of(*passes(steps=11))) is None
    assert find_step_causes(window_of(*passes(ranks=2))) is None
    forward, backward = passes()
    window = window_of(forward, backward)
    unknown = StepWindow(
        window.duration_seconds, window.communication_seconds, np.full_like(window.phase_seconds, np.nan), window.roles
    )
    assert find_step_causes(unknown) is None


@settings(max_examples=30, deadline=None)
@given(st.integers(3, 12), st.floats(0.0, 0.6), st.integers(0, 1000), st.randoms(use_true_random=False))
def test_shares_lie_between_none_and_all_and_ranks_have_no_names(
    ranks: int, scatter: float, seed: int, order: object
) -> None:
    forward, backward = passes(ranks, noise=0.02 + scatter / 4, seed=seed)
    factor = np.exp(np.random.default_rng(seed).normal(0.0, scatter, forward.shape))
    forward, backward = forward * factor, backward * factor
    found = found_of(window_of(forward, backward))
    moved = list(range(ranks))
    order.shuffle(moved)  # type: ignore[attr-defined]  # a ``random.Random``
    again = found_of(window_of(forward[:, moved], backward[:, moved]))

    assert all(0.0 <= ratio <= 1.0 for ratio in found.costs.values())
    assert found.slowdown_ratio >= 1.0
    assert again.costs == pytest.approx(found.costs)
