"""What waiting for transfers and for data costs a step, and whose it is."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tocsin.models.step_causes import COMMUNICATION, DATA, LOADER, SERVICE, StepCauses, find_step_causes
from tocsin.models.step_waits import UsualWaits
from tocsin.models.steps import StepWindow

FloatArray = NDArray[np.float64]
STEPS, RANKS = 24, 8
USUAL = UsualWaits(1.0, 0.1, 0.002, 0.002)
"""Of the job that ``found_of`` makes without a fault."""


def found_of(
    waits: FloatArray | float = 0.002,
    transfers: FloatArray | float = 0.0,
    compute_ratio: float = 1.0,
    stages: int = 1,
    before: UsualWaits | None = USUAL,
) -> StepCauses:
    """The causes of steps of eight ranks that compute 1 s each, and communicate 0.1 s after the last of them.

    Args:
        waits: seconds for which each rank waits for its data, shape (steps, ranks).
        transfers: seconds by which the communication of a step is longer, shape (steps, 1).
        compute_ratio: how much more the ranks compute.
        stages: pipeline stages; half a second of idle time is added for each one beyond the first.
        before: what was usual before.
    """
    draw = np.random.default_rng(0)
    noise = 1.0 + draw.normal(0.0, 0.002, (2, STEPS, RANKS))
    forward, backward = 0.35 * compute_ratio * noise[0], 0.65 * compute_ratio * noise[1]
    data = np.zeros((STEPS, RANKS)) + waits
    own = forward + backward + data
    idle = 0.1 + 0.5 * compute_ratio * (stages - 1) + draw.normal(0.0, 0.002, (STEPS, 1)) + transfers
    duration = np.broadcast_to(own.max(axis=1, keepdims=True) + idle, own.shape)
    phases = np.stack([data, forward, backward, np.zeros_like(own)])
    found = find_step_causes(
        StepWindow(duration, duration - own, phases, np.arange(RANKS) * stages // RANKS), before=before
    )
    assert found is not None
    return found


def told(found: StepCauses) -> set[str]:
    """The causes that cost a hundredth at least."""
    return {name for name, share in found.costs.items() if share >= 0.01}


def test_a_job_whose_waits_are_as_usual_has_no_cause() -> None:
    found = found_of()
    assert told(found) == set()
    assert found.usual is not None
    assert found.usual.idle_seconds == pytest.approx(0.1, abs=0.01)
    assert found.usual.data_seconds == 0.002


def test_transfers_that_are_longer_than_before_in_all_steps_cost_what_they_are_longer() -> None:
    found = found_of(transfers=0.3)
    assert told(found) == {COMMUNICATION}
    assert found.costs[COMMUNICATION] == pytest.approx(0.3 / 1.4, abs=0.01)
    assert found.slowdown_ratio == pytest.approx(1.4 / 1.1, abs=0.02)
    assert told(found_of(transfers=0.3, before=None)) == set()  # alike in all steps, and nothing is known before


def test_transfers_that_are_longer_now_and_then_need_no_past() -> None:
    transfers = np.where(np.arange(STEPS) % 3 == 0, 0.9, 0.0)[:, None]
    found = found_of(transfers=transfers, before=None)
    assert told(found) == {COMMUNICATION}
    assert found.costs[COMMUNICATION] == pytest.approx(0.3 / 1.4, abs=0.01)


def test_a_pipeline_that_computes_longer_idles_longer_and_its_transfers_are_the_same() -> None:
    usual = UsualWaits(1.0, 0.6, 0.002, 0.002)
    assert told(found_of(compute_ratio=1.5, stages=2, before=usual)) == set()


def test_waiting_of_all_ranks_beyond_the_usual_is_a_service_that_they_share() -> None:
    found = found_of(waits=0.5)
    assert told(found) == {SERVICE}
    assert found.costs[SERVICE] == pytest.approx(0.5 / 1.6, abs=0.01)
    assert told(found_of(waits=0.5, before=UsualWaits(1.0, 0.1, 0.002, 0.5))) == set()


@pytest.mark.parametrize("stages", [1, 2])
def test_waiting_of_one_rank_is_its_loader(stages: int) -> None:
    waits = np.full((STEPS, RANKS), 0.002)
    waits[::2, 1] = 0.6
    found = found_of(waits=waits, stages=stages, before=None)
    assert told(found) == {LOADER}
    assert found.costs[LOADER] == pytest.approx(0.3 / (1.4 + 0.5 * (stages - 1)), abs=0.02)
    assert found.late_column == 1


def test_waiting_of_changing_ranks_is_nobodys() -> None:
    waits = np.full((STEPS, RANKS), 0.002)
    waits[np.arange(STEPS), np.arange(STEPS) % RANKS] = 0.4
    found = found_of(waits=waits)
    assert (told(found), found.late_column) == ({LOADER}, -1)


def test_the_last_stage_has_time_to_load_until_the_first_microbatch_comes() -> None:
    early, late = (np.where(np.arange(RANKS) == rank, 0.08, 0.002) + np.zeros((STEPS, 1)) for rank in (0, 7))
    assert found_of(waits=early, stages=2).costs[LOADER] > 0.04
    assert found_of(waits=late, stages=2).costs[LOADER] < 0.01


def test_ranks_that_load_nothing_wait_for_nothing() -> None:
    found = found_of(waits=0.0)
    assert not told(found) & {SERVICE, LOADER, DATA}
