"""Why a job is slow, while it runs: what a slowness costs, and which causes name no machine."""

from __future__ import annotations

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
