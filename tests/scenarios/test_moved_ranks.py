"""Ranks that begin again on other hosts within an attempt: what former hosts did is not held against the new ones.

Steps take half a second. The whole job is started again at second 90, and from second 110 on it trains; rank 3 is on
n08 then, and no longer on n03.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from tocsin.pipeline.lab.testing import JobShape, Scenario, between
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine
from tocsin.schemas import events
from tocsin.schemas.records import NS_PER_SECOND, JobRecord
from tocsin.schemas.verdicts import Verdict

MOVED, PAUSE = 90, 20


def _moved_job(hosts: Mapping[int, str] | None = None, second: int = MOVED, **shape: Any) -> Scenario:
    """A job some of whose ranks are on other, healthy hosts from a second on; ``shape`` are fields of ``JobShape``."""
    moved = hosts or {3: "n08"}
    scenario = Scenario(JobShape(**{"step_seconds": 0.5, "jitter_ratio": 0.02, **shape}))
    job = scenario.job

    def end() -> None:
        job.pause(PAUSE, phase="")
        for rank in job.ranks:
            job.event(rank.rank, events.BYE)
            rank.steps.clear()
            rank.collectives.clear()
            if rank.rank in moved:
                rank.host = moved[rank.rank]
                rank.slow.clear()

    def begin() -> None:
        for rank in job.ranks:
            job.event(rank.rank, events.HELLO)

    scenario.at(second).inject(end)
    scenario.at(second + PAUSE - 3).inject(begin)
    return scenario


def _broken_off(scenario: Scenario, *seconds: int) -> Scenario:
    """The scenario with an engine that is restored from its snapshot at these seconds."""

    def follow(_records: Sequence[JobRecord], _lines: Sequence[Verdict], now_ns: int) -> None:
        if (now_ns - scenario.shape.start_ns) // NS_PER_SECOND in seconds:
            parts = scenario.engine.snapshot()
            scenario.engine = EmbeddedEngine(scenario.engine_config)
            scenario.engine.restore(parts)

    scenario.followers.append(follow)
    return scenario


def _slow_host_is_replaced() -> Scenario:
    scenario = _moved_job()
    scenario.at(40).inject(scenario.job.slow, 3, "forward", 2.0)
    return scenario


def test_a_host_that_takes_the_rank_of_a_slow_one_is_not_accused_of_its_steps() -> None:
    scenario = _slow_host_is_replaced()
    scenario.want(between(40, 60), fault="fail_slow", suspects=["n03"])
    scenario.run(190).check()
    assert {verdict.suspects[0].component.name for verdict in scenario.verdicts} == {"n03"}


@pytest.mark.parametrize("second", [MOVED, 150], ids=["at-once", "later"])
def test_a_host_that_is_slow_with_the_rank_that_it_took_is_named(second: int) -> None:
    scenario = _moved_job()
    scenario.at(second + 1).inject(scenario.job.slow, 3, "forward", 2.0)
    scenario.want(between(second, second + 60), fault="fail_slow", suspects=["n08"])
    scenario.run(second + 60).check()


def test_what_the_former_host_made_slow_from_the_start_is_not_usual_on_the_next_one() -> None:
    """How the job is split would make the rank slow on any host."""
    scenario = _moved_job()
    scenario.job.slow(3, "forward", 1.4)
    scenario.at(150).inject(scenario.job.slow, 3, "forward", 1.6)
    scenario.want(between(75, 90), fault="degraded", suspects=["n03"])
    scenario.want(between(150, 200), fault="fail_slow", suspects=["n08"])
    scenario.run(200).check()


def test_a_rank_that_is_slow_wherever_it_runs_is_so_by_the_job_s_split() -> None:
    scenario = _moved_job()
    scenario.job.load = lambda rank, _step, _phase: 1.2 if rank == 3 else 1.0
    scenario.run(200)
    assert {verdict.fault.value for verdict in scenario.verdicts if verdict.suspects} <= {"degraded"}


def test_what_all_ranks_compute_after_they_moved_is_usual_from_then_on() -> None:
    """A better placement may make kernels slower."""
    scenario = _moved_job()
    for phase in ("forward", "backward"):
        scenario.at(MOVED + 1).inject(scenario.job.slow_all, phase, 1.6)
    scenario.want_nothing(200)


def test_ranks_that_all_compute_longer_later_are_told() -> None:
    scenario = _moved_job()
    for phase in ("forward", "backward"):
        scenario.at(150).inject(scenario.job.slow_all, phase, 1.6)
    scenario.want(between(150, 190), fault="fail_slow", cause="workload_change", suspects=[])
    scenario.run(190).check()


def test_a_slow_link_of_the_next_host_is_named() -> None:
    scenario = _moved_job()
    scenario.at(MOVED + 1).inject(scenario.job.slow_link, 3, 0.1)
    scenario.want(between(MOVED, 160), fault="fail_slow", cause="network_slow", suspects=["n08"])
    scenario.run(160).check()


def test_hosts_that_exchange_their_ranks_keep_none_of_the_other_s_past() -> None:
    scenario = _moved_job({3: "n06", 6: "n03"})
    scenario.at(40).inject(scenario.job.slow, 3, "forward", 2.0)
    scenario.want(between(40, 60), fault="fail_slow", suspects=["n03"])
    scenario.run(190).check()


@pytest.mark.parametrize(("factor", "told"), [(1.0, set()), (1.1, {"n08"})])
def test_a_forward_pass_of_the_former_host_is_not_usual_on_the_next_one(factor: float, told: set[str]) -> None:
    scenario = _moved_job(second=200, rank_count=6, step_seconds=5.0)
    scenario.job.slow(3, "forward", 1.06)
    scenario.at(390).inject(scenario.job.slow, 3, "forward", factor)
    scenario.run(450)
    named = {suspect.component.name for verdict in scenario.verdicts for suspect in verdict.suspects}
    assert (named, {verdict.reason for verdict in scenario.verdicts if verdict.suspects}) == (
        told,
        {"slow_forward"} if told else set(),
    )


@pytest.mark.parametrize("seconds", [(MOVED, 105, 112), (111, 113, 118, 125, 150)])
def test_an_engine_that_is_restored_says_the_same(seconds: tuple[int, ...]) -> None:
    told = []
    for scenario in (_slow_host_is_replaced(), _broken_off(_slow_host_is_replaced(), *seconds)):
        scenario.at(160).inject(scenario.job.slow, 3, "forward", 2.0)
        scenario.run(190)
        told.append([verdict.to_line() for verdict in scenario.verdicts])
    assert told[0] == told[1]
    assert scenario.accused_names()
