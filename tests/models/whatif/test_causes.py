"""Causes of slow jobs: the right one is named, and no machine where none is at fault."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.models.whatif.plain import Layout
from tests.models.whatif.traces import Effects, make
from tocsin.models.whatif.causes import Reasons, SlowdownCause, reasons_of
from tocsin.models.whatif.scenarios import model_of, slowdowns

PIPELINE = Layout(2, 4, microbatches=8)
LAYOUTS = (
    Layout(4, 1, microbatches=6),
    Layout(4, 1, microbatches=6, overlaps=True),
    PIPELINE,
    Layout(2, 4, vpp=2, microbatches=8, overlaps=True),
    Layout(4, 2, vpp=3, microbatches=4, lacks_first_receive=True),
)
PIPELINES = LAYOUTS[2:]
INNOCENT: Mapping[SlowdownCause, Effects] = {
    SlowdownCause.DATA: Effects(data_sigma=0.4),
    SlowdownCause.JITTER: Effects(pause_probability=0.06, pause_seconds=0.3),
    SlowdownCause.COMMUNICATION: Effects(
        slow_transfers={"params-all-gather": (0.3, 40.0), "grads-reduce-scatter": (0.3, 40.0)}
    ),
}


def reasons(layout: Layout, effects: Effects, seed: int) -> Reasons:
    model = model_of(make(layout, effects, seed).trace)
    return reasons_of(model, slowdowns(model))


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("cause", INNOCENT)
def test_a_cause_without_a_place_is_named_and_no_machine(cause: SlowdownCause, layout: Layout) -> None:
    found = reasons(layout, INNOCENT[cause], 1)

    assert not found.machines
    assert found.cause in (cause, None)
    assert found.shares[cause] > 0.85
    assert found.shares[SlowdownCause.STAGE] < 0.05
    assert sum(found.shares.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("layout", PIPELINES, ids=str)
def test_a_long_last_stage_is_named_and_no_machine(layout: Layout, seed: int) -> None:
    found = reasons(layout, Effects(stages={layout.pp - 1: 1.5}), seed)

    assert found.cause is SlowdownCause.STAGE
    assert found.shares[SlowdownCause.STAGE] > 0.8
    assert found.long_stage[0] == layout.pp - 1
    assert not found.machines


@pytest.mark.parametrize("seed", range(1))
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_slow_worker_is_named(layout: Layout, seed: int) -> None:
    found = reasons(layout, Effects(workers={(1, layout.pp - 1): 1.6}), seed)

    assert found.cause is SlowdownCause.MACHINE
    assert [(worker.dp, worker.stage) for worker in found.machines] == [(1, layout.pp - 1)]
    assert found.machines[0].excess_ratio == pytest.approx(0.6, abs=0.1)
    assert found.shares[SlowdownCause.MACHINE] > 0.8


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_a_healthy_job_has_no_cause(layout: Layout, seed: int) -> None:
    found = reasons(layout, Effects(noise_sigma=0.03), seed)

    assert found.cause is None
    assert not found.machines


def test_a_slow_machine_is_found_beside_a_long_stage_and_uneven_data() -> None:
    found = reasons(PIPELINE, Effects(stages={3: 1.2}, workers={(0, 3): 1.5}, data_sigma=0.1), 1)

    assert [(worker.dp, worker.stage) for worker in found.machines] == [(0, 3)]
    assert found.shares[SlowdownCause.MACHINE] > found.shares[SlowdownCause.DATA]
    assert found.shares[SlowdownCause.STAGE] > 0.1


def test_a_rank_whose_data_are_always_longer_is_no_machine() -> None:
    every_stage = {(1, stage): 1.4 for stage in range(4)}

    assert not reasons(PIPELINE, Effects(workers=every_stage), 2).machines


def test_a_rank_with_a_long_source_of_data_is_no_machine() -> None:
    found = reasons(Layout(4, 1, microbatches=8), Effects(long_ranks={1: 2.0}), 2)

    assert not found.machines
    assert found.cause is not SlowdownCause.MACHINE


def test_a_worker_that_recovers_is_no_lasting_one() -> None:
    found = reasons(Layout(4, 1), Effects(workers={(1, 0): 3.0}, slow_steps=5), 2)

    assert not found.machines


def test_of_two_workers_without_a_pipeline_none_is_named() -> None:
    assert not reasons(Layout(2, 1), Effects(workers={(1, 0): 1.6}), 2).machines


def test_a_drift_of_the_clocks_is_no_correlation_of_the_data() -> None:
    found = reasons(PIPELINE, Effects(data_sigma=0.03), 4)

    assert found.correlation.r.min() > 0.3
    assert found.correlation.median_r is None


@pytest.mark.parametrize("seed", range(3))
def test_the_correlation_tells_data_from_pauses(seed: int) -> None:
    data, pauses = (reasons(PIPELINE, INNOCENT[cause], seed) for cause in (SlowdownCause.DATA, SlowdownCause.JITTER))

    assert data.correlation.median_r is not None
    assert data.correlation.median_r > 0.9
    assert pauses.correlation.median_r is not None
    assert abs(pauses.correlation.median_r) < 0.4
