"""Which rank's forward pass is longer than its peers', from arrays of steps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.models.slow_forward import ForwardConfig, find_slow_forward, forward_excess_ratios
from tocsin.models.steps import PHASES, StepWindow

STEP_COUNT, RANK_COUNT = 6, 6
HOSTS = np.array([f"n{rank}" for rank in range(RANK_COUNT)])
SHARES = {"data": 0.02, "forward": 0.33, "backward": 0.6, "optimizer": 0.05}


def window(
    factors: dict[int, float], *, seed: int = 0, jitter_ratio: float = 0.01, ranks: int = RANK_COUNT
) -> StepWindow:
    """Steps of a second, in which some ranks' forward passes are so many times as long."""
    draw = np.random.default_rng(seed)
    shape = (STEP_COUNT, ranks)
    phases = np.array([SHARES.get(name, 0.0) * (1 + jitter_ratio * draw.standard_normal(shape)) for name in PHASES])
    for rank, factor in factors.items():
        phases[PHASES.index("forward"), :, rank] *= factor
    own = phases.sum(axis=0)
    duration = np.broadcast_to(own.max(axis=1, keepdims=True), shape)
    return StepWindow(duration, duration - own, phases, np.zeros(ranks, np.int64))


@given(st.integers(0, RANK_COUNT - 1), st.floats(1.1, 1.3), st.integers(0, 50))
def test_the_rank_whose_forward_pass_is_longer_is_found_whoever_it_is(rank: int, factor: float, seed: int) -> None:
    found = find_slow_forward(window({rank: factor}, seed=seed), HOSTS, ForwardConfig())

    assert found is not None
    assert found.column == rank
    assert found.excess_ratio == pytest.approx(factor - 1, abs=0.03)
    assert found.score >= 1.0


@given(st.integers(0, 300), st.sampled_from((0.01, 0.03, 0.05)))
def test_noise_alone_finds_nobody_at_one_look(seed: int, jitter_ratio: float) -> None:
    assert find_slow_forward(window({}, seed=seed, jitter_ratio=jitter_ratio), HOSTS, ForwardConfig()) is None


@pytest.mark.parametrize(
    ("factors", "ranks"),
    [({2: 1.05}, RANK_COUNT), ({2: 1.2, 4: 1.15}, RANK_COUNT), ({1: 1.2}, 4)],
    ids=["less than two thirds of a tenth", "two at once", "three peers"],
)
def test_nobody_is_found(factors: dict[int, float], ranks: int) -> None:
    assert find_slow_forward(window(factors, ranks=ranks), HOSTS[:ranks], ForwardConfig()) is None


def test_a_pass_that_nobody_measures_has_no_excess() -> None:
    made = window({})
    made.phase_seconds[PHASES.index("forward")] = np.nan

    assert np.isnan(forward_excess_ratios(made)).all()
    assert find_slow_forward(made, HOSTS, ForwardConfig()) is None
