"""Each ``fail_slow`` verdict of a job with steps says what it costs the job, whatever the reason, named or not."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.scenarios.test_why_slow import _lengths, _pause
from tocsin.pipeline.lab.testing import JobShape, Scenario
from tocsin.schemas.verdicts import FaultKind

Struck = Callable[[Scenario], None]
FROM_SECOND = 60
FROM_STEP = 115


def slow_machine(scenario: Scenario) -> None:
    scenario.at(FROM_SECOND).inject(scenario.job.slow, 3, "forward", 3.0)


def slow_link(scenario: Scenario) -> None:
    scenario.at(FROM_SECOND).inject(scenario.job.slow_link, 3, 0.1)


def slow_links(scenario: Scenario) -> None:
    for rank in range(8):
        scenario.at(FROM_SECOND).inject(scenario.job.slow_link, rank, 0.1)


def slow_loader(scenario: Scenario) -> None:
    scenario.at(FROM_SECOND).inject(scenario.job.slow, 3, "data", 12.0)


def slow_service(scenario: Scenario) -> None:
    scenario.at(FROM_SECOND).inject(scenario.job.slow_all, "data", 12.0)


def more_to_compute(scenario: Scenario) -> None:
    scenario.at(FROM_SECOND).inject(scenario.job.slow_all, "forward", 3.0)


def new_lengths(scenario: Scenario) -> None:
    scenario.job.load = lambda rank, step, phase: _lengths(rank, step, phase) if step > FROM_STEP else 1.0


def new_pauses(scenario: Scenario) -> None:
    scenario.job.extra_seconds = lambda rank, step: _pause(rank, step) if step > FROM_STEP else 0.0


def heavy_shard(scenario: Scenario) -> None:
    """A heavy shard goes round since the job began: there is no faster past to compare with."""
    scenario.job.load = lambda rank, step, phase: 2.0 if rank == step // 20 % 8 and phase != "data" else 1.0


def round_of_pauses(scenario: Scenario) -> None:
    """Pauses that stay with a rank for some steps go round since the job began."""
    scenario.job.extra_seconds = lambda rank, step: 0.5 if rank == step // 20 % 8 else 0.0


STRUCK = {
    "slow machine": slow_machine,
    "slow link": slow_link,
    "slow links": slow_links,
    "slow loader": slow_loader,
    "slow service": slow_service,
    "more to compute": more_to_compute,
    "new lengths": new_lengths,
    "new pauses": new_pauses,
    "a heavy shard goes round": heavy_shard,
    "pauses go round": round_of_pauses,
}


@pytest.mark.parametrize("struck", STRUCK.values(), ids=STRUCK)
def test_each_verdict_on_slowness_says_what_it_costs(struck: Struck) -> None:
    scenario = Scenario(JobShape(step_seconds=0.5))
    struck(scenario)
    scenario.run(110)
    slow = [verdict for verdict in scenario.verdicts if verdict.fault is FaultKind.FAIL_SLOW]
    assert slow
    told = [verdict.costs_ratio for verdict in slow]
    assert [ratio for ratio in told if ratio is None or not 0.01 <= ratio <= 0.8] == [], scenario.reported()


@pytest.mark.parametrize("struck", [heavy_shard, round_of_pauses])
def test_a_slowness_that_goes_round_costs_what_the_slowest_takes_longer(struck: Struck) -> None:
    """The slowest rank computes about half a second longer in each step of a second."""
    scenario = Scenario(JobShape(step_seconds=0.5))
    struck(scenario)
    scenario.run(110)
    told = [verdict.costs_ratio for verdict in scenario.verdicts if verdict.reason == "slowest_rank_changes"]
    assert told == [pytest.approx(0.48, abs=0.06)] * len(told)
    assert told


def test_a_healthy_job_costs_nobody_anything() -> None:
    Scenario(JobShape(step_seconds=0.5)).want_nothing(60)
