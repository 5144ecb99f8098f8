"""Hosts that are late in start after start, over jobs: told once, by the fleet, and closed when they are in time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.fleet_timelines import HOUR, Fleet, named
from tocsin.pipeline.rca.evidence.startup import DETECTOR
from tocsin.schemas import events
from tocsin.schemas.operator_notes import Maintenance
from tocsin.schemas.verdicts import ActionKind, Component, ComponentKind, Evidence, FaultKind, Verdict, VerdictState

DAY = 24 * HOUR


class Starts(Fleet):
    """A fleet whose host n005 starts jobs, an hour apart."""

    def start(self, job: str, *, late_in: str = "") -> Verdict | None:
        """Let a job start on the host, late in a stage."""
        self.at(self.seconds + HOUR)
        late = None
        if late_in:
            span = (self.now_ns, self.now_ns)
            evidence = Evidence(DETECTOR, f"{late_in}_seconds", 2.0, *span, "n005 is late")
            made = self.make("n005", 1, job)
            late = replace(made, fault=FaultKind.FAIL_SLOW, cause="startup_slow", evidence=(evidence,))
            self.line(late)
        self.event("n005", events.HELLO, job=job)
        self.at(self.seconds + 1.0)
        return late


def test_a_host_late_in_three_of_five_starts_of_several_jobs_is_told_once() -> None:
    fleet = Starts()
    for job, stage in (("a", "env_setup"), ("b", ""), ("c", "env_setup"), ("d", "")):
        fleet.start(job, late_in=stage)
    assert fleet.lines == []
    fleet.start("e", late_in="env_setup")
    fleet.restart()
    fleet.start("e", late_in="env_setup")  # the same start, told again

    [found] = fleet.opened()
    assert (named(found), found.cause, found.reason) == (["n005"], "startup_slow", "late_in_starts_of_jobs")
    assert (found.action, found.fault, found.job.job_id) == (ActionKind.NOTIFY, FaultKind.DEGRADED, "e")
    assert "late in env_setup in 3 of its last 5 starts (jobs a, c, e)" in found.evidence[0].text

    fleet.start("f")
    assert (fleet.lines[-1].state, fleet.lines[-1].reason) == (VerdictState.RESOLVED, "starts_in_time")
    assert fleet.view.live == ()


@pytest.mark.parametrize(
    "starts",
    [
        [("a", "env_setup"), ("b", "env_setup"), ("c", "")],  # two only, and the last one in time
        [("a", "env_setup"), ("b", "model_init"), ("c", "env_setup")],  # other stages
        [("a", "env_setup"), *((name, "") for name in "bcde"), ("f", "env_setup"), ("g", "env_setup")],  # long ago
        [("a", "env_setup")] * 4,  # one start
    ],
)
def test_fewer_late_starts_are_the_jobs_own_findings(starts: list[tuple[str, str]]) -> None:
    fleet = Starts()
    for job, stage in starts:
        fleet.start(job, late_in=stage)
    assert fleet.lines == []


def test_planned_work_a_wrong_verdict_and_a_cancelled_one_do_not_count() -> None:
    for how in ("planned", "denied", "cancelled"):
        fleet = Starts()
        if how == "planned":
            until_ns = fleet.now_ns + 10 * round(DAY) * 10**9
            host = Component(ComponentKind.HOST, "n005")
            work = Maintenance("0" * 16, "c", host, fleet.now_ns, until_ns, "x", "uid:1", fleet.now_ns)
            fleet.view.on_maintenance(work)
        fleet.start("a", late_in="env_setup")
        late = fleet.start("b", late_in="env_setup")
        assert late is not None
        if how == "denied":
            fleet.feedback(late.verdict_id, is_true=False)
        if how == "cancelled":
            fleet.line(replace(late, state=VerdictState.CANCELLED, update=1))
        fleet.start("c", late_in="env_setup")
        assert fleet.lines == [], how
        if how != "planned":
            fleet.start("d", late_in="env_setup")
            assert len(fleet.opened()) == 1, how


def test_after_a_month_without_a_start_it_is_closed() -> None:
    fleet = Starts()
    for job in "abc":
        fleet.start(job, late_in="env_setup")
    assert len(fleet.opened()) == 1
    fleet.run(31 * DAY, DAY)
    assert fleet.view.live == ()
