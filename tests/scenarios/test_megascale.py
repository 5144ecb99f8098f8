"""What MegaScale (NSDI'24) says that monitoring of a training job must find, and what must not be taken for it."""

from __future__ import annotations

import pytest

from tocsin.pipeline.lab.testing import JobShape, MetricsScenario, Scenario, between
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import ActionKind, FaultKind

STEP_SECONDS = 5.0
RDMA = "rdma_bytes_per_second"


class TestTrafficThatARankStopsSending:
    def test_it_is_found_within_two_steps_and_a_metric_slice(self) -> None:
        scenario = MetricsScenario(JobShape(step_seconds=2.0))
        scenario.at(60).inject(scenario.job.shift, 3, RDMA, 0.0)
        scenario.want(between(60, 60 + 2 * 2 + 6), suspects=["n03"], cause="nic_dropout", state="open")
        scenario.run(80).check()

    def test_where_its_peers_wait_it_is_checked_or_taken_out_by_itself(self) -> None:
        scenario = MetricsScenario(JobShape(step_seconds=2.0))
        scenario.at(60).inject(scenario.job.shift, 3, RDMA, 0.0)
        scenario.at(60).inject(scenario.job.slow_link, 3, 1.0)
        scenario.want(between(60, 160), suspects=["n03"], fault="fail_slow", action="drain")
        scenario.run(160).check()

    def test_a_decline_by_a_third_without_harm_is_told_and_nothing_is_done(self) -> None:
        scenario = MetricsScenario(JobShape(step_seconds=2.0))
        scenario.at(60).inject(scenario.job.shift, 3, RDMA, 0.7)
        scenario.run(100)
        assert scenario.verdicts
        assert {(one.fault, one.action) for one in scenario.verdicts} == {(FaultKind.DEGRADED, ActionKind.NONE)}

    def test_a_rank_that_sends_no_collectives_any_more_is_named_by_those_who_wait(self) -> None:
        scenario = MetricsScenario(JobShape(step_seconds=2.0))
        scenario.at(60).inject(scenario.job.freeze, 3, seen=False)
        scenario.at(60).inject(scenario.job.shift, 3, RDMA, 0.0)
        scenario.want(between(60, 110), suspects=["n03"], fault="hang")
        scenario.run(110).check()

    @pytest.mark.parametrize("factor", [0.0, 0.7])
    def test_where_all_send_less_nobody_is_named(self, factor: float) -> None:
        scenario = MetricsScenario(JobShape(step_seconds=2.0))
        for rank in range(8):
            scenario.at(60).inject(scenario.job.shift, rank, RDMA, factor)
        scenario.run(100)
        assert [one.suspects for one in scenario.verdicts if one.suspects] == []

    def test_samples_that_are_missing_are_no_zero(self) -> None:
        scenario = MetricsScenario(JobShape(step_seconds=2.0))
        scenario.at(60).inject(scenario.job.shift, 3, RDMA, float("nan"))
        scenario.run(100)
        assert [one.cause for one in scenario.verdicts] == []


def test_a_forward_pass_that_takes_a_tenth_longer_is_named_within_ten_steps_and_nothing_is_done() -> None:
    scenario = Scenario(JobShape(6, step_seconds=STEP_SECONDS, jitter_ratio=0.02))
    scenario.at(180).inject(scenario.job.slow, 3, "forward", 1.1)
    scenario.run(235)
    assert {(one.fault, one.action, one.reason) for one in scenario.verdicts} == {
        (FaultKind.DEGRADED, ActionKind.NONE, "slow_forward")
    }
    assert "rank 3's forward pass is " in scenario.verdicts[0].evidence[0].text
    named_seconds = (scenario.verdicts[0].detected_ns - scenario.shape.start_ns) / NS_PER_SECOND
    assert [suspect.component.name for suspect in scenario.verdicts[0].suspects] == ["n03"]
    assert (named_seconds - 180) / STEP_SECONDS <= 10


def test_a_rank_that_slows_the_job_is_the_step_detector_s_alone() -> None:
    scenario = Scenario(JobShape(6, step_seconds=STEP_SECONDS, jitter_ratio=0.01))
    scenario.at(150).inject(scenario.job.slow, 3, "forward", 1.6)
    scenario.want(between(150, 230), suspects=["n03"], fault="fail_slow")
    scenario.run(230).check()
    assert "slow_forward" not in {one.reason for one in scenario.verdicts}
