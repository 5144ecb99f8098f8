"""Starts of whole jobs: the machine that is late in a stage, and what looks like one and is none."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tocsin.pipeline.lab.testing import JobShape, Scenario, between
from tocsin.schemas import events
from tocsin.schemas.verdicts import VerdictState

STAGES = {"env_setup": 20.0, "model_init": 20.0}


class Start:
    """Plays the stages of a start; ``factors`` are those of (rank, stage), or of a stage on all ranks."""

    def __init__(
        self,
        scenario: Scenario,
        factors: Mapping[tuple[int, str] | str, float] | None = None,
        lost: tuple[int, str] | None = None,
        at: float = 1.0,
    ) -> None:
        self._job, factors = scenario.job, factors or {}
        begin = at
        for stage, seconds in STAGES.items():
            ends = {
                rank.rank: begin
                + seconds * (1 + 0.01 * rank.rank) * factors.get((rank.rank, stage), factors.get(stage, 1.0))
                for rank in scenario.job.ranks
            }
            for rank, end in ends.items():
                scenario.at(begin).inject(self._mark, rank, stage, "begin")
                if (rank, stage) != lost:
                    scenario.at(end).inject(self._mark, rank, stage, "end")
            begin = max(ends.values()) + 1.0
        self.seconds = begin
        scenario.at(at).inject(scenario.job.pause, begin - at, "")

    def _mark(self, rank: int, stage: str, edge: str) -> None:
        self._job.event(rank, events.STAGE, stage=stage, edge=edge, start_kind="full")


def build() -> Scenario:
    return Scenario(JobShape(rank_count=8, step_seconds=1.0))


def told(scenario: Scenario) -> list[tuple[str, str]]:
    return [(one.cause, one.suspects[0].component.name if one.suspects else "") for one in scenario.verdicts]


def test_the_late_machine_is_named_before_its_stage_ends() -> None:
    scenario = build()
    start = Start(scenario, {(3, "env_setup"): 4.0})
    scenario.want(between(30, 36), fault="fail_slow", cause="startup_slow", suspects=["n03"], action="notify")
    scenario.run(int(start.seconds) + 12).check()

    assert set(told(scenario)) == {("startup_slow", "n03")}
    assert scenario.verdicts[-1].state is VerdictState.RESOLVED
    assert "the median of 7 hosts that have ended it is" in scenario.verdicts[0].evidence[0].text


def test_a_healthy_start_accuses_nobody() -> None:
    scenario = build()
    start = Start(scenario)
    scenario.want_nothing(int(start.seconds) + 12)


@pytest.mark.parametrize("stage", STAGES)
def test_a_lost_end_accuses_nobody(stage: str) -> None:
    scenario = build()
    start = Start(scenario, lost=(5, stage))
    scenario.want_nothing(int(start.seconds) + 12)


def test_a_slow_mirror_accuses_nobody_without_a_history() -> None:
    scenario = build()
    start = Start(scenario, {"env_setup": 4.0})
    scenario.want_nothing(int(start.seconds) + 12)


def test_many_late_machines_are_a_shared_service() -> None:
    scenario = Scenario(JobShape(rank_count=16, step_seconds=1.0))
    start = Start(scenario, {(rank, "env_setup"): 3.0 for rank in range(6)})
    scenario.want(between(30, 36), fault="fail_slow", cause="shared_service", suspects=[], action="notify")
    scenario.run(int(start.seconds) + 12).check()

    assert set(told(scenario)) == {("shared_service", "")}


def test_a_machine_that_ends_a_moment_after_it_was_named_was_late_all_the_same() -> None:
    scenario = build()
    start = Start(scenario, {(3, "model_init"): 1.7})
    scenario.run(int(start.seconds) + 25)

    assert set(told(scenario)) == {("startup_slow", "n03")}
    assert [one.state for one in scenario.verdicts] == [
        VerdictState.OPEN,
        VerdictState.CONFIRMED,
        VerdictState.RESOLVED,
    ]


@pytest.mark.parametrize("late", [(0, 1, 2, 3), (1, 3, 5, 7)])
def test_where_half_of_the_machines_are_late_none_is_a_straggler(late: tuple[int, ...]) -> None:
    scenario = build()
    start = Start(scenario, {(rank, "env_setup"): 4.0 for rank in late})
    scenario.run(int(start.seconds) + 12)

    assert set(told(scenario)) <= {("shared_service", "")}


def test_a_host_without_a_rank_that_waits_in_a_stage_is_not_accused() -> None:
    scenario = build()
    start = Start(scenario)
    scenario.at(1.0).inject(scenario.job.foreign_event, "spare7", events.STAGE, stage="env_setup", edge="begin")
    scenario.want_nothing(int(start.seconds) + 12)


def test_a_late_machine_is_named_beside_a_host_without_a_rank() -> None:
    scenario = build()
    start = Start(scenario, {(3, "env_setup"): 4.0})
    scenario.at(1.0).inject(scenario.job.foreign_event, "spare7", events.STAGE, stage="env_setup", edge="begin")
    scenario.run(int(start.seconds) + 12)

    assert set(told(scenario)) == {("startup_slow", "n03")}
