"""Incidents that others hide no more: beside lost numbers, after another slow machine, at a job's end."""

from __future__ import annotations

import pytest

from tocsin.pipeline.lab.testing import (
    FakeJob,
    JobShape,
    Scenario,
    between,
)
from tocsin.schemas import events
from tocsin.schemas.records import NS_PER_SECOND, Severity

_SHAPE = JobShape(rank_count=8, step_seconds=0.5)


def _lose(job: FakeJob, *ranks: int) -> None:
    for rank in ranks:
        job.event(rank, events.NAN, Severity.ERROR, step=job.step, what="loss", value="nan")


class TestSlowBesideLostNumbers:
    def _scenario(self) -> Scenario:
        scenario = Scenario(_SHAPE)
        scenario.at(30).inject(scenario.job.slow, 5, "forward", 4.0)
        return scenario.want(between(30, 60), fault="fail_slow", suspects=["n05"])

    def test_once(self) -> None:
        scenario = self._scenario()
        scenario.at(29).inject(scenario.job.nan, 2)
        scenario.want(between(29, 32), fault="silent_corruption", suspects=["n02"]).run(100).check()

    def test_in_each_step(self) -> None:
        scenario = self._scenario()
        scenario.at(29).inject(scenario.job.nan, 2)
        for second in range(30, 90):
            scenario.at(second).inject(_lose, scenario.job, *range(8))
        scenario.want(between(29, 32), fault="silent_corruption", suspects=["n02"]).run(100).check()

    def test_every_four_minutes(self) -> None:
        scenario = Scenario(_SHAPE)
        for second in (20, 270, 520):
            scenario.at(second).inject(scenario.job.nan, 2)
        scenario.at(300).inject(scenario.job.slow, 5, "forward", 4.0)
        scenario.want(between(20, 23), fault="silent_corruption", suspects=["n02"])
        scenario.want(between(300, 330), fault="fail_slow", suspects=["n05"]).run(560).check()

    def test_the_same_machine_is_two_incidents(self) -> None:
        scenario = Scenario(_SHAPE)
        scenario.at(20).inject(scenario.job.nan, 5)
        scenario.at(40).inject(scenario.job.slow, 5, "forward", 4.0)
        scenario.run(100)
        reported = {verdict.fault.value: verdict.verdict_id for verdict in scenario.final()}
        assert reported.keys() == {"silent_corruption", "fail_slow"}
        assert len(set(reported.values())) == 2


class TestDeathAfterLostNumbers:
    @pytest.mark.parametrize(
        ("signal", "code", "words"), [(9, 0, ""), (11, 0, ""), (0, 1, "OSError: [Errno 28] No space left on device")]
    )
    def test_a_signal_or_a_reason_is_an_incident_of_its_own(self, signal: int, code: int, words: str) -> None:
        scenario = Scenario(_SHAPE)
        scenario.at(30).inject(scenario.job.nan, 2)
        scenario.at(60).inject(scenario.job.kill, 5, signal, code, words)
        scenario.want(between(30, 33), fault="silent_corruption", suspects=["n02"])
        scenario.want(between(60, 66), fault="fail_stop", suspects=["n05"])
        scenario.run(120).check()
        last = {verdict.fault.value: verdict for verdict in scenario.verdicts}
        assert (last["silent_corruption"].state.value, last["silent_corruption"].reason) == ("resolved", "job_ended")

    @pytest.mark.parametrize(
        "words", ["", "FloatingPointError: loss is nan", "ValueError: gradient norm is not finite"]
    )
    def test_an_end_without_another_reason_belongs_to_the_numbers(self, words: str) -> None:
        scenario = Scenario(_SHAPE)
        scenario.at(30).inject(scenario.job.nan, 2)
        scenario.at(60).inject(scenario.job.kill, 5, 0, 1, words)
        scenario.run(200)
        assert {suspect.component.name for verdict in scenario.verdicts for suspect in verdict.suspects} == {"n02"}
        assert scenario.verdicts[-1].state.value == "confirmed"


def _exit(job: FakeJob, rank: int, signal: int = 0, code: int = 1, words: str = "") -> None:
    job.event(rank, events.EXIT, Severity.ERROR, code=code, signal=signal, stderr_tail=words)
    job.ranks[rank].exited = True
    job.stalled = True


def _all_exit(job: FakeJob, first: int, words: str = "", victims_signal: int = 0) -> None:
    """Rank ``first`` exits with status 1, the others 0.3 s later likewise, or by a signal that a launcher sends."""
    now_ns = job.now_ns
    _exit(job, first, words=words)
    job.now_ns += 300_000_000
    for rank in job.ranks:
        if not rank.exited:
            _exit(job, rank.rank, victims_signal, 0 if victims_signal else 1, "" if victims_signal else words)
    job.now_ns = now_ns


