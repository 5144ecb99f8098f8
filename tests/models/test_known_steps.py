"""Steps whose numbers are missing: which ranks and steps are judged, and what is told of them."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.models.test_step_causes import found_of, lengths, passes, told, window_of
from tocsin.models.known_steps import known_steps
from tocsin.models.step_causes import COMMUNICATION, DATA, JITTER, LOADER, MACHINE, STAGE, find_step_causes
from tocsin.models.step_waits import UsualWaits
from tocsin.models.steps import PHASES, StepWindow

FloatArray = NDArray[np.float64]
STAGES = np.arange(16) // 4
FORWARD, BACKWARD = PHASES.index("forward"), PHASES.index("backward")
LOST_RATIO = 0.2


def lost(window: StepWindow, ratio: float = LOST_RATIO, seed: int = 3) -> StepWindow:
    """The window without a share of its records, drawn at random."""
    gone = np.random.default_rng(seed).random(window.duration_seconds.shape) < ratio
    return StepWindow(
        np.where(gone, np.nan, window.duration_seconds),
        np.where(gone, np.nan, window.communication_seconds),
        np.where(gone, np.nan, window.phase_seconds),
        window.roles,
    )


def untold_forward(window: StepWindow, *columns: int) -> StepWindow:
    """The window of a job in which some ranks never tell their forward passes."""
    phases = window.phase_seconds.copy()
    phases[FORWARD][:, list(columns)] = np.nan
    return replace(window, phase_seconds=phases)


def untold_communication(window: StepWindow, *columns: int) -> StepWindow:
    """The window of a job in which some ranks never tell their communication; without columns none does."""
    communication = window.communication_seconds.copy()
    communication[:, list(columns) or slice(None)] = np.nan
    return replace(window, communication_seconds=communication)


def with_paused(ranks: int = 8) -> StepWindow:
    """In each step another rank pauses in its forward pass."""
    forward, backward = passes(ranks)
    forward[np.arange(24), (np.arange(24) * 5) % ranks] += 0.4
    return window_of(forward, backward)


def with_lengths() -> StepWindow:
    forward, backward = passes()
    longer = lengths(8)
    return window_of(forward * longer, backward * longer)


def with_long_stage() -> StepWindow:
    forward, backward = passes(16)
    factor = np.where(STAGES == 3, 1.4, 1.0)
    return window_of(forward * factor, backward * factor, STAGES)


def with_slow_rank(factor: float = 1.6, column: int = 2) -> StepWindow:
    forward, backward = passes()
    forward[:, column] *= factor
    backward[:, column] *= factor
    return window_of(forward, backward)


GUILTY = pytest.mark.parametrize(
    ("whole", "cause"),
    [(with_paused(), JITTER), (with_lengths(), DATA), (with_long_stage(), STAGE), (with_slow_rank(), MACHINE)],
    ids=[JITTER, DATA, STAGE, MACHINE],
)


@GUILTY
class TestWhatIsToldAllTheSame:
    def test_where_a_fifth_of_the_records_is_lost(self, whole: StepWindow, cause: str) -> None:
        found, before = found_of(lost(whole)), found_of(whole)
        assert told(found) == {cause}
        assert found.costs[cause] <= before.costs[cause] + 0.02
        assert found.costs[cause] >= (1.0 - LOST_RATIO) * before.costs[cause] - 0.02

    def test_where_one_rank_never_tells_its_forward_passes(self, whole: StepWindow, cause: str) -> None:
        found = found_of(untold_forward(whole, 5))
        assert told(found) == {cause}
        assert found.costs[cause] == pytest.approx(found_of(whole).costs[cause], abs=0.08)

    def test_where_one_rank_never_tells_its_communication(self, whole: StepWindow, cause: str) -> None:
        found = found_of(untold_communication(whole, 5))
        assert told(found) == {cause}
        assert COMMUNICATION not in found.costs

    def test_where_no_rank_tells_its_communication(self, whole: StepWindow, cause: str) -> None:
        found = found_of(untold_communication(whole))
        assert told(found) == {cause}
        assert COMMUNICATION not in found.costs
        assert found.costs[cause] == pytest.approx(found_of(whole).costs[cause], abs=0.02)
        assert found.slowdown_ratio == pytest.approx(found_of(whole).slowdown_ratio, abs=0.02)


class TestLeftOut:
    def test_a_rank_that_pauses_and_tells_no_passes_makes_nobody_guilty(self) -> None:
        forward, backward = passes()
        forward[::2, 5] += 0.6
        assert told(found_of(untold_forward(window_of(forward, backward), 5))) == set()

    @pytest.mark.parametrize("untold", [untold_forward, untold_communication])
    def test_waits_for_a_slow_rank_that_tells_too_little_are_no_long_transfers(self, untold: object) -> None:
        window = untold(with_slow_rank(), 2)  # type: ignore[operator]  # one of two functions
        usual = UsualWaits(1.0, 0.02, 0.001, 0.0)
        found = find_step_causes(window, before=usual)
        assert found is not None
        assert told(found) <= {MACHINE}

    def test_waits_for_a_slow_rank_whose_records_are_lost_now_and_then_are_no_long_transfers(self) -> None:
        window = with_slow_rank(factor=2.5)
        for table in (window.duration_seconds, window.communication_seconds):
            table[::3, 2] = np.nan
        found = find_step_causes(window, before=UsualWaits(1.0, 0.02, 0.001, 0.0))
        assert found is not None
        assert found.costs.get(COMMUNICATION, 0.0) == 0.0

    def test_a_stage_most_of_whose_ranks_are_left_out_may_be_the_longest(self) -> None:
        found = found_of(untold_communication(with_long_stage(), 8, 9))
        assert STAGE not in found.costs
        found = found_of(untold_communication(with_long_stage(), 8))
        assert (told(found), found.long_stage) == ({STAGE}, 3)

    def test_a_late_rank_keeps_its_column_beside_one_that_is_left_out(self) -> None:
        forward, backward = passes()
        window = window_of(forward, backward)
        window.phase_seconds[0][:, 6] = 0.5  # own time holds its wait
        window.phase_seconds[0][:, :6] = 0.001
        window.communication_seconds[:, 6] = 0.02
        late = StepWindow(
            window.duration_seconds + 0.5, window.communication_seconds, window.phase_seconds, window.roles
        )
        late.communication_seconds[:, :6] += 0.5
        late.communication_seconds[:, 7] += 0.5
        found = found_of(untold_communication(late, 1))
        assert (told(found), found.late_column) == ({LOADER}, 6)

    @pytest.mark.parametrize(("left", "answers"), [(5, True), (4, False)])
    def test_the_job_is_judged_by_more_than_half_of_its_ranks(self, left: int, answers: bool) -> None:
        window = untold_forward(with_paused(), *range(left, 8))
        assert (find_step_causes(window) is not None) == answers

    def test_a_rank_counts_with_more_than_half_of_its_steps_and_a_step_with_more_than_half_of_the_ranks(self) -> None:
        window = with_paused()
        for table in (window.duration_seconds, window.communication_seconds):
            table[:12, 0] = np.nan  # half of the steps
            table[12:16, 1:6] = np.nan  # five of the seven others
        steps = known_steps(window)
        assert steps is not None
        assert steps.columns.tolist() == [1, 2, 3, 4, 5, 6, 7]
        assert steps.compute.shape == (20, 7)


class TestInnocent:
    @pytest.mark.parametrize("ranks", [4, 8, 64])
    @pytest.mark.parametrize("seed", range(3))
    def test_a_healthy_job_whose_records_are_lost_has_no_cause(self, ranks: int, seed: int) -> None:
        window = lost(window_of(*passes(ranks, noise=0.05, seed=seed)), seed=seed)
        assert told(found_of(window)) == set()

    def test_a_healthy_job_without_communication_times_has_no_cause(self) -> None:
        assert told(found_of(untold_communication(window_of(*passes(noise=0.05))))) == set()

    def test_pauses_of_one_rank_are_no_jitter_though_records_are_lost(self) -> None:
        forward, backward = passes()
        forward[::3, 2] += 0.4
        assert JITTER not in told(found_of(lost(window_of(forward, backward))))

    def test_pauses_of_all_ranks_are_no_jitter_though_records_are_lost(self) -> None:
        forward, backward = passes()
        forward[::4] += 0.4
        assert told(found_of(lost(window_of(forward, backward)))) == set()

    def test_a_stage_that_is_longer_on_one_replica_is_no_long_stage_though_records_are_lost(self) -> None:
        forward, backward = passes(16)
        factor = np.where(np.arange(16) == 13, 1.4, 1.0)
        window = window_of(forward * factor, backward * factor, STAGES)
        assert told(found_of(lost(window))) == {MACHINE}
        assert told(found_of(untold_communication(window))) == {MACHINE}

    def test_passes_that_hold_the_wait_for_others_show_nobody(self) -> None:
        """A timer that knows no collectives counts the wait for the slowest rank as backward pass."""
        forward, backward = passes(noise=0.005)
        backward[:, 2] += 0.5
        waited = backward + (forward + backward).max(axis=1, keepdims=True) - (forward + backward)
        assert told(found_of(untold_communication(window_of(forward, waited)))) == set()


@settings(max_examples=60, deadline=None)
@given(
    st.integers(3, 12),
    st.floats(0.0, 0.6),
    st.integers(1, 3),
    st.integers(0, 1000),
    st.booleans(),
    st.lists(st.integers(0, 11), max_size=4),
)
def test_no_missing_number_reaches_an_answer(
    ranks: int, ratio: float, stages: int, seed: int, has_past: bool, untold: list[int]
) -> None:
    draw = np.random.default_rng(seed)
    forward, backward = passes(ranks, noise=0.05, seed=seed)
    longer = np.exp(draw.normal(0.0, 0.3, forward.shape))
    window = window_of(forward * longer, backward * longer, np.arange(ranks) * stages // ranks)
    for table in (window.communication_seconds, *window.phase_seconds):
        table[draw.random(table.shape) < ratio] = np.nan
    window = untold_forward(window, *(column for column in untold if column < ranks))
    before = UsualWaits(1.0, None if seed % 2 else 0.02, None if seed % 2 else 0.001, 0.0) if has_past else None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = find_step_causes(window, np.arange(ranks) % max(1, ranks // stages), before)
    if found is None:
        return
    assert all(0.0 <= ratio <= 1.0 for ratio in found.costs.values())
    assert 1.0 <= found.slowdown_ratio < np.inf
    assert np.isfinite([found.step_seconds, found.stage_ratio]).all()
    assert found.usual is not None
    measured = [found.usual.compute_seconds, found.usual.idle_seconds or 0.0, found.usual.spread_seconds or 0.0]
    assert np.isfinite([*measured, found.usual.data_seconds]).all()
