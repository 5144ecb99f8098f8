"""A check before a return is given to an executor only while the machine is out by us alone, and nobody uses it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.pipeline.actions.kit import CLUSTER, JOB, LIVE, Stage, verdict_on
from tocsin.pipeline.actions.guards.return_checks import RETURN_RULE
from tocsin.schemas.action_events import (
    AckKind,
    ActionEvent,
    Approval,
    ExecutorHeard,
    HumanChange,
    HumanChangeKind,
    JobFacts,
)
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.actions import Action
from tocsin.schemas.job_key import JobKey
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import ActionKind, Component, ComponentKind

S = ActionState


def to_check() -> tuple[Stage, Action]:
    """A machine that was evicted, and the approved check of it ten minutes later."""
    stage = Stage()
    stage.judge(verdict_on("n1"))
    stage.carry_out(stage.on_host("n1"))
    stage.tell(JobFacts(replace(JOB, attempt=1), stage.now_ns, hosts=("n2", "n3")))
    stage.at(610)
    check = stage.on_host("n1", ActionKind.PROBE)
    assert (check.rule, check.state) == (RETURN_RULE, S.APPROVED)
    return stage, check


def test_a_machine_that_is_out_by_us_alone_is_checked() -> None:
    stage, check = to_check()
    stage.at(900)
    stage.ack(check, AckKind.CLAIMED)
    stage.ack(check, AckKind.STARTED)
    assert stage.action(check.action_id).state is S.STARTED


@pytest.mark.parametrize(
    ("told", "detail"),
    [
        (HumanChange(CLUSTER, "n1", HumanChangeKind.UNCORDONED, "ann", 0), "n1: no action keeps it out"),
        (HumanChange(CLUSTER, "n1", HumanChangeKind.CORDONED, "ann", 0), "n1: somebody else keeps it out"),
        (JobFacts(JobKey(CLUSTER, "other"), 0, hosts=("n1", "n9")), "n1: job other uses it"),
        (JobFacts(replace(JOB, attempt=1), 0, hosts=("n1", "n2")), "n1: job 778 uses it"),
    ],
    ids=["given_back", "kept_by_another", "used_by_another_job", "used_by_its_job"],
)
def test_a_machine_that_came_back_is_used_or_is_somebody_elses_is_not_checked(told: ActionEvent, detail: str) -> None:
    stage, check = to_check()
    stage.now_ns += 1
    stage.tell(replace(told, ts_ns=stage.now_ns))
    stage.ack(check, AckKind.CLAIMED)
    after = stage.action(check.action_id)
    assert (after.state, after.reason, after.detail) == (S.EXPIRED, "not_to_check", detail)
    assert stage.pages() == []


def test_that_nobody_makes_a_check_any_more_is_told_of_the_action_that_keeps_the_machine_out() -> None:
    stage, check = to_check()
    for _ in range(2):
        stage.now_ns += NS_PER_SECOND
        stage.tell(ExecutorHeard(CLUSTER, "slurm", (ActionKind.EVICT,), stage.now_ns))
        stage.published += stage.controller.on_time(stage.now_ns)
    after = stage.action(check.action_id)
    assert (after.state, after.reason) == (S.WAITING, "no_executor")
    (page,) = [one for one in stage.published if one.kind is ActionKind.NOTIFY]
    assert (page.reason, page.verdict_id) == ("check_unanswered", stage.on_host("n1").verdict_id)
    assert page.detail.startswith("evict n1: n1: ")


@pytest.mark.parametrize("is_over", [True, False])
def test_a_drained_machine_is_checked_only_when_its_job_has_ended(is_over: bool) -> None:
    stage = Stage()
    stage.judge(verdict_on("n1", action=ActionKind.DRAIN))
    stage.carry_out(stage.on_host("n1", ActionKind.DRAIN))
    stage.tell(JobFacts(JOB, stage.now_ns + 1, is_over=is_over))
    stage.at(610)
    checks = [one for one in stage.controller.actions() if one.rule == RETURN_RULE]
    assert [one.state for one in checks] == [S.APPROVED] * is_over


def test_of_a_group_only_the_machines_that_are_free_are_checked() -> None:
    stage = Stage()
    stage.judge(verdict_on("n1", "n11", common=Component(ComponentKind.LEAF, "leaf1")))
    evict = next(one for one in stage.controller.actions() if one.kind is ActionKind.EVICT)
    stage.tell(Approval(CLUSTER, evict.action_id, "eve", stage.now_ns))
    stage.carry_out(evict)
    stage.tell(HumanChange(CLUSTER, "n1", HumanChangeKind.CORDONED, "ann", stage.now_ns))
    stage.at(610)
    checks = [one for one in stage.controller.actions() if one.rule == RETURN_RULE]
    assert [(one.target.hosts, one.state) for one in checks] == [(("n11",), S.APPROVED)]


def test_many_checks_before_a_return_are_no_flood() -> None:
    stage = Stage(replace(LIVE, machine_budgets=()))
    for index in range(1, 7):
        stage.judge(verdict_on(f"n{index}", name=f"v{index}", cause=f"c{index}"))
        stage.carry_out(stage.on_host(f"n{index}"))
    stage.at(610)
    checks = [one for one in stage.controller.actions() if one.rule == RETURN_RULE]
    assert [one.state for one in checks] == [S.APPROVED] * 6
