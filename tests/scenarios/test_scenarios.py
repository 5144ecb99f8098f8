"""Whole walks: a fake job, a fault at a time, the verdict that must follow, and nobody else accused."""

from __future__ import annotations

import pytest

from tests.timelines import build_scenario
from tocsin.pipeline.lab.testing import (
    FakeJob,
    JobShape,
    Scenario,
    between,
)
from tocsin.schemas import events
from tocsin.schemas.kinds import Severity

EXCEPTION = 'Traceback (most recent call last):\n  File "train.py", line 3\nValueError: bad batch'
WATCHDOG = (
    "terminate called after throwing an instance of 'c10::DistBackendError'\n  what(): [PG 0 Rank 5] Process group "
    "watchdog thread terminated with exception: CUDA error: unspecified launch failure"
)


def _say_again(job: FakeJob, rank: int, seconds_ago: int) -> None:
    ended_ns = job.now_ns - seconds_ago * 1_000_000_000
    job.event(rank, events.EXIT, Severity.ERROR, code=-9, signal=9, stderr_tail="", ended_ns=ended_ns)


def _die_unheard(job: FakeJob, rank: int) -> None:
    job.ranks[rank].exited = True
    job.stalled = True


class TestStop:
    def test_a_killed_rank_is_named_and_its_victims_are_not(self) -> None:
        scenario, job = build_scenario()
        scenario.at(20).inject(job.kill, 3)
        scenario.want(between(20, 23), fault="fail_stop", cause="process_exit", suspects=["n03"], action="restart")
        scenario.run(60).check()
        assert len({verdict.verdict_id for verdict in scenario.verdicts}) == 1

    def test_an_end_that_is_said_again_changes_no_verdict(self) -> None:
        """Agents repeat what ended: an engine that knows it learns nothing, also after the job was told to restart."""
        reported: list[list[object]] = []
        for says_again in (False, True):
            scenario, job = build_scenario()
            scenario.at(20).inject(job.kill, 3)
            for second in (35, 50) if says_again else ():
                scenario.at(second).inject(_say_again, job, 3, second - 20)
            scenario.run(60)
            reported.append(
                [(v.verdict_id, v.update, v.state, v.suspects, v.cause, v.onset_ns) for v in scenario.verdicts]
            )

        assert reported[0] == reported[1] != []

    def test_an_engine_that_hears_of_an_end_only_later_names_it(self) -> None:
        scenario, job = build_scenario()
        scenario.at(20).inject(_die_unheard, job, 3)
        scenario.at(40).inject(_say_again, job, 3, 20)
        scenario.run(50)
        last = scenario.verdicts[-1]

        assert (last.cause, [s.component.name for s in last.suspects]) == ("process_exit", ["n03"])

    def test_an_exception_is_told_from_the_lost_connections_that_follow(self) -> None:
        scenario, job = build_scenario()
        scenario.at(20).inject(job.kill, 5, signal=0, code=1, stderr=EXCEPTION)
        scenario.want(between(20, 23), cause="process_exit", suspects=["n05"], reason="first_fatal_exit")
        scenario.run(40).check()
        assert "ValueError: bad batch" in scenario.reported()

    @pytest.mark.parametrize(
        ("words", "cause", "action"),
        [
            ("RuntimeError: CUDA error: an illegal memory access was encountered", "cuda_execution_error", "restart"),
            # It is what a program prints: the machine is told, and kept.
            ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "ecc_error", "restart"),
            ("OSError: HDFS: could not connect to the name node", "hdfs_error", "restart"),
            (WATCHDOG, "cuda_execution_error", "restart"),
        ],
    )
    def test_last_words_tell_why(self, words: str, cause: str, action: str) -> None:
        scenario, job = build_scenario()
        scenario.at(20).inject(job.kill, 5, signal=0, code=1, stderr=words)
        scenario.want(between(20, 23), cause=cause, suspects=["n05"], reason="first_fatal_exit", action=action)
        scenario.run(40).check()

    def test_the_same_error_everywhere_accuses_nobody(self) -> None:
        scenario, job = build_scenario()

        def everybody() -> None:
            for rank in range(8):
                job.event(rank, events.EXIT, code=1, signal=0, stderr_tail=EXCEPTION)
                job.ranks[rank].exited = True
            job.stalled = True

        scenario.at(20).inject(everybody)
        scenario.want(between(20, 23), fault="fail_stop", suspects=[], reason="program_error_everywhere")
        scenario.run(40).check()

    def test_a_scheduler_that_stops_the_job_accuses_nobody(self) -> None:
        scenario, job = build_scenario()

        def cancel() -> None:
            for rank in range(8):
                job.event(rank, events.EXIT, code=0, signal=15, stderr_tail="")
                job.ranks[rank].exited = True
            job.stalled = True

        scenario.at(20).inject(cancel)
        scenario.want_nothing(60)

    def test_a_normal_end_is_no_fault(self) -> None:
        scenario, job = build_scenario()
        scenario.at(20).inject(job.end)
        scenario.want_nothing(120)


