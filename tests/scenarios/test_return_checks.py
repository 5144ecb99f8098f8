"""Timelines of machines that are checked under load before they return, in a fleet on which the shipped policy acts."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from tests.action_timelines import DAY, HOUR, LIVE, MINUTE, ActingFleet
from tests.pipeline.actions.policy.samples import JOB, A, host, ladder
from tocsin.pipeline.actions.controller import ActionController
from tocsin.pipeline.actions.guards.return_checks import RETURN_RULE
from tocsin.schemas.action_events import Cancel, CordonOwner, CordonSeen, HumanChange, HumanChangeKind, JobFacts
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.actions import Action
from tocsin.schemas.job_key import JobKey
from tocsin.schemas.operator_notes import Maintenance
from tocsin.schemas.verdicts import FaultKind

S = ActionState


def taken(fleet: ActingFleet, host: str = "n003", kind: A = A.EVICT) -> Action:
    """Let a machine be taken away; its job goes on without it."""
    fleet.accuse("ecc_error" if kind is A.EVICT else "pcie_slow", host)
    fleet.run(30)
    assert fleet.out() == [host]
    action = fleet.on(host, kind)
    assert action.state is S.DONE
    others = [one for one in fleet.hosts if one != host]
    fleet.tell(JobFacts(JobKey(JOB.cluster, "j1", 1), fleet.now_ns, tuple(others), "1", may_shrink=True))
    return action


def checks(fleet: ActingFleet) -> list[Action]:
    """The checks that the controller asked for, oldest first."""
    return [one for one in fleet.of(A.PROBE) if one.rule == RETURN_RULE]


def test_a_machine_that_passes_its_check_returns_and_its_action_is_undone() -> None:
    fleet = ActingFleet()
    begun = fleet.start_checks()
    action = taken(fleet)
    fleet.run(9 * MINUTE)
    assert (begun, fleet.out()) == ([], ["n003"]), "it waits for ten minutes"
    fleet.run(2 * MINUTE)
    assert begun == [("n003",)]
    (check,) = checks(fleet)
    assert (check.state, check.budget_class, check.target.machines[0].boot_id) == (S.DONE, RETURN_RULE, "boot-n003")
    assert fleet.out() == []
    undone = fleet.on("n003")
    assert (undone.action_id, undone.state) == (action.action_id, S.UNDONE)
    fleet.run(DAY, step=MINUTE)
    assert len(begun) == 1, "what is back is not checked again"


def test_a_machine_that_fails_stays_out_and_its_incident_says_so() -> None:
    fleet = ActingFleet()
    begun = fleet.start_checks("n003")
    action = taken(fleet)
    fleet.run(11 * MINUTE)
    assert (begun, fleet.out()) == ([("n003",)], ["n003"])
    page = next(one for one in reversed(fleet.published) if one.kind is A.NOTIFY and one.reason == "check_failed")
    assert page.verdict_id == action.verdict_id
    assert "n003: computation: wrong_result core 5" in page.detail


def test_a_check_without_an_answer_is_told_once_and_the_machine_stays_out() -> None:
    fleet = ActingFleet()
    begun = fleet.start_checks("*")
    action = taken(fleet)
    fleet.run(6 * HOUR, step=10)
    assert len(begun) == 5
    assert [(one.state, one.reason) for one in checks(fleet)] == [(S.FAILED, "failed")] * 5
    pages = [one for one in fleet.published if one.kind is A.NOTIFY]
    assert [(one.verdict_id, one.reason) for one in pages] == [(action.verdict_id, "check_unanswered")]
    assert fleet.out() == ["n003"]


def test_each_check_within_a_week_doubles_the_wait_before_the_next() -> None:
    fleet = ActingFleet()
    fleet.start_checks("n003")
    taken(fleet)
    fleet.run(6 * DAY, step=MINUTE)
    times = [one.issued_ns for one in checks(fleet)]
    waits = [(after - before) / 6e10 for before, after in pairwise(times)]
    assert len(times) == 9
    for number, minutes in enumerate(waits, 1):
        assert 10 * 2**number <= minutes <= 10 * 2**number + 2
    assert fleet.out() == ["n003"]


def test_nothing_is_checked_in_maintenance_nor_while_somebody_else_keeps_it_out() -> None:
    fleet = ActingFleet()
    begun = fleet.start_checks()
    taken(fleet)
    now_ns, until_ns = fleet.now_ns, fleet.now_ns + int(2 * HOUR * 1e9)
    fleet.tell(Maintenance("0" * 16, JOB.cluster, host("n003"), now_ns, until_ns, "fan", "uid:0", now_ns))
    fleet.run(2 * HOUR - MINUTE, step=10)
    assert begun == []
    fleet.tell(HumanChange(JOB.cluster, "n003", HumanChangeKind.CORDONED, "ann", fleet.now_ns))
    fleet.run(DAY, step=MINUTE)
    assert begun == []
    assert fleet.pages() == [], "nobody is told of a check that is not made"
    fleet.tell(CordonSeen(JOB.cluster, "n003", CordonOwner.TOCSIN, fleet.now_ns))
    fleet.run(MINUTE, step=10)
    assert begun == [("n003",)]


def test_a_drained_machine_is_checked_when_no_job_uses_it() -> None:
    fleet = ActingFleet()
    begun = fleet.start_checks()
    fleet.accuse("thermal_throttling", "n003", fault=FaultKind.FAIL_SLOW)
    fleet.run(30)
    assert (fleet.out(), fleet.on("n003", A.DRAIN).state) == (["n003"], S.DONE)
    fleet.run(2 * HOUR, step=10)
    assert begun == [], "its job goes on there"
    fleet.tell(JobFacts(JobKey(JOB.cluster, "j1", 0), fleet.now_ns, is_over=True))
    fleet.run(MINUTE)
    assert (begun, fleet.out()) == ([("n003",)], [])


def test_a_check_is_not_begun_on_a_machine_that_came_back_meanwhile() -> None:
    fleet = ActingFleet()
    begun = fleet.start_checks()
    action = taken(fleet)
    fleet.stop("checks")
    fleet.run(10 * MINUTE + 10)
    assert [one.state for one in checks(fleet)] == [S.APPROVED]
    fleet.tell(Cancel(JOB.cluster, action.action_id, "uid:0", fleet.now_ns))
    fleet.run(5)
    assert (fleet.out(), begun) == ([], [])
    assert [(one.state, one.reason) for one in checks(fleet)] == [(S.EXPIRED, "not_to_check")]


def test_without_an_executor_for_checks_nothing_is_asked_and_nobody_is_paged() -> None:
    fleet = ActingFleet()
    fleet.heard_kinds = tuple(one for one in fleet.heard_kinds if one is not A.PROBE)
    fleet.run(2 * MINUTE)
    taken(fleet)
    fleet.run(DAY, step=MINUTE)
    assert checks(fleet) == []
    assert fleet.pages() == []
    assert fleet.out() == ["n003"]


def test_during_a_dry_run_a_check_is_only_shown() -> None:
    fleet = ActingFleet()
    begun = fleet.start_checks()
    taken(fleet)
    parts = fleet.controller.snapshot()
    fleet.controller = ActionController(replace(LIVE, is_dry_run=True), ladder())
    fleet.controller.restore(parts)
    fleet.run(11 * MINUTE)
    assert (begun, [one.state for one in checks(fleet)]) == ([], [S.PROPOSED])
    assert fleet.out() == ["n003"]


def test_a_restart_of_the_controller_forgets_no_check() -> None:
    fleet = ActingFleet()
    begun = fleet.start_checks("n003")
    taken(fleet)
    fleet.run(11 * MINUTE)
    fleet.restart_controller()
    fleet.run(15 * MINUTE)
    assert len(begun) == 1
