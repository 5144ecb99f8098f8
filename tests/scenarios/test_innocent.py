"""Innocent timelines: nobody is accused, and where somebody must be, it is the right one.

Most of them were found by a review that set out to have a healthy machine evicted.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from tests.timelines import build_scenario
from tocsin.pipeline.lab.testing import (
    FakeJob,
    Scenario,
    between,
)
from tocsin.schemas import events
from tocsin.schemas.records import Severity


def _hard(scenario: Scenario) -> list[str]:
    return [verdict.action.value for verdict in scenario.verdicts if verdict.action.value in ("drain", "evict")]


def _exit(job: FakeJob, rank: int, code: int = 0, signal: int = 0) -> Callable[[], None]:
    def ends() -> None:
        job.event(rank, events.EXIT, code=code, signal=signal, stderr_tail="")
        job.ranks[rank].exited = True
        job.stalled = True

    return ends


class TestData:
    @pytest.mark.parametrize("seed", range(3))
    def test_sequences_of_many_lengths(self, seed: int) -> None:
        scenario, job = build_scenario(seed=seed)
        job.load = lambda rank, step, phase: (
            max(0.3, random.Random(rank * 100_003 + step).gauss(1.0, 0.4)) if phase in ("forward", "backward") else 1.0
        )
        scenario.run(300)
        assert not scenario.accused_names()

    @pytest.mark.parametrize(("factor", "steps"), [(1.3, 100), (2.0, 40)])
    def test_a_heavy_shard_that_goes_round_drains_nobody_and_is_called_data(self, factor: float, steps: int) -> None:
        """The first host may be named mildly; from the second on the blame goes round."""
        scenario, job = build_scenario()
        job.load = lambda rank, step, _phase: factor if rank == (step // steps) % 8 else 1.0
        scenario.run(300)
        assert not _hard(scenario)
        assert len(set(scenario.accused_names())) <= 1
        assert "data_imbalance" in {verdict.cause for verdict in scenario.verdicts}

    def test_pauses_of_changing_ranks(self) -> None:
        scenario, job = build_scenario()
        job.extra_seconds = lambda rank, step: 0.4 if (step * 7) % 8 == rank else 0.0
        scenario.run(200)
        assert not scenario.accused_names()

    def test_one_rank_that_logs_every_third_step(self) -> None:
        scenario, job = build_scenario()
        job.extra_seconds = lambda rank, step: 0.5 if rank == 0 and step % 3 == 0 else 0.0
        scenario.run(200)
        assert not scenario.accused_names()

    def test_a_long_last_stage_that_nobody_announced_is_never_drained(self) -> None:
        scenario, job = build_scenario(rank_count=16)
        job.load = lambda rank, _step, _phase: 1.35 if rank >= 14 else 1.0
        scenario.run(200)
        assert not _hard(scenario)
        assert not scenario.accused_names()


class TestStale:
    def test_evidence_that_stopped_coming_confirms_nothing(self) -> None:
        """Slow for five seconds, then healthy in a checkpoint of a minute: no step shows anything since."""
        scenario, job = build_scenario()
        scenario.at(20).inject(job.slow, 3, "forward", 4)
        scenario.at(25).inject(job.slow, 3, "forward", 1)
        scenario.at(25).inject(job.pause, 60)
        scenario.run(110)
        assert "confirmed" not in {verdict.state.value for verdict in scenario.verdicts}
        assert not scenario.accused_names()

    def test_a_proposal_is_not_renewed_without_new_evidence(self) -> None:
        """A drain from before a pause of twenty minutes expires."""
        scenario, job = build_scenario()
        scenario.at(20).inject(job.slow, 3, "forward", 4)
        scenario.at(80).inject(job.pause, 1200)
        scenario.run(1100)
        last = scenario.verdicts[-1]
        assert (last.state.value, last.action.value, last.reason) == ("expired", "none", "expired")
        assert "still_true" not in {verdict.reason for verdict in scenario.verdicts}


class TestBystanders:
    def test_a_silent_host_that_nobody_waits_for(self) -> None:
        """Its agent died in the seconds in which another rank stopped arriving."""
        scenario, job = build_scenario()
        scenario.at(20).inject(job.kill_agent, 2)
        scenario.at(20).inject(job.freeze, 5, seen=False)
        scenario.run(90)
        assert "n02" not in scenario.accused_names()
        assert "evict" not in _hard(scenario)

    def test_an_agent_dies_and_all_pause_without_a_word(self) -> None:
        scenario, job = build_scenario()
        scenario.at(20).inject(job.kill_agent, 2)
        scenario.at(22).inject(job.pause, 25, "")
        scenario.run(90)
        assert not scenario.accused_names()


class TestNan:
    def test_the_fastest_rank_is_not_the_first(self) -> None:
        """The weights were bad already: all lose their numbers in the same step."""
        scenario, job = build_scenario()

        def everybody() -> None:
            for rank in range(8):
                job.now_ns += 0 if rank == 5 else 150_000_000
                job.event(rank, events.NAN, step=90, what="loss", value="nan")
                job.now_ns -= 0 if rank == 5 else 150_000_000

        scenario.at(20).inject(everybody)
        scenario.run(60)
        assert not scenario.accused_names()

    def test_only_one_rank_logs_its_loss(self) -> None:
        scenario, job = build_scenario()
        for rank in job.ranks[1:]:
            rank.tells_loss = False
        scenario.at(20).inject(job.event, 0, events.NAN, step=90, what="loss", value="nan")
        scenario.run(60)
        assert not scenario.accused_names()


class TestTakenDownByOthers:
    def test_terminated_then_killed(self) -> None:
        """A scheduler's SIGTERM, and SIGKILL for the one that did not listen."""
        scenario, job = build_scenario()
        for rank in range(8):
            if rank != 3:
                scenario.at(20).inject(_exit(job, rank, signal=15))
        scenario.at(22).inject(_exit(job, 3, signal=9))
        scenario.run(60)
        assert not scenario.accused_names()

    def test_a_handler_that_exits_143(self) -> None:
        scenario, job = build_scenario()
        for rank in range(8):
            scenario.at(20 + rank / 4).inject(_exit(job, rank, code=143))
        scenario.run(60)
        assert not scenario.accused_names()

    def test_killed_one_after_another(self) -> None:
        """The first may be named for some seconds; then somebody is seen to end the job."""
        scenario, job = build_scenario()
        for rank in range(8):
            scenario.at(20 + rank).inject(_exit(job, rank, signal=9))
        scenario.run(60)
        assert not scenario.accused_names()
        assert scenario.verdicts[-1].reason == "program_error_everywhere"

    def test_a_rank_that_leaves_early_is_named_as_an_exit(self) -> None:
        scenario, job = build_scenario()

        def leaves() -> None:
            job.event(3, events.BYE)
            _exit(job, 3)()

        scenario.at(20).inject(leaves)
        scenario.want(between(20, 60), cause="process_exit", suspects=["n03"])
        scenario.run(90).check()