class TestHang:
    def test_a_frozen_process_is_named_within_seconds(self) -> None:
        scenario, job = build_scenario()
        scenario.at(20).inject(job.freeze, 3)
        scenario.want(between(20, 25), fault="hang", cause="process_frozen", suspects=["n03"])
        scenario.want(between(25, 32), state="confirmed", action="restart", suspects=["n03"])
        scenario.run(60).check()

    def test_a_rank_that_never_arrives_is_named_only_after_patience(self) -> None:
        scenario, job = build_scenario()
        scenario.at(20).inject(job.freeze, 3, seen=False)
        scenario.want(between(49, 56), fault="hang", cause="unknown", suspects=["n03"], reason="never_arrived")
        scenario.run(70).check()

    def test_a_rank_in_another_collective_is_a_program_fault(self) -> None:
        scenario, job = build_scenario()
        scenario.at(20).inject(job.skip_collective, 3)
        scenario.want(between(20, 25), fault="hang", cause="collective_mismatch", suspects=["n03"], action="notify")
        scenario.run(60).check()
        assert all(verdict.action.value not in ("drain", "evict") for verdict in scenario.verdicts)

    def test_a_hang_that_rights_itself_is_closed(self) -> None:
        scenario, job = build_scenario()
        scenario.at(20).inject(job.freeze, 3)
        scenario.at(35).inject(job.thaw, 3)
        scenario.want(between(35, 50), state="resolved", suspects=["n03"])
        scenario.run(60).check()