class TestEndOfAJobWithLostNumbers:
    """Exits that say nothing, or repeat that a number was lost, change nothing of the NaN's incident."""

    @pytest.mark.parametrize("victims_signal", [0, 15])
    @pytest.mark.parametrize("words", ["", "FloatingPointError: loss is nan"])
    @pytest.mark.parametrize(("rank_count", "host_ranks_count"), [(4, 4), (8, 8), (8, 4), (8, 1)])
    @pytest.mark.parametrize(("first", "seconds"), [(2, 30), (2, 36), (3, 36)])
    def test_one_incident_with_one_story(
        self, rank_count: int, host_ranks_count: int, first: int, seconds: int, words: str, victims_signal: int
    ) -> None:
        scenario = Scenario(JobShape(rank_count, host_ranks_count, step_seconds=0.5))
        job = scenario.job
        scenario.at(30).inject(job.nan, 2)
        scenario.at(seconds).inject(_all_exit, job, first, words, victims_signal)
        scenario.run(400)

        reported = {(verdict.verdict_id, verdict.fault.value) for verdict in scenario.verdicts}
        assert [fault for _, fault in reported] == ["silent_corruption"]
        assert {suspect.ranks for verdict in scenario.verdicts for suspect in verdict.suspects} == {(2,)}
        assert scenario.verdicts[-1].state.value == "confirmed"
        assert len(scenario.verdicts) <= 4

    def test_it_stays_for_an_hour(self) -> None:
        scenario = Scenario(_SHAPE)
        scenario.at(30).inject(scenario.job.nan, 2)
        scenario.at(60).inject(_all_exit, scenario.job, 5, "", 15)
        scenario.run(3800)
        last = scenario.verdicts[-1]
        assert {verdict.fault.value for verdict in scenario.verdicts} == {"silent_corruption"}
        assert (last.state.value, last.reason) == ("resolved", "job_ended")
        assert 3650 <= (last.detected_ns - _SHAPE.start_ns) // NS_PER_SECOND <= 3680


class TestEndOfAJobThatHangs:
    @pytest.mark.parametrize("how", ["watchdog", "cancelled", "victims_vanish"])
    @pytest.mark.parametrize("is_seen", [True, False])
    def test_what_hung_stays_the_reason(self, how: str, *, is_seen: bool) -> None:
        scenario = Scenario(_SHAPE)
        job = scenario.job
        scenario.at(60).inject(job.freeze, 5, seen=is_seen)

        def end() -> None:
            words = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12)" if how == "watchdog" else ""
            for rank in range(8):
                if rank != 5:
                    _exit(job, rank, 6 if how == "watchdog" else 15 if how == "cancelled" else 9, 0, words)

        scenario.at(150).inject(end)
        scenario.at(153).inject(_exit, job, 5, 9, 0)
        scenario.run(500)
        stood = [
            verdict for verdict in scenario.verdicts if verdict.detected_ns > _SHAPE.start_ns + 149 * NS_PER_SECOND
        ]
        assert {suspect.ranks for verdict in stood for suspect in verdict.suspects} <= {(5,)}
        assert {verdict.state.value for verdict in scenario.final()} == {"confirmed"}
        assert {suspect.ranks for verdict in scenario.final() for suspect in verdict.suspects} == {(5,)}


