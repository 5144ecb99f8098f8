"""Why a job is slow, while it runs: what a slowness costs, and which causes name no machine."""

from __future__ import annotations

import random

import pytest

from tocsin.pipeline.lab.testing import JobShape, Scenario, between
from tocsin.schemas.verdicts import FaultKind


class TestWhatItCosts:
    @pytest.mark.parametrize(("factor", "share"), [(2.0, 0.24), (4.0, 0.49)])
    def test_a_verdict_on_a_slow_machine_says_what_it_costs_the_job_now(self, factor: float, share: float) -> None:
        scenario = Scenario(JobShape(step_seconds=0.5))
        scenario.at(20).inject(scenario.job.slow, 3, "forward", factor)
        scenario.want(between(20, 50), suspects=["n03"], state="confirmed")
        scenario.run(60).check()
        told = [one.costs_ratio for one in scenario.verdicts]
        assert told == [pytest.approx(share, abs=0.06)] * len(told)

    def test_a_slower_job_without_a_suspect_costs_what_its_steps_grew_by(self) -> None:
        scenario = Scenario(JobShape(2, 2, step_seconds=0.5))
        scenario.at(60).inject(scenario.job.slow_all, "forward", 3.0)
        scenario.run(120)
        [last] = scenario.final()
        assert (last.fault, last.suspects) == (FaultKind.FAIL_SLOW, ())
        assert last.costs_ratio == pytest.approx(0.41, abs=0.05)

    def test_a_fault_that_slows_nobody_has_no_cost(self) -> None:
        scenario = Scenario(JobShape())
        scenario.at(20).inject(scenario.job.freeze, 3)
        scenario.run(40)
        assert scenario.verdicts
        assert {one.costs_ratio for one in scenario.verdicts} == {None}


def _lengths(rank: int, step: int, phase: str) -> float:
    """New sequence lengths for each rank in each step."""
    longer = max(0.3, random.Random(rank * 100_003 + step).gauss(1.0, 0.4))
    return longer if phase in ("forward", "backward") else 1.0


def _pause(rank: int, step: int) -> float:
    """A pause in the forward pass, in each step of another rank."""
    return 0.3 if (step * 7) % 8 == rank else 0.0


def _causes(scenario: Scenario) -> set[str]:
    return {verdict.cause for verdict in scenario.verdicts}


class TestUnevenData:
    def test_new_lengths_in_each_step_are_data_and_nobody_is_accused(self) -> None:
        scenario = Scenario(JobShape(step_seconds=0.5))
        scenario.job.load = _lengths
        scenario.want(between(30, 65), fault="degraded", cause="data_imbalance", suspects=[], action="none")
        scenario.run(65).check()
        assert _causes(scenario) == {"data_imbalance"}
        assert scenario.verdicts[0].costs_ratio == pytest.approx(0.27, abs=0.05)

    def test_a_job_that_becomes_slower_by_new_lengths_is_slow_by_its_data(self) -> None:
        scenario = Scenario(JobShape(step_seconds=0.5))
        scenario.job.load = lambda rank, step, phase: _lengths(rank, step, phase) if step > 120 else 1.0
        scenario.want(between(80, 120), fault="fail_slow", cause="data_imbalance", suspects=[], action="notify")
        scenario.run(130).check()
        assert len({verdict.verdict_id for verdict in scenario.verdicts}) == 1

    def test_equal_lengths_are_nothing(self) -> None:
        scenario = Scenario(JobShape(step_seconds=0.5, jitter_ratio=0.06))
        scenario.want_nothing(60)


class TestLongStage:
    def test_a_stage_that_is_longer_on_all_replicas_is_the_stage(self) -> None:
        scenario = Scenario(JobShape(8, stage_count=2, step_seconds=0.5))
        scenario.job.load = lambda rank, _step, phase: 1.6 if rank >= 4 and phase != "data" else 1.0
        scenario.want(between(30, 65), fault="degraded", cause="stage_imbalance", suspects=[], reason="long_stage")
        scenario.run(65).check()
        assert "stage 1" in scenario.verdicts[0].evidence[0].text

    def test_a_stage_that_is_longer_on_one_replica_is_that_machine(self) -> None:
        scenario = Scenario(JobShape(8, stage_count=2, step_seconds=0.5))
        for phase in ("forward", "backward"):
            scenario.at(30).inject(scenario.job.slow, 5, phase, 1.5)
        scenario.want(between(30, 60), fault="fail_slow", suspects=["n05"])
        scenario.run(65).check()
        assert "stage_imbalance" not in _causes(scenario)


class TestPauses:
    def test_pauses_of_changing_ranks_are_jitter(self) -> None:
        scenario = Scenario(JobShape(step_seconds=0.5))
        scenario.job.extra_seconds = _pause
        scenario.want(between(30, 65), fault="degraded", cause="software_jitter", suspects=[])
        scenario.run(65).check()

    def test_pauses_of_one_rank_are_not(self) -> None:
        scenario = Scenario(JobShape(step_seconds=0.5))
        scenario.job.extra_seconds = lambda rank, step: 0.4 if rank == 2 and step % 3 == 0 else 0.0
        scenario.run(60).check()
        assert "software_jitter" not in _causes(scenario)
