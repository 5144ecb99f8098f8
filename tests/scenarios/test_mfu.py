"""A job whose model FLOPs utilization declines: told where nothing else explains it, and nobody is accused."""

from __future__ import annotations

from typing import Any

import pytest

from tocsin.cli.status import describe
from tocsin.pipeline.detect.mfu.config import MfuConfig
from tocsin.pipeline.lab.testing import JobShape, Scenario, between
from tocsin.pipeline.runtime.embedded.engine import EngineConfig
from tocsin.pipeline.runtime.job_pipeline import JobConfig
from tocsin.pipeline.runtime.step_window_detectors import StepWindowConfig
from tocsin.schemas import events
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import FaultKind

WORK = {"flops_per_step": 8 * 1.7e14, "gpu_name": "NVIDIA H100 80GB HBM3"}
"""About a third of the GPUs' peak."""
SHORT = MfuConfig(block_ns=4 * NS_PER_SECOND, block_count=4, level_count=5, newest_count=3)
"""Blocks of four seconds, so that minutes are enough."""


def mfu_scenario(**work: object) -> Scenario:
    """Return a job of eight ranks that announce their work."""
    scenario = Scenario(
        JobShape(step_seconds=0.5, jitter_ratio=0.02), EngineConfig(job=JobConfig(by_steps=StepWindowConfig(mfu=SHORT)))
    )
    for rank in range(8):
        scenario.at(1).inject(scenario.job.event, rank, events.MODEL, **{**WORK, **work})
    return scenario


def test_a_decline_that_nothing_explains_is_an_incident_without_a_machine() -> None:
    scenario = mfu_scenario()
    scenario.at(60).inject(scenario.job.slow_all, "forward", 1.5)
    named = {"fault": "degraded", "cause": "unknown", "reason": "mfu_declined", "suspects": [], "action": "none"}
    scenario.want(between(70, 95), **named, state="open")
    scenario.run(110).check()
    [first, *_] = scenario.verdicts
    assert first.costs_ratio == pytest.approx(0.14, abs=0.04)
    assert "the job's MFU is 2" in first.evidence[0].text
    assert len({one.verdict_id for one in scenario.verdicts}) == 1


def test_without_the_gpu_s_peak_the_decline_is_told_in_operations() -> None:
    scenario = mfu_scenario(gpu_name="NVIDIA Z1")
    scenario.at(60).inject(scenario.job.slow_all, "forward", 1.5)
    scenario.run(100)
    assert "TFLOP/s of the model's work" in scenario.verdicts[0].evidence[0].text


def test_a_decline_that_a_slow_machine_explains_is_that_machine_s() -> None:
    scenario = mfu_scenario()
    scenario.at(60).inject(scenario.job.slow, 3, "forward", 1.6)
    scenario.want(between(60, 110), suspects=["n03"], fault="fail_slow")
    scenario.run(130).check()
    assert {one.reason for one in scenario.verdicts}.isdisjoint({"mfu_declined"})


def test_a_decline_that_a_slower_job_explains_is_told_once() -> None:
    scenario = mfu_scenario()
    scenario.at(60).inject(scenario.job.slow_all, "forward", 3.0)
    scenario.run(130)
    assert {(one.fault, one.reason) for one in scenario.verdicts} >= {(FaultKind.FAIL_SLOW, "job_wide_slowdown")}
    assert "mfu_declined" not in {one.reason for one in scenario.verdicts}


def test_another_batch_is_nothing() -> None:
    scenario = mfu_scenario()
    scenario.at(60).inject(scenario.job.slow_all, "forward", 1.5)
    for rank in range(8):
        again = {**WORK, "flops_per_step": 10 * 1.7e14}
        scenario.at(61).inject(scenario.job.event, rank, events.MODEL, **again)
    scenario.want_nothing(110)


def test_a_job_that_does_not_tell_its_work_has_no_alarm() -> None:
    scenario = Scenario(
        JobShape(step_seconds=0.5, jitter_ratio=0.02), EngineConfig(job=JobConfig(by_steps=StepWindowConfig(mfu=SHORT)))
    )
    scenario.at(60).inject(scenario.job.slow_all, "forward", 1.5)
    scenario.want_nothing(110)


def _status(scenario: Scenario) -> tuple[Any, list[str]]:
    """Return what ``tocsin status`` is told of the job, and the lines that it shows."""
    [job] = scenario.engine.status()["jobs"]
    return job["mfu"], [line for line in describe(job, []) if line.startswith("  mfu")]


def test_status_shows_the_mfu_of_now_and_the_best_level() -> None:
    scenario = mfu_scenario()
    scenario.run(60)
    state, lines = _status(scenario)
    assert state["mfu_ratio"] == pytest.approx(1.7e14 / 0.52 / 989.4e12, abs=0.02)
    assert state["best_ratio"] == pytest.approx(state["mfu_ratio"], abs=0.01)
    [line] = lines
    assert line.startswith(f"  mfu       {100 * state['mfu_ratio']:.1f} %, the best level was ")
    assert scenario.engine.mfu_ratios() == {scenario.job.job: state["mfu_ratio"]}


def test_status_names_the_gpu_whose_peak_is_in_no_table() -> None:
    scenario = mfu_scenario(gpu_name="NVIDIA Z1")
    scenario.run(30)
    state, [line] = _status(scenario)
    assert (state["mfu_ratio"], state["reason"]) == (None, "gpu_peak_unknown")
    assert "the peak of 'NVIDIA Z1' is in no table" in line
    assert scenario.engine.mfu_ratios() == {}


def test_status_says_nothing_of_a_job_that_does_not_tell_its_work() -> None:
    scenario = Scenario(JobShape())
    scenario.run(20)
    assert _status(scenario) == (None, [])