class TestSlow:
    def test_slow_compute_opens_mildly_and_is_confirmed_when_it_lasts(self) -> None:
        scenario, job = build_scenario()
        scenario.at(20).inject(job.slow, 3, "forward", 4)
        scenario.want(between(20, 25), fault="fail_slow", cause="unknown", suspects=["n03"], action="probe", update=0)
        scenario.want(between(34, 45), state="confirmed", action="probe", suspects=["n03"])
        scenario.want(between(60, 75), state="confirmed", action="drain", suspects=["n03"])
        scenario.run(90).check()

    def test_a_rank_that_stays_slow_is_one_incident_however_short_the_steps(self) -> None:
        """After 512 steps the job's own slowdown is history: that is nobody whose turn it was before."""
        scenario = Scenario(JobShape(step_seconds=0.05))
        scenario.at(60).inject(scenario.job.slow, 3, "forward", 4.0)
        scenario.want(between(61, 66), suspects=["n03"], fault="fail_slow", state="open")
        scenario.run(150).check()

        assert {verdict.verdict_id for verdict in scenario.verdicts} == {scenario.verdicts[0].verdict_id}
        assert scenario.verdicts[-1].state.value == "confirmed"

    @pytest.mark.parametrize("factor", [7.0, 4.0, 2.5], ids=["twice as much", "as much", "half of it"])
    def test_who_is_slow_has_not_recovered_because_another_one_is_slow_too(self, factor: float) -> None:
        """Each is an incident of its own, once; nobody's turn it is."""
        scenario = Scenario(JobShape(rank_count=16))
        scenario.at(30).inject(scenario.job.slow, 3, "forward", 4.0)
        scenario.at(120).inject(scenario.job.slow, 14, "forward", factor)
        scenario.want(between(31, 40), suspects=["n03"], fault="fail_slow", state="open")
        scenario.want(between(121, 160), suspects=["n14"], fault="fail_slow", state="open")
        scenario.run(400).check()

        live = {verdict.verdict_id: verdict for verdict in scenario.verdicts}
        names = [[suspect.component.name for suspect in verdict.suspects] for verdict in live.values()]
        assert (names, {verdict.state.value for verdict in live.values()}) == ([["n03"], ["n14"]], {"confirmed"})

    def test_who_was_slow_is_well_again_though_another_one_is_slow(self) -> None:
        scenario = Scenario(JobShape(rank_count=16))
        scenario.at(30).inject(scenario.job.slow, 3, "forward", 4.0)
        scenario.at(120).inject(scenario.job.slow, 14, "forward", 4.0)
        scenario.at(200).inject(scenario.job.slow, 3, "forward", 1.0)
        scenario.want(between(121, 140), suspects=["n14"], state="open")
        scenario.want(between(200, 240), suspects=["n03"], state="resolved")
        scenario.run(300).check()

        assert [verdict.suspects[0].component.name for verdict in scenario.verdicts[-2:]] == ["n14", "n03"]

    def test_a_slow_spell_of_seconds_is_cancelled_and_never_drained(self) -> None:
        scenario, job = build_scenario()
        scenario.at(20).inject(job.slow, 3, "forward", 4)
        scenario.at(28).inject(job.slow, 3, "forward", 1)
        scenario.run(60).check(taken_back=True)
        assert all(verdict.action.value not in ("drain", "evict") for verdict in scenario.verdicts)

    def test_a_small_slowness_needs_long_evidence(self) -> None:
        scenario, job = build_scenario()
        scenario.at(30).inject(job.slow, 3, "forward", 1.6)
        scenario.want(between(35, 60), fault="fail_slow", suspects=["n03"])
        scenario.run(90).check()

    def test_one_slow_loader_is_the_programs_not_the_machines(self) -> None:
        scenario, job = build_scenario()
        scenario.at(20).inject(job.slow, 3, "data", 20)
        scenario.want(between(20, 25), cause="loader_stall", suspects=["n03"], action="notify")
        scenario.run(60).check()
        assert all(verdict.action.value == "notify" for verdict in scenario.verdicts)

    def test_slow_loading_everywhere_is_a_shared_service(self) -> None:
        scenario, job = build_scenario()
        scenario.at(20).inject(job.slow_all, "data", 20)
        scenario.want(between(20, 25), cause="shared_service", suspects=[], action="notify")
        scenario.run(60).check()

    def test_a_slowdown_of_all_is_nobodys_fault(self) -> None:
        scenario, job = build_scenario()
        scenario.at(30).inject(job.slow_all, "forward", 3)
        scenario.want(between(55, 75), cause="workload_change", suspects=[], action="none")
        scenario.run(90).check()

    def test_slow_traffic_of_one_rank_is_found_by_its_groups(self) -> None:
        scenario, job = build_scenario()
        scenario.at(20).inject(job.slow_link, 3, 0.05)
        scenario.want(between(20, 26), cause="network_slow", suspects=["n03"])
        scenario.run(90).check()
        assert len({verdict.verdict_id for verdict in scenario.verdicts}) == 1

    @pytest.mark.parametrize("ranks", [2])
    def test_two_machines_abstain(self, ranks: int) -> None:
        scenario, job = build_scenario(rank_count=ranks)
        scenario.at(20).inject(job.slow, 1, "forward", 4)
        scenario.run(60)
        assert not [verdict for verdict in scenario.verdicts if verdict.suspects]
        assert scenario.engine.status()["jobs"][0]["abstained"]["too_few_peers"] > 0

    def test_stages_are_compared_with_themselves(self) -> None:
        """A stage computes a third longer on all its ranks: nobody is accused, and the split is told as the reason."""
        scenario, job = build_scenario(rank_count=8, stage_count=2)
        for rank in range(4, 8):
            job.slow(rank, "forward", 2.0)
        told = {"fault": "degraded", "cause": "stage_imbalance", "action": "none", "suspects": []}
        scenario.want(between(30, 60), state="open", reason="long_stage", **told)
        scenario.run(90).check()
        assert {(one.fault.value, one.cause, one.action.value, one.suspects) for one in scenario.verdicts} == {
            ("degraded", "stage_imbalance", "none", ())
        }
        assert len({verdict.verdict_id for verdict in scenario.verdicts}) == 1

    def test_stages_that_cost_less_than_a_tenth_are_nothing(self) -> None:
        scenario, job = build_scenario(rank_count=8, stage_count=2)
        for rank in range(4, 8):
            job.slow(rank, "forward", 1.3)
        scenario.want_nothing(90)

    def test_a_rank_with_a_little_more_work_from_the_start_is_not_accused(self) -> None:
        """Rank 0 logs and evaluates: undecidable from a weak machine, so at most degraded, and no action."""
        scenario, job = build_scenario()
        job.slow(0, "forward", 1.5)
        scenario.run(240)
        assert {verdict.fault.value for verdict in scenario.verdicts} <= {"degraded"}
        assert {verdict.action.value for verdict in scenario.verdicts} <= {"none"}

    def test_a_rank_that_is_very_slow_from_the_start_is_named_later(self) -> None:
        scenario, job = build_scenario()
        job.slow(3, "forward", 4.0)
        scenario.want(between(20, 60), fault="fail_slow", suspects=["n03"])
        scenario.run(90).check()


