"""A person decides on a check of a machine on which a job works."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.pipeline.actions.kit import CLUSTER, JOB, T0, Stage, verdict_on
from tocsin.schemas.action_events import Approval, JobFacts
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.actions import Action
from tocsin.schemas.job_key import FLEET_JOB_ID, IDLE_JOB_ID, JobKey
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import ActionKind, FaultKind, VerdictState

OTHER = JobKey(CLUSTER, "other", 0)
UNKNOWN = JobKey(CLUSTER, "nobody-told", 0)


def checked(stage: Stage, fault: FaultKind, host: str = "n1", job: JobKey = JOB) -> Action:
    """Propose a check of a machine; return it as it is then."""
    stage.judge(verdict_on(host, action=ActionKind.PROBE, fault=fault, job=job))
    return stage.on_host(host, ActionKind.PROBE)


def is_free(stage: Stage, host: str = "n1") -> bool:
    """Let a tick pass; return whether the check needs no approval now."""
    stage.at(2)
    return stage.on_host(host, ActionKind.PROBE).reason == "allowed"


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (FaultKind.FAIL_STOP, "allowed"),
        (FaultKind.FAIL_SLOW, "job_runs"),
        (FaultKind.SILENT_CORRUPTION, "job_runs"),
        (FaultKind.HANG, "job_runs"),
    ],
)
def test_only_a_job_that_has_failed_is_in_nobodys_way(fault: FaultKind, reason: str) -> None:
    assert checked(Stage(), fault).reason == reason


def test_people_are_told_which_job_works_on_the_machine() -> None:
    stage = Stage()
    action = checked(stage, FaultKind.FAIL_SLOW)

    assert (action.state, action.detail) == (ActionState.WAITING_APPROVAL, f"n1: job {JOB.job_id} works on it")
    assert stage.pages() == ["job_runs"]


def test_a_person_may_let_it_go_at_once() -> None:
    stage = Stage()
    action = checked(stage, FaultKind.FAIL_SLOW)
    stage.tell(Approval(CLUSTER, action.action_id, "operator:eve", T0 + 1))

    found = stage.action(action.action_id)
    assert (found.state, found.reason) == (ActionState.APPROVED, "approved_by_person")


def test_a_machine_that_another_job_uses_is_not_checked_without_asking() -> None:
    stage = Stage()
    stage.tell(JobFacts(OTHER, T0, hosts=("n1",)))
    action = checked(stage, FaultKind.FAIL_STOP)

    assert (action.reason, action.detail) == ("job_runs", "n1: job other works on it")


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (JobKey(CLUSTER, IDLE_JOB_ID), "allowed"),
        (JobKey(CLUSTER, FLEET_JOB_ID), "allowed"),
        (UNKNOWN, "job_runs"),
    ],
)
def test_a_job_that_nobody_told_of_works_on_the_machines_of_its_verdict(job: JobKey, reason: str) -> None:
    assert checked(Stage(), FaultKind.FAIL_SLOW, "m1", job).reason == reason


@pytest.mark.parametrize(
    ("fault", "reason"), [(FaultKind.FAIL_STOP, "allowed"), (FaultKind.SILENT_CORRUPTION, "job_runs")]
)
def test_a_check_of_all_machines_of_a_job_asks_where_nobody_told_of_them(fault: FaultKind, reason: str) -> None:
    stage = Stage()
    stage.judge(verdict_on(action=ActionKind.PROBE, fault=fault, job=UNKNOWN))

    assert stage.states(ActionKind.PROBE)[0][1] == reason


def test_the_check_begins_when_the_job_is_over() -> None:
    stage = Stage()
    assert checked(stage, FaultKind.SILENT_CORRUPTION).reason == "job_runs"
    assert not is_free(stage)
    stage.tell(replace(JobFacts(JOB, stage.now_ns + 1, hosts=stage.hosts), is_over=True))

    assert is_free(stage)


def test_the_check_begins_when_the_machine_is_another_jobs_no_more() -> None:
    stage = Stage()
    stage.tell(JobFacts(OTHER, T0, hosts=("n1",)))
    assert checked(stage, FaultKind.FAIL_STOP).reason == "job_runs"
    stage.tell(JobFacts(OTHER, T0 + NS_PER_SECOND, hosts=("n2",)))

    assert is_free(stage)


def test_the_check_begins_when_the_attempt_has_failed_and_waits_again_when_that_was_wrong() -> None:
    stage = Stage()
    assert checked(stage, FaultKind.SILENT_CORRUPTION).reason == "job_runs"
    failure = verdict_on("n7", name="v7", action=ActionKind.NOTIFY)
    stage.judge(failure)
    stage.crash()
    assert is_free(stage)
    stage.judge(replace(failure, update=1, state=VerdictState.CANCELLED))

    assert not is_free(stage)


def test_the_failure_of_an_earlier_attempt_is_none_of_this_one() -> None:
    stage = Stage()
    stage.judge(verdict_on("n7", name="v7", action=ActionKind.NOTIFY))
    later = replace(JOB, attempt=1)
    stage.tell(JobFacts(later, T0 + NS_PER_SECOND, hosts=stage.hosts))

    assert checked(stage, FaultKind.FAIL_SLOW, job=later).reason == "job_runs"
