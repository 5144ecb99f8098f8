"""Scenarios beside the plain reference, which simulates one operation at a time from the schedule alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from statistics import fmean, median

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models.whatif.plain import Layout, Name, Seconds, simulate_plainly
from tests.models.whatif.traces import Effects, Made, make
from tocsin.models.whatif import optypes, scenarios
from tocsin.models.whatif.scenarios import Slowdowns, model_of, slowdowns

UNEVEN = Effects(stages={1: 1.3}, workers={(0, 0): 1.2}, data_sigma=0.3, pause_probability=0.05, pause_seconds=0.2)
LAYOUTS = (
    Layout(1, 1),
    Layout(3, 1),
    Layout(3, 1, overlaps=True),
    Layout(2, 2),
    Layout(2, 4, microbatches=3),
    Layout(2, 4, microbatches=6, overlaps=True),
    Layout(1, 3),
    Layout(2, 2, vpp=2),
    Layout(2, 4, vpp=2, microbatches=8, overlaps=True),
    Layout(2, 2, vpp=3, lacks_first_receive=True),
    Layout(1, 4, vpp=2, lacks_first_receive=True, overlaps=True),
)
Chosen = Callable[[Name, int], bool]


def of_type(kind: str) -> Chosen:
    return lambda name, _: optypes.MERGED.get(name[0], name[0]) == kind


def of_stage(stage: int) -> Chosen:
    return lambda name, _: name[2] == stage


def of_rank(rank: int) -> Chosen:
    return lambda _, other: other == rank


class Plain:
    """What-if figures by the plain reference."""

    def __init__(self, made: Made) -> None:
        self.made = made
        by_type: dict[str, list[float]] = {}
        for step in made.moving_seconds:
            for (name, _), seconds in step.items():
                by_type.setdefault(name[0], []).append(seconds)
        self.ideal = {
            kind: median(values) if kind in optypes.MEDIAN else fmean(values) for kind, values in by_type.items()
        }

    def steps(self, is_real: Chosen) -> list[float]:
        """Step times with some operations real and all others ideal."""
        return [
            simulate_plainly(self.made.job, self._seconds(real, is_real)).step_seconds
            for real in self.made.moving_seconds
        ]

    def _seconds(self, real: dict[tuple[Name, int], float], is_real: Chosen) -> Seconds:
        return lambda name, rank: real[name, rank] if is_real(name, rank) else self.ideal[name[0]]

    def mean(self, is_real: Chosen) -> float:
        return fmean(self.steps(is_real))

    def share_removed(self, is_fixed: Chosen) -> float:
        real, ideal = self.mean(lambda *_: True), self.mean(lambda *_: False)
        return (real - self.mean(lambda name, rank: not is_fixed(name, rank))) / (real - ideal)


@cache
def both(layout: Layout) -> tuple[Plain, Slowdowns]:
    made = make(layout, UNEVEN, 3, step_count=3)
    return Plain(made), slowdowns(model_of(made.trace))


def near(found: object, expected: object) -> None:
    assert np.allclose(np.asarray(found), np.asarray(expected), rtol=0, atol=2e-6)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_real_and_ideal_steps_are_those_of_the_reference(layout: Layout) -> None:
    plain, found = both(layout)

    near(found.real_seconds, plain.steps(lambda *_: True))
    near(found.ideal_seconds, plain.steps(lambda *_: False))
    near(found.discrepancy_ratio, 1.0)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_parts_are_those_of_the_reference(layout: Layout) -> None:
    plain, found = both(layout)
    ideal = plain.mean(lambda *_: False)

    assert set(found.optype_ratios) == {optypes.MERGED.get(kind, kind) for kind in plain.ideal}
    for kind, ratio in found.optype_ratios.items():
        near(ratio, plain.mean(of_type(kind)) / ideal)
    for stage in range(layout.pp):
        steps = plain.steps(of_stage(stage))
        near(found.by_stage[stage] * found.ideal_seconds, steps)
        near(found.stage_ratios[stage], fmean(steps) / ideal)
    for rank in range(layout.dp):
        steps = plain.steps(of_rank(rank))
        near(found.by_dp_rank[rank] * found.ideal_seconds, steps)
        near(found.dp_rank_ratios[rank], fmean(steps) / ideal)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_what_workers_and_the_last_stage_explain_is_that_of_the_reference(layout: Layout) -> None:
    plain, found = both(layout)
    slowest = set(found.slowest_workers)
    expected = plain.share_removed(lambda name, rank: (rank, name[2]) in slowest)

    assert found.workers.removed_ratio == pytest.approx(expected, abs=1e-4)
    assert len(slowest) == -(-layout.dp * layout.pp * 3 // 100)
    if layout.pp == 1:
        assert found.last_stage is None
    else:
        assert found.last_stage is not None
        expected = plain.share_removed(lambda name, _: name[2] == layout.pp - 1)
        assert found.last_stage.removed_ratio == pytest.approx(expected, abs=1e-4)


def test_collectives_of_a_worker_run_one_after_the_other() -> None:
    slow = Effects(slow_transfers={"params-all-gather": (1.0, 40.0)})
    made = make(Layout(2, 2, vpp=3), slow, 1, step_count=2)

    near(slowdowns(model_of(made.trace)).real_seconds, Plain(made).steps(lambda *_: True))


def test_communication_that_seems_to_end_before_it_began_takes_no_time() -> None:
    trace = make(Layout(2, 1), Effects(), 1, step_count=1).trace
    late = (trace.optype == trace.words.index("params-all-gather")) & (trace.dp_rank == 1)
    model = model_of(replace(trace, start_seconds=trace.start_seconds + np.where(late, 5.0, 0.0)))
    gather = next(op.index for op in model.arrays.ops if op.optype == "params-all-gather")

    assert model.real_seconds[gather, 0].tolist() == [0.0, pytest.approx(0.02, rel=0.2)]


@pytest.mark.parametrize("values", [1, 700, 5_000])
def test_simulating_in_parts_changes_no_figure(values: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make(LAYOUTS[8], UNEVEN, 5, step_count=3)
    whole = slowdowns(model_of(made.trace))
    monkeypatch.setattr(scenarios, "_CHUNK_VALUES", values)
    parts = slowdowns(model_of(made.trace))

    assert parts.real_seconds.tolist() == whole.real_seconds.tolist()
    assert parts.by_dp_rank.tolist() == whole.by_dp_rank.tolist()
    assert parts.by_stage.tolist() == whole.by_stage.tolist()
    assert parts.workers == whole.workers


@settings(max_examples=8)
@given(
    st.sampled_from(LAYOUTS),
    st.floats(0.0, 0.02),
    st.integers(0, 1_000),
)
def test_launch_delays_are_the_discrepancy_and_change_no_ratio(layout: Layout, delay: float, seed: int) -> None:
    on_time, late = (
        slowdowns(model_of(make(layout, Effects(delay_seconds=seconds), seed, step_count=2).trace))
        for seconds in (0.0, delay)
    )

    assert on_time.discrepancy_ratio == pytest.approx(1.0, abs=1e-5)
    assert late.discrepancy_ratio >= 1.0 - 1e-5
    assert late.real_seconds.mean() <= late.traced_seconds.mean() + 1e-5


def test_a_job_of_equal_times_is_ideal() -> None:
    found = slowdowns(model_of(make(Layout(2, 4), Effects(noise_sigma=0.0), 0, step_count=2).trace))

    near(found.slowdown_ratio, 1.0)
    near(list(found.optype_ratios.values()), 1.0)
    near(found.worker_ratios, 1.0)
