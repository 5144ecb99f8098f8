"""Signs of a whole job that name no machine, and what looks like them and is none."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from tocsin.pipeline.lab.testing.job_shape import JobShape
from tocsin.pipeline.lab.testing.scenario import Scenario, between
from tocsin.schemas.verdicts import ActionKind, VerdictState

STEPS_A_SECOND = 4.8
BEGIN_STEP = 500
BEGIN_SECONDS = BEGIN_STEP / STEPS_A_SECOND


def numbers_scenario(numbers: Callable[[int], tuple[float, float]]) -> Scenario:
    scenario = Scenario()
    scenario.job.numbers = numbers
    return scenario


def slowing(factor: Callable[[int], float]) -> Scenario:
    """Return a job whose ranks all compute longer by a factor of the step's number."""
    scenario = Scenario(JobShape(rank_count=4, jitter_ratio=0.02))
    scenario.job.load = lambda _rank, step, _phase: factor(step)
    return scenario


def signs(scenario: Scenario) -> set[tuple[str, str]]:
    return {(one.cause, one.reason) for one in scenario.verdicts}


@pytest.mark.parametrize("which", ["loss", "grad_norm", "both"])
def test_a_number_that_stays_at_six_times_its_past_is_a_sign_that_names_nobody(which: str) -> None:
    def numbers(step: int) -> tuple[float, float]:
        is_high = step >= BEGIN_STEP
        return (12.0 if is_high and which != "grad_norm" else 2.0), (6.0 if is_high and which != "loss" else 1.0)

    scenario = numbers_scenario(numbers)
    named = {"fault": "degraded", "cause": "divergence", "suspects": [], "action": "none"}
    scenario.want(between(BEGIN_SECONDS, BEGIN_SECONDS + 15), **named, state="open")
    scenario.want(between(BEGIN_SECONDS + 55, BEGIN_SECONDS + 80), **named, state="confirmed")
    scenario.run(200).check()
    assert {one.metric for one in scenario.verdicts[-1].evidence} == ({which} - {"both"} or {"loss", "grad_norm"})
    assert {one.action for one in scenario.verdicts} == {ActionKind.NONE}


def test_it_ends_when_the_number_is_back() -> None:
    scenario = numbers_scenario(lambda step: (12.0 if 500 <= step < 900 else 2.0, 1.0))
    scenario.run(240)
    assert scenario.verdicts[-1].state is VerdictState.RESOLVED
    assert scenario.verdicts[-1].reason == "recovered"


INNOCENT = {
    "a loss that starts high and falls": lambda step: (12.0 * math.exp(-step / 150) + 1.5, 1.0),
    "warm-up of the learning rate: gradients large, then small": lambda step: (8.0, 20.0 if step < 100 else 1.0),
    "warm-up of the learning rate: gradients that grow for 600 steps": lambda step: (8.0, 0.2 + min(step, 600) / 300),
    "warm-up after a start with a frozen part: gradients tiny, then ten times": lambda step: (
        8.0,
        0.1 + 0.9 * min(1.0, max(0, step - 200) / 150),
    ),
    "gradients of six times for 14 steps": lambda step: (2.0, 6.0 if step % 150 < 14 else 1.0),
    "a low of a few steps is no level that was held": lambda step: (1.0 if step % 150 < 14 else 6.0, 1.0),
    "a spike of one step that recovers": lambda step: (60.0 if step == BEGIN_STEP else 2.0, 1.0),
    "spikes of a few steps that recover": lambda step: (2.0, 9.0 if step % 100 < 5 else 1.0),
    "four times is not five": lambda step: (8.0 if step >= BEGIN_STEP else 2.0, 1.0),
    "a jump before there is a past": lambda step: (12.0 if step >= 40 else 2.0, 1.0),
    "a loss around zero": lambda step: (math.sin(step), 1.0),
    "a negative loss": lambda step: (-2.0 if step < BEGIN_STEP else -20.0, 1.0),
}


def test_a_loss_that_creeps_to_six_times_its_lowest_level_is_a_sign() -> None:
    def numbers(step: int) -> tuple[float, float]:
        return 2.0 + 10.0 * min(1.0, max(0, step - 300) / 500), 1.0

    scenario = numbers_scenario(numbers)
    named = {"fault": "degraded", "cause": "divergence", "suspects": []}
    scenario.want(between(700 / STEPS_A_SECOND, 800 / STEPS_A_SECOND), **named, state="open")
    scenario.run(180).check()


@pytest.mark.parametrize("which", ["loss", "grad_norm"])
def test_a_job_that_goes_back_to_its_begin_and_falls_or_warms_up_again_has_no_sign(which: str) -> None:
    def numbers(step: int) -> tuple[float, float]:
        is_early = step < 100
        return 12.0 * math.exp(-step / 60) + 1.0 if which == "loss" else 2.0, 20.0 if is_early else 1.0

    def go_back() -> None:
        scenario.job.step = 20

    scenario = numbers_scenario(numbers if which == "loss" else lambda step: (2.0, numbers(step)[1]))
    scenario.at(BEGIN_SECONDS).inject(go_back)
    scenario.want_nothing(170)


@pytest.mark.parametrize("what", INNOCENT)
def test_what_looks_like_a_jump_and_is_none(what: str) -> None:
    numbers_scenario(INNOCENT[what]).want_nothing(200)


def test_lost_numbers_are_what_they_are_today() -> None:
    scenario = Scenario()
    scenario.at(BEGIN_SECONDS).inject(scenario.job.nan, 3)
    scenario.run(150)
    assert {one.cause for one in scenario.verdicts} == {"nan_gradient"}


def test_steps_that_become_longer_little_by_little_are_a_sign() -> None:
    scenario = slowing(lambda step: 1.0 + max(0, step - 300) / 3000)
    scenario.want(between(200, 600), fault="degraded", cause="gradual_slowdown", suspects=[], action="none")
    scenario.run(600).check()
    assert signs(scenario) == {("gradual_slowdown", "steps_grow")}


SLOW_OTHERWISE = {
    "one step up": lambda step: 1.4 if step > 700 else 1.0,
    "a drift of a tenth": lambda step: 1.0 + min(step, 2000) / 20_000,
    "longer and shorter by turns": lambda step: 1.0 + 0.2 * math.sin(step / 90),
    "a job that becomes faster": lambda step: 1.5 - min(step, 1500) / 3000,
}


@pytest.mark.parametrize("what", SLOW_OTHERWISE)
def test_what_is_slow_in_another_way_is_no_gradual_slowdown(what: str) -> None:
    scenario = slowing(SLOW_OTHERWISE[what])
    scenario.run(500)
    assert "gradual_slowdown" not in {one.cause for one in scenario.verdicts}


def test_a_loader_stall_and_a_host_that_slows_down_alone_are_no_gradual_slowdown() -> None:
    stall = Scenario(JobShape(rank_count=4))
    stall.at(150).inject(stall.job.slow_all, "data", 6.0)
    stall.at(170).inject(stall.job.slow_all, "data", 1.0)
    stall.run(300)
    alone = Scenario(JobShape(rank_count=8))
    alone.job.load = lambda rank, step, _phase: 1.0 + (max(0, step - 300) / 1000 if rank == 5 else 0.0)
    alone.run(300)
    for one in (stall, alone):
        assert "gradual_slowdown" not in {verdict.cause for verdict in one.verdicts}
    assert {suspect.component.name for one in alone.verdicts for suspect in one.suspects} == {"n05"}