class TestJobIsOver:
    def test_nobody_is_slow_any_more_and_what_ended_it_stays_for_an_hour(self) -> None:
        scenario = Scenario(_SHAPE)
        scenario.at(30).inject(scenario.job.slow, 5, "forward", 3.0)
        scenario.at(90).inject(scenario.job.kill, 2)
        scenario.run(3800)
        start_ns = _SHAPE.start_ns
        reported = scenario.verdicts
        lines = [
            (v.fault.value, v.state.value, v.reason, (v.detected_ns - start_ns) // NS_PER_SECOND) for v in reported
        ]
        slow = [line for line in lines if line[0] == "fail_slow"]
        stop = [line for line in lines if line[0] == "fail_stop"]
        assert slow[-1][:3] == ("fail_slow", "resolved", "job_ended")
        assert 90 <= slow[-1][3] <= 93
        assert {line[1] for line in stop[:-1]} == {"open", "confirmed"}
        assert stop[-1][:3] == ("fail_stop", "resolved", "job_ended")
        assert 3685 <= stop[-1][3] <= 3700

    def test_jitter_ends_with_the_job(self) -> None:
        scenario = Scenario(_SHAPE)
        job = scenario.job
        job.extra_seconds = lambda rank, step: 2.0 if rank == (step // 12) % 8 else 0.0
        scenario.at(150).inject(job.kill, 3)
        scenario.run(170)
        ended = [v for v in scenario.verdicts if v.fault.value == "fail_slow" and v.reason == "job_ended"]
        assert ended
        assert {v.fault.value for v in scenario.final() if v.state.value in ("open", "confirmed")} == {"fail_stop"}


class TestSecondSlowMachine:
    @pytest.mark.parametrize("gap_seconds", [20, 60, 150])
    def test_it_is_named_though_another_one_was_slow_before(self, gap_seconds: int) -> None:
        scenario = Scenario(_SHAPE)
        job, second = scenario.job, 70 + gap_seconds
        scenario.at(30).inject(job.slow, 5, "forward", 3.0)
        scenario.at(70).inject(job.slow, 5, "forward", 1.0)
        scenario.at(second).inject(job.slow, 2, "forward", 3.0)
        scenario.want(between(30, 40), fault="fail_slow", suspects=["n05"])
        scenario.want(between(second, second + 10), fault="fail_slow", suspects=["n02"])
        scenario.run(second + 60).check()

    @pytest.mark.parametrize(("slow_seconds", "gap_seconds"), [(40, 20), (60, 30), (90, 60)])
    def test_so_are_the_third_and_the_fourth(self, slow_seconds: int, gap_seconds: int) -> None:
        scenario = Scenario(_SHAPE)
        job, second = scenario.job, 60
        for rank in (5, 2, 6, 3):
            scenario.at(second).inject(job.slow, rank, "forward", 3.0)
            scenario.at(second + slow_seconds).inject(job.slow, rank, "forward", 1.0)
            scenario.want(between(second, second + 10), fault="fail_slow", suspects=[f"n{rank:02d}"])
            second += slow_seconds + gap_seconds
        scenario.run(second).check()
        assert "software_jitter" not in {verdict.cause for verdict in scenario.verdicts}

    def test_one_that_outlasts_the_turns_is_named_after_as_long_as_the_second_is(self) -> None:
        scenario = Scenario(_SHAPE)
        job = scenario.job
        for second, rank in ((30, 1), (60, 4), (90, 5), (120, 2)):
            scenario.at(second).inject(job.slow, rank, "forward", 3.0)
            scenario.at(second + (300 if rank == 2 else 30)).inject(job.slow, rank, "forward", 1.0)
        scenario.want(between(30, 40), fault="fail_slow", suspects=["n01"])
        scenario.want(between(240, 255), fault="fail_slow", suspects=["n02"]).run(300).check(taken_back=True)

    def test_one_that_stays_is_named_though_it_began_as_another_one_recovered(self) -> None:
        scenario = Scenario(_SHAPE)
        job = scenario.job
        scenario.at(30).inject(job.slow, 5, "forward", 3.0)
        scenario.at(70).inject(job.slow, 5, "forward", 1.0)
        scenario.at(72).inject(job.slow, 2, "forward", 3.0)
        scenario.want(between(190, 205), fault="fail_slow", suspects=["n02"])
        scenario.want(between(30, 40), fault="fail_slow", suspects=["n05"])
        scenario.run(230).check()


class TestTwoSlowMachinesAtOnce:
    """Each became slow by itself, and neither is well because the other one is slower."""

    @pytest.mark.parametrize("rank_count", [6, 8, 12])
    @pytest.mark.parametrize("gap_seconds", [12, 20, 40])
    def test_both_are_named(self, rank_count: int, gap_seconds: int) -> None:
        scenario = Scenario(JobShape(rank_count, step_seconds=0.3))
        job, second = scenario.job, rank_count - 2
        scenario.at(40).inject(job.slow, 1, "forward", 3.0)
        scenario.at(40 + gap_seconds).inject(job.slow, second, "forward", 6.0)
        scenario.want(between(40, 50), fault="fail_slow", suspects=["n01"])
        scenario.want(between(40 + gap_seconds, 70 + gap_seconds), fault="fail_slow", suspects=[f"n{second:02d}"])
        scenario.run(150).check()
        standing = {verdict.suspects[0].ranks for verdict in scenario.final() if verdict.state.value == "confirmed"}
        assert standing == {(1,), (second,)}


class TestAskedToEnd:
    def test_the_one_machine_that_was_taken_out_of_the_job_is_told(self) -> None:
        scenario = Scenario(_SHAPE)
        job = scenario.job
        scenario.at(60).inject(_exit, job, 5, 15, 0)
        for rank in (0, 1, 2, 3, 4, 6, 7):
            scenario.at(62).inject(_exit, job, rank, 0, 1, "RuntimeError: Connection reset by peer")
        scenario.want(between(60, 75), fault="fail_stop", suspects=["n05"])
        scenario.run(120).check()

    def test_of_a_job_that_was_cancelled_nothing_hangs(self) -> None:
        scenario = Scenario(_SHAPE)
        for rank in range(8):
            scenario.at(60).inject(_exit, scenario.job, rank, 15, 0)
        scenario.run(400)
        assert "hang" not in {verdict.fault.value for verdict in scenario.verdicts}


class TestFewMachines:
    """Ranks of one role are peers where there are four, on whatever machines."""

    @pytest.mark.parametrize(("rank_count", "host_ranks_count"), [(4, 4), (8, 8), (8, 4), (4, 2), (24, 8)])
    def test_a_slow_rank_is_named_with_its_gpu_and_no_machine_is_taken_away(
        self, rank_count: int, host_ranks_count: int
    ) -> None:
        scenario = Scenario(JobShape(rank_count, host_ranks_count, step_seconds=0.5))
        scenario.at(30).inject(scenario.job.slow, 1, "forward", 3.0)
        scenario.want(between(30, 40), fault="fail_slow", suspects=["n00"])
        scenario.run(150).check()
        assert {suspect.ranks for verdict in scenario.verdicts for suspect in verdict.suspects} == {(1,)}
        assert "rank 1 on n00 (GPU 1)" in scenario.verdicts[-1].evidence[0].text
        assert not {verdict.action.value for verdict in scenario.verdicts} & {"drain", "evict", "restart"}

    def test_fewer_than_four_abstain_and_say_why(self) -> None:
        scenario = Scenario(JobShape(2, 2, step_seconds=0.5))
        scenario.at(30).inject(scenario.job.slow, 1, "forward", 3.0)
        scenario.run(100)
        assert not [suspect for verdict in scenario.verdicts for suspect in verdict.suspects]
        assert "too few ranks have the same role" in scenario.verdicts[-1].evidence[0].text

    def test_a_whole_slow_machine_of_two_names_nobody(self) -> None:
        scenario = Scenario(JobShape(8, 4, step_seconds=0.5))
        for rank in range(4):
            scenario.at(30).inject(scenario.job.slow, rank, "forward", 3.0)
        scenario.run(120)
        assert not [suspect for verdict in scenario.verdicts for suspect in verdict.suspects]


class TestDeathAfterFreeze:
    @pytest.mark.parametrize("words", ["Connection reset by peer", "RuntimeError: out of memory"])
    def test_who_dies_while_the_job_waits_for_a_frozen_rank_hides_it_not(self, words: str) -> None:
        scenario = Scenario(_SHAPE)
        job = scenario.job
        scenario.at(30).inject(job.freeze, 5)
        scenario.at(42).inject(job.event, 2, events.EXIT, Severity.ERROR, code=1, signal=0, stderr_tail=words)
        scenario.want(between(30, 40), fault="hang", cause="process_frozen", suspects=["n05"])
        scenario.run(100)
        assert [s.component.name for verdict in scenario.final() for s in verdict.suspects] == ["n05"]
        assert scenario.final()[-1].state.value == "confirmed"


class TestProgramError:
    """An illegal access is the program's, unless the GPU of that very rank reports that it is broken."""

    @pytest.mark.parametrize(
        ("code", "rank", "cause"),
        [
            (None, 5, "cuda_execution_error"),
            (48, 5, "ecc_error"),
            (48, 2, "cuda_execution_error"),
            (63, 5, "cuda_execution_error"),
            (13, 5, "cuda_execution_error"),
            (31, 5, "cuda_execution_error"),
            (43, 5, "cuda_execution_error"),
        ],
    )
    def test_only_an_event_of_that_gpu_makes_it_the_machine_s(self, code: int | None, rank: int, cause: str) -> None:
        scenario = Scenario(JobShape(8, 8, step_seconds=0.3))
        job = scenario.job
        if code is not None:
            scenario.at(59).inject(job.event, rank, events.XID, Severity.ERROR, code=code, gpu=rank)
        words = "RuntimeError: CUDA error: an illegal memory access was encountered"
        scenario.at(60).inject(_all_exit, job, 5, words, 15)
        scenario.run(90)
        last = [verdict for verdict in scenario.final() if verdict.fault.value == "fail_stop"]
        assert [(verdict.cause, verdict.suspects[0].ranks) for verdict in last if 5 in verdict.suspects[0].ranks] == [
            (cause, (5,))
        ]