class TestOneSource:
    def test_an_agent_that_dies_on_a_healthy_job_is_no_fault(self) -> None:
        scenario, job = build_scenario()
        scenario.at(20).inject(job.kill_agent, 3)
        scenario.want_nothing(90)
        assert scenario.engine.status()["jobs"][0]["abstained"]["monitoring_lost"] > 0

    def test_an_agent_dies_on_one_while_another_is_at_fault(self) -> None:
        scenario, job = build_scenario()
        scenario.at(20).inject(job.kill_agent, 2)
        scenario.at(20).inject(job.freeze, 5)
        scenario.want(between(20, 26), fault="hang", suspects=["n05"])
        scenario.run(90).check()

    def test_an_agent_died_long_before_another_rank_is_at_fault(self) -> None:
        scenario, job = build_scenario()
        scenario.at(20).inject(job.kill_agent, 2)
        scenario.at(50).inject(job.freeze, 5)
        scenario.want(between(50, 56), fault="hang", suspects=["n05"])
        scenario.run(120).check()

    def test_a_machine_that_is_gone_is_named_when_its_peers_stand(self) -> None:
        scenario, job = build_scenario()
        scenario.at(20).inject(job.lose_host, 3)
        scenario.want(between(28, 36), fault="fail_stop", cause="machine_unreachable", suspects=["n03"])
        scenario.run(60).check()

    def test_a_job_whose_every_host_falls_silent(self) -> None:
        scenario, job = build_scenario()

        def silence() -> None:
            for rank in job.ranks:
                rank.agent_alive = False

        scenario.at(20).inject(silence)
        scenario.want(between(25, 50), suspects=[], reason="job_silent")
        scenario.run(60).check()


class TestNan:
    def test_the_first_rank_without_a_number_is_told_by_its_step(self) -> None:
        scenario, job = build_scenario()
        scenario.at(20).inject(job.nan, 3)
        scenario.want(between(20, 23), fault="silent_corruption", cause="nan_gradient", suspects=["n03"])
        scenario.run(40).check()

    def test_all_at_the_same_step_accuses_nobody(self) -> None:
        scenario, job = build_scenario()

        def everybody() -> None:
            for rank in range(8):
                job.event(rank, events.NAN, step=90, what="loss", value="nan")

        scenario.at(20).inject(everybody)
        scenario.want(between(20, 23), cause="nan_gradient", suspects=[], reason="nan_everywhere")
        scenario.run(40).check()


class TestHealthy:
    def test_checkpoints_an_evaluation_and_the_end_say_nothing(self) -> None:
        scenario, job = build_scenario()
        scenario.at(20).inject(job.pause, 15)
        scenario.at(50).inject(job.pause, 5, "evaluation")
        scenario.at(80).inject(job.pause, 20)
        scenario.at(120).inject(job.end)
        scenario.want_nothing(180)

    @pytest.mark.parametrize("seed", range(4))
    @pytest.mark.parametrize("jitter", [0.02, 0.3])
    def test_jitter_says_nothing(self, seed: int, jitter: float) -> None:
        scenario, _ = build_scenario(seed=seed, jitter_ratio=jitter)
        scenario.want_nothing(240)


class TestTakenDown:
    def test_agents_that_leave_in_order_and_one_that_does_not(self) -> None:
        """The monitoring is taken down: the last agent's silence is no machine's fault."""
        scenario, job = build_scenario()

        def take_down() -> None:
            for rank in job.ranks:
                if rank.rank != 4:
                    job.event(rank.rank, events.AGENT, edge="stop")
            for rank in job.ranks:
                rank.agent_alive = False

        scenario.at(20).inject(take_down)
        scenario.want_nothing(90)