class TestBlindness:
    def test_a_lost_end_of_a_phase_does_not_blind(self) -> None:
        scenario, job = build_scenario()
        scenario.at(20).inject(job.event, 0, events.PHASE, phase="checkpoint", edge="begin")
        scenario.at(60).inject(job.slow, 3, "forward", 4)
        scenario.want(between(60, 70), fault="fail_slow", suspects=["n03"])
        scenario.run(120).check()

    def test_two_hosts_of_sixteen_are_named_together(self) -> None:
        scenario, job = build_scenario(rank_count=16)
        scenario.at(20).inject(job.slow, 3, "forward", 4)
        scenario.at(20).inject(job.slow, 8, "forward", 4)
        scenario.want(between(20, 30), fault="fail_slow", suspects=["n03", "n08"])
        scenario.run(60).check()

    def test_everybody_waits_for_data_and_nobody_steps(self) -> None:
        """The storage is down: a service, not a machine."""
        scenario, job = build_scenario()

        def down() -> None:
            job.stalled = True
            for rank in job.ranks:
                rank.frozen = True
                job.event(
                    rank.rank, events.STALL, edge="begin", step=job.step + 1, phase="data", elapsed_seconds=3.0,
                    in_collective=False, beat_age_seconds=0.2,
                )  # fmt: skip

        scenario.at(20).inject(down)
        scenario.want(between(20, 80), cause="shared_service", suspects=[])
        scenario.run(120).check()


class TestEventBesideSlowJob:
    """One machine reports a slow part, and all of the job is slow for a reason that steps know."""

    @pytest.mark.parametrize("event_seconds", [70, 95, 101, 104])
    @pytest.mark.parametrize("name", ["nvlink_error", "pcie_link"])
    @pytest.mark.parametrize(
        ("phase", "factor", "cause"), [("data", 20, "shared_service"), ("forward", 3, "workload_change")]
    )
    def test_the_part_is_odd_and_the_slowness_is_nobodys(
        self, event_seconds: float, name: str, phase: str, factor: float, cause: str
    ) -> None:
        scenario, job = build_scenario()
        payload = {"pcie_link": {"width": 4, "max_width": 16, "gen": 1, "max_gen": 5}}.get(name, {})
        scenario.at(100).inject(job.slow_all, phase, factor)
        scenario.at(event_seconds).inject(job.event, 3, name, Severity.WARNING, **payload)
        scenario.run(220)

        assert not scenario.accused_names()
        assert not _hard(scenario)
        reported = [verdict for verdict in scenario.verdicts if verdict.cause == cause]
        assert reported
        assert reported[0].detected_ns - scenario.shape.start_ns <= 140 * 1_000_000_000

    def test_a_slow_machine_that_reports_it_is_named(self) -> None:
        scenario, job = build_scenario()
        scenario.at(100).inject(job.slow, 3, "forward", 3)
        scenario.at(101).inject(job.event, 3, "nvlink_error", Severity.WARNING)
        scenario.run(180)

        assert set(scenario.accused_names()) == {"n03"}
        assert scenario.final()[-1].cause == "nvlink_error"
