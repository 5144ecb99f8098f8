"""Each guard, by what it keeps from being done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.pipeline.actions.kit import (
    CLUSTER,
    JOB,
    KINDS,
    LIVE,
    T0,
    ScriptedLadder,
    Stage,
    host,
    proposals_of,
    verdict_on,
)
from tocsin.pipeline.actions.config import BudgetLimit, BudgetScope, ControllerConfig
from tocsin.pipeline.actions.controller import ActionController
from tocsin.pipeline.actions.guards.approvals import UnprovenClassGuard
from tocsin.pipeline.actions.guards.budgets import BudgetGuard, BudgetPlace
from tocsin.pipeline.actions.shelves import Use
from tocsin.schemas.action_events import (
    AckKind,
    ActionEvent,
    Approval,
    AttemptChange,
    AttemptChangeKind,
    Cancel,
    CheckResult,
    CordonOwner,
    CordonSeen,
    Denial,
    EngineHeartbeat,
    EngineWay,
    ExecutorHeard,
    HumanChange,
    HumanChangeKind,
    JobFacts,
    MachineFacts,
)
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.errors import ConfigError
from tocsin.schemas.operator_notes import Feedback, Maintenance
from tocsin.schemas.records import NS_PER_SECOND, JobKey
from tocsin.schemas.verdicts import ActionKind, Component, ComponentKind, Evidence, FaultKind, VerdictState

S = ActionState
HOUR = 3600
LEAF = Component(ComponentKind.LEAF, "leaf1")
ROOMY = replace(LIVE, machine_budgets=(), restart_budgets=(), unproven_count=99)
"""No budget and no class stands in the way of what a test is about."""


def jobs(count: int) -> list[JobKey]:
    """Jobs, each of its own."""
    return [JobKey(CLUSTER, f"job{index}", 0) for index in range(count)]


def staged(config: ControllerConfig = LIVE, count: int = 8) -> Stage:
    """A stage with several jobs of one machine each, which may shrink."""
    stage = Stage(config)
    for index, job in enumerate(jobs(count)):
        stage.tell(JobFacts(job, T0, hosts=(f"n{index}", "x", "y", "z"), may_shrink=True))
    return stage


def struck(stage: Stage, index: int, cause: str = "gpu_ecc", **fields: Any) -> None:
    """Give a verdict on the machine of one of the jobs."""
    seconds = (stage.now_ns - T0) / NS_PER_SECOND
    stage.judge(
        verdict_on(f"n{index}", name=f"v{index}", job=jobs(index + 1)[index], cause=cause, at_seconds=seconds, **fields)
    )


def test_what_waited_for_the_engine_is_judged_anew() -> None:
    stage = Stage()
    stage.is_alive = False
    stage.at(5.1)
    stage.judge(verdict_on("n1"))
    assert stage.states() == [(S.WAITING, "engine_silent")]

    stage.is_alive = True
    stage.at(6)
    assert stage.states() == [(S.APPROVED, "allowed")]
    stage.is_alive = False
    stage.at(12)
    assert stage.states() == [(S.WAITING, "engine_silent")]
    stage.is_alive = True
    stage.at(700)
    assert stage.states() == [(S.EXPIRED, "verdict_stale")]


@pytest.mark.parametrize(
    ("beat", "silent_seconds"),
    [
        (EngineHeartbeat(CLUSTER, EngineWay.EMBEDDED, T0), 5.0),
        (EngineHeartbeat(CLUSTER, EngineWay.FLINK, T0), 15.0),
        (EngineHeartbeat(CLUSTER, EngineWay.FLINK, T0, checkpoint_seconds=30.0), 45.0),
    ],
    ids=["embedded", "flink", "exactly_once"],
)
def test_how_long_an_engine_may_be_silent(beat: EngineHeartbeat, silent_seconds: float) -> None:
    stage = Stage()
    stage.tell(beat)
    stage.is_alive = False
    stage.judge(verdict_on("n1"))
    stage.at(silent_seconds)
    assert stage.states() == [(S.APPROVED, "allowed")]
    stage.at(silent_seconds + 0.1)
    assert stage.states() == [(S.WAITING, "engine_silent")]


def test_a_claim_is_judged_at_its_own_moment() -> None:
    stage = Stage()
    stage.judge(verdict_on("n1"))
    stage.now_ns += 6 * NS_PER_SECOND
    stage.ack(stage.on_host("n1"), AckKind.CLAIMED)

    assert stage.states() == [(S.WAITING, "engine_silent")]
    assert stage.controller.left_out == {"claim_held": 1}


@pytest.mark.parametrize(
    ("told", "reason"),
    [
        (MachineFacts(CLUSTER, "n1", T0 + 1, boot_id="another"), "rebooted"),
        (JobFacts(replace(JOB, attempt=1), T0 + 1, hosts=("n1",)), "attempt_over"),
        (JobFacts(JOB, T0 + 1, hosts=("n2", "n3")), "host_not_in_attempt"),
    ],
)
def test_another_incarnation_lets_an_action_expire(told: ActionEvent, reason: str) -> None:
    stage = Stage()
    stage.judge(verdict_on("n1"))
    stage.tell(told)
    stage.ack(stage.on_host("n1"), AckKind.CLAIMED)

    assert stage.states() == [(S.EXPIRED, reason)]


def test_a_machine_that_is_told_of_after_its_verdict_is_acted_on_when_the_verdict_is_renewed() -> None:
    stage = Stage()
    stage.tell(JobFacts(JOB, T0 + 1, hosts=("n2", "n3")))
    stage.judge(verdict_on("n1"))
    assert stage.states() == [(S.EXPIRED, "host_not_in_attempt")]
    stage.judge(verdict_on("n1", update=1))
    assert stage.states() == [(S.EXPIRED, "host_not_in_attempt")]

    stage.tell(JobFacts(JOB, T0 + 2, hosts=("n1", "n2", "n3")))
    stage.judge(verdict_on("n1", update=2))
    assert stage.states() == [(S.APPROVED, "allowed")]


@pytest.mark.parametrize(
    "target", [host("n1"), LEAF, Component(ComponentKind.JOB, JOB.job_id)], ids=["host", "leaf", "job"]
)
def test_nothing_acts_on_what_is_in_maintenance(target: Component) -> None:
    stage = Stage()
    stage.judge(verdict_on("n1"))
    stage.tell(Maintenance("0" * 16, CLUSTER, target, T0, T0 + 60 * NS_PER_SECOND, "new fans", "uid:0", T0))
    stage.at(1)
    assert stage.states() == [(S.WAITING, "under_maintenance")]
    stage.at(61)
    assert stage.states() == [(S.APPROVED, "allowed")]


PLACES, MODEL = AttemptChangeKind.PLACES, AttemptChangeKind.MODEL


@pytest.mark.parametrize(
    ("change", "reason", "until_seconds"),
    [
        (AttemptChange(PLACES, T0, "n1"), "places_changed", 600),
        (AttemptChange(MODEL, T0 + 100 * NS_PER_SECOND), "model_changed", 700),
    ],
)
def test_a_machine_is_not_taken_soon_after_its_ranks_or_its_model_were_changed(
    change: AttemptChange, reason: str, until_seconds: int
) -> None:
    stage = Stage()
    stage.tell(JobFacts(JOB, T0 + 1, changes=(change,)))
    stage.at(110).judge(verdict_on("n1", at_seconds=110, expires_ns=T0 + HOUR * NS_PER_SECOND))
    assert stage.states() == [(S.WAITING, reason)]
    assert stage.pages() == []

    assert stage.at(until_seconds - 1).states() == [(S.WAITING, reason)]
    assert stage.at(until_seconds).states() == [(S.APPROVED, "allowed")]


@pytest.mark.parametrize(
    ("told", "action"),
    [
        (JobFacts(JOB, T0 + 1, changes=(AttemptChange(PLACES, T0, "n2"),)), ActionKind.EVICT),
        (JobFacts(JOB, T0 + 1, changes=(AttemptChange(PLACES, T0 - 600 * NS_PER_SECOND, "n1"),)), ActionKind.EVICT),
        (JobFacts(JobKey(CLUSTER, "other", 0), T0 + 1, changes=(AttemptChange(MODEL, T0),)), ActionKind.EVICT),
        (
            JobFacts(JOB, T0 + 1, changes=(AttemptChange(MODEL, T0), AttemptChange(PLACES, T0, "n1"))),
            ActionKind.RESTART,
        ),
    ],
    ids=["another_machine", "long_ago", "another_job", "takes_no_machine"],
)
def test_a_change_of_something_else_holds_nothing(told: JobFacts, action: ActionKind) -> None:
    stage = Stage()
    stage.tell(told)
    stage.judge(verdict_on("n1", action=action))

    assert stage.states() == [(S.APPROVED, "allowed")]


def test_a_change_between_proposal_and_claim_holds_the_claim_and_a_new_attempt_ends_it() -> None:
    stage = Stage()
    stage.judge(verdict_on("n1"))
    stage.tell(JobFacts(JOB, T0 + 1, changes=(AttemptChange(PLACES, T0, "n1"),)))
    stage.ack(stage.on_host("n1"), AckKind.CLAIMED)
    assert stage.states() == [(S.WAITING, "places_changed")]

    later = replace(JOB, attempt=1)
    stage.tell(JobFacts(later, T0 + 2, hosts=stage.hosts))
    stage.judge(verdict_on("n1", name="v2", job=later))
    assert stage.on_host("n1").state is S.APPROVED


def test_a_controller_may_be_told_not_to_wait_after_a_change() -> None:
    stage = Stage(replace(LIVE, after_change_seconds=0.0))
    stage.tell(JobFacts(JOB, T0 + 1, changes=(AttemptChange(MODEL, T0),)))
    stage.judge(verdict_on("n1"))

    assert stage.states() == [(S.APPROVED, "allowed")]


def test_a_hard_action_needs_two_witnesses_and_a_restart_none() -> None:
    stage = Stage()
    stage.judge(verdict_on("n1", witnesses=()))
    stage.judge(verdict_on("n2", name="v2", action=ActionKind.RESTART, witnesses=()))
    assert [(one.kind.value, one.state, one.reason) for one in stage.published] == [
        ("evict", S.WAITING, "one_witness"),
        ("restart", S.APPROVED, "allowed"),
    ]


OPEN = VerdictState.OPEN
LACKING = (Evidence("decide", "one_witness", 0.0, T0, T0, "nobody but n1 saw it"),)


@pytest.mark.parametrize("kind", [ActionKind.RESTART, ActionKind.ROLLBACK])
@pytest.mark.parametrize(
    ("fields", "reason"), [({"state": OPEN}, "verdict_open"), ({"evidence": LACKING}, "evidence_grows")]
)
def test_what_stops_a_job_waits_while_its_verdict_may_ask_for_more(
    kind: ActionKind, fields: dict[str, Any], reason: str
) -> None:
    stage = Stage()
    [waits] = stage.judge(verdict_on("n1", action=kind, **fields))
    assert (waits.state, waits.reason) == (S.WAITING, reason)
    stage.at(5.5)
    stage.crash()
    stage.judge(verdict_on("n1", action=kind, update=1, **fields))
    assert stage.on_host("n1", kind).reason == reason
    assert stage.at(6).on_host("n1", kind).state is S.APPROVED


def test_a_confirmed_verdict_ends_the_wait_and_a_harder_one_the_action() -> None:
    stage = Stage()
    for name in ("n1", "n2"):
        job = JobKey(CLUSTER, f"job-{name}", 0)
        stage.judge(verdict_on(name, name=name, action=ActionKind.RESTART, state=OPEN, job=job))
        stage.at(1)
    stage.judge(verdict_on("n1", name="n1", action=ActionKind.RESTART, update=1, job=JobKey(CLUSTER, "job-n1", 0)))
    assert stage.on_host("n1", ActionKind.RESTART).state is S.APPROVED
    stage.judge(verdict_on("n2", name="n2", state=OPEN, update=1, job=JobKey(CLUSTER, "job-n2", 0)))
    restart = stage.on_host("n2", ActionKind.RESTART)
    assert (restart.state, restart.reason) == (S.CANCELLED, "verdict_changed")
    assert S.APPROVED not in [one.state for one in stage.published if one.action_id == restart.action_id]


def test_lines_that_come_with_checkpoints_have_one_checkpoint_more() -> None:
    stage = Stage()
    stage.is_alive = False
    stage.judge(verdict_on("n1", action=ActionKind.RESTART, state=OPEN))
    for seconds, state in ((7, S.WAITING), (15, S.WAITING), (16, S.APPROVED)):
        stage.now_ns = T0 + seconds * NS_PER_SECOND
        stage.beat()
        stage.tell(EngineHeartbeat(CLUSTER, EngineWay.FLINK, stage.now_ns, checkpoint_seconds=10))
        assert stage.at(seconds).on_host("n1", ActionKind.RESTART).state is state


def test_a_verdict_that_opens_again_is_waited_for_again() -> None:
    stage = Stage()
    restart: dict[str, Any] = {"action": ActionKind.RESTART, "state": OPEN}
    stage.judge(verdict_on("n1", **restart))
    stage.judge(verdict_on("n1", action=ActionKind.NONE, state=VerdictState.CANCELLED, update=1))
    stage.at(60)
    stage.judge(verdict_on("n1", update=2, at_seconds=60, **restart))
    assert stage.on_host("n1", ActionKind.RESTART).reason == "verdict_open"
    assert stage.at(66).on_host("n1", ActionKind.RESTART).state is S.APPROVED


def test_one_action_on_a_job_and_on_a_machine_at_a_time() -> None:
    stage = Stage(ROOMY)
    stage.judge(verdict_on("n1", action=ActionKind.DRAIN))
    stage.judge(verdict_on("n1", name="v2", cause="nic_down"))
    stage.judge(verdict_on("n2", name="v3", action=ActionKind.RESTART))
    stage.judge(verdict_on("n3", name="v4"))
    assert stage.on_host("n1").reason == "host_busy"
    assert stage.on_host("n3").reason == "job_busy"

    stage.carry_out(stage.on_host("n1", ActionKind.DRAIN))
    stage.ack(stage.on_host("n2", ActionKind.RESTART), AckKind.CLAIMED)
    stage.ack(stage.on_host("n2", ActionKind.RESTART), AckKind.FAILED)
    stage.at(1)
    assert [stage.on_host(name).reason for name in ("n1", "n3")].count("allowed") == 1


def test_a_drained_machine_may_be_evicted_and_is_not_drained_again() -> None:
    stage = Stage(ROOMY)
    stage.judge(verdict_on("n1", action=ActionKind.DRAIN))
    stage.carry_out(stage.on_host("n1", ActionKind.DRAIN))
    stage.at(1)
    stage.judge(verdict_on("n1", name="v2", action=ActionKind.DRAIN, at_seconds=1))
    stage.judge(verdict_on("n1", name="v3", at_seconds=1))

    assert stage.on_host("n1", ActionKind.DRAIN).reason == "already_out"
    assert stage.on_host("n1").reason == "allowed"


def test_a_machine_that_somebody_else_cordoned_is_not_drained() -> None:
    stage = Stage()
    stage.tell(CordonSeen(CLUSTER, "n1", CordonOwner.OTHER, T0))
    stage.judge(verdict_on("n1", action=ActionKind.DRAIN))
    assert stage.states() == [(S.WAITING, "cordoned_by_other")]
    stage.tell(HumanChange(CLUSTER, "n2", HumanChangeKind.CORDONED, "bob", T0))
    stage.judge(verdict_on("n2", name="v2", action=ActionKind.DRAIN))
    assert stage.on_host("n2", ActionKind.DRAIN).reason == "cordoned_by_other"


def test_without_a_spare_a_job_that_cannot_shrink_is_paged_for() -> None:
    stage = Stage()
    stage.tell(JobFacts(JOB, T0 + 1, hosts=stage.hosts, spare_count=0))
    stage.judge(verdict_on("n1"))
    assert stage.states() == [(S.WAITING, "no_spare")]
    assert stage.pages() == ["no_spare"]

    stage.tell(JobFacts(JOB, T0 + 2, spare_count=1))
    stage.at(1)
    assert stage.states() == [(S.APPROVED, "allowed")]


def test_two_evictions_do_not_count_on_one_spare() -> None:
    stage = Stage(ROOMY)
    stage.tell(JobFacts(JOB, T0 + 1, hosts=stage.hosts, spare_count=1))
    stage.judge(verdict_on("n1", "n2"))
    held = sorted(reason for _, reason in stage.states())

    assert held in (["allowed", "job_busy"], ["allowed", "no_spare"])


def test_an_eviction_that_ended_after_the_job_controller_counted_uses_a_spare() -> None:
    stage = Stage(ROOMY)
    stage.tell(JobFacts(JOB, T0 + 1, hosts=stage.hosts, spare_count=1))
    stage.is_job_controller_alive = False
    stage.judge(verdict_on("n1"))
    stage.at(5).carry_out(stage.on_host("n1"))
    stage.at(6).judge(verdict_on("n2", name="v2", at_seconds=6))
    assert (stage.on_host("n2").state, stage.on_host("n2").reason) == (S.WAITING, "no_spare")

    stage.tell(JobFacts(JOB, stage.now_ns, spare_count=1))
    stage.at(7)
    assert stage.on_host("n2").state is S.APPROVED, "one was added since"


def test_a_spare_of_the_policy_is_used_until_the_machine_comes_back() -> None:
    stage = Stage(replace(ROOMY, spare_count=1))
    stage.is_job_controller_alive = False
    stage.at(70).judge(verdict_on("n1", at_seconds=70))
    done = stage.carry_out(stage.on_host("n1"))
    stage.at(90).judge(verdict_on("n2", name="v2", at_seconds=90))
    assert stage.on_host("n2").reason == "no_spare"

    stage.tell(Cancel(CLUSTER, done.action_id, "operator:ann", stage.now_ns))
    stage.ack(stage.on_host("n1"), AckKind.CLAIMED)
    stage.ack(stage.on_host("n1"), AckKind.UNDONE)
    stage.at(91)
    assert (stage.on_host("n1").state, stage.on_host("n2").state) == (S.UNDONE, S.APPROVED)


@pytest.mark.parametrize(("spare_count", "state"), [(0, S.WAITING), (1, S.APPROVED)])
def test_a_job_controller_that_falls_silent_counts_for_a_minute(spare_count: int, state: ActionState) -> None:
    stage = Stage(replace(LIVE, spare_count=spare_count))
    stage.tell(JobFacts(JOB, T0 + 1, spare_count=8 - 8 * spare_count))
    stage.is_job_controller_alive = False
    before = S.APPROVED if state is S.WAITING else S.WAITING
    stage.at(60).judge(verdict_on("n1", at_seconds=60))
    assert stage.on_host("n1").state is before, "its word counts"

    stage.at(61)
    assert stage.on_host("n1").state is state, "the settings count"


def test_an_old_word_of_the_job_controller_played_again_counts_as_old() -> None:
    stage = Stage()
    old = JobFacts(JOB, T0 + 1, spare_count=8)
    stage.tell(old)
    stage.is_job_controller_alive = False
    stage.at(70)
    stage.crash()
    stage.tell(old)
    stage.judge(verdict_on("n1", at_seconds=70))
    assert stage.states() == [(S.WAITING, "no_spare")]


def test_what_nobody_carries_out_is_paged_at_once() -> None:
    stage = Stage()
    stage.tell(ExecutorHeard(CLUSTER, "slurm", (ActionKind.DRAIN,), T0 + 1))
    stage.judge(verdict_on("n1"))
    assert stage.states() == [(S.WAITING, "no_executor")]
    assert stage.pages() == ["no_executor"]

    stage.at(1)
    assert stage.states() == [(S.APPROVED, "allowed")]


def test_a_flood_of_one_class_opens_its_breaker_and_no_other() -> None:
    stage = staged(ROOMY)
    for index in range(6):
        struck(stage, index)
    struck(stage, 6, cause="nic_down")
    reasons = [one.reason for one in stage.published if one.revision == 0]

    assert reasons == ["allowed"] * 4 + ["breaker_open"] * 2 + ["allowed"]


def test_an_open_breaker_lets_one_through_and_nothing_stale() -> None:
    stage = staged(ROOMY)
    for index in range(6):
        struck(stage, index)
    stage.at(HOUR / 2)
    assert {state for state, _ in stage.states()} == {S.EXPIRED}
    late_ns = T0 + 3 * HOUR * NS_PER_SECOND
    for index in range(6):
        verdict = verdict_on(f"n{index}", name=f"w{index}", job=jobs(6)[index], at_seconds=HOUR / 2)
        stage.judge(replace(verdict, expires_ns=late_ns))

    def reasons() -> list[str]:
        return [one.reason for one in stage.controller.actions() if one.verdict_id.startswith("w")]

    assert reasons() == ["breaker_open"] * 6
    for seconds, count in ((HOUR - 1, 0), (HOUR + 1, 1), (HOUR + 100, 1)):
        stage.at(seconds)
        assert reasons().count("allowed") == count


@pytest.mark.parametrize(
    ("action", "fault", "is_held"),
    [
        (ActionKind.RESTART, FaultKind.HANG, True),
        (ActionKind.ROLLBACK, FaultKind.SILENT_CORRUPTION, True),
        (ActionKind.PROBE, FaultKind.FAIL_SLOW, True),
        (ActionKind.RESTART, FaultKind.FAIL_STOP, False),
        (ActionKind.PROBE, FaultKind.FAIL_STOP, False),
    ],
)
def test_a_flood_stops_and_checks_no_running_jobs(action: ActionKind, fault: FaultKind, *, is_held: bool) -> None:
    stage = staged(ROOMY)
    stage.tell(JobFacts(JOB, T0 + 1, is_over=True))
    for index in range(6):
        struck(stage, index, action=action, fault=fault)
    reasons = [one.reason for one in stage.published if one.kind is action and one.revision == 0]
    first = "job_runs" if action is ActionKind.PROBE and is_held else "allowed"

    assert reasons == [first] * 4 + ["breaker_open" if is_held else "allowed"] * 2


def test_checks_of_a_class_do_not_hold_its_evictions() -> None:
    stage = staged(ROOMY)
    for index in range(5):
        struck(stage, index, action=ActionKind.PROBE, fault=FaultKind.FAIL_SLOW)
    struck(stage, 5)

    assert [one.reason for one in stage.published if one.kind is ActionKind.EVICT] == ["allowed"]


def test_a_breaker_closes_when_the_flood_is_over() -> None:
    stage = staged(ROOMY)
    for index in range(6):
        struck(stage, index)
    stage.at(2 * HOUR)
    for index in range(3):
        stage.judge(verdict_on(f"n{index}", name=f"w{index}", job=jobs(6)[index], at_seconds=2 * HOUR))
    fresh = [one.reason for one in stage.controller.actions() if one.verdict_id.startswith("w")]

    assert fresh == ["allowed"] * 3


def budget(scope: BudgetScope, window_seconds: int = HOUR, count: int = 2, share: float = 1.0) -> ControllerConfig:
    """Settings with one machine budget."""
    return replace(ROOMY, machine_budgets=(BudgetLimit(scope, window_seconds, count, share),))


def test_a_budget_of_the_fleet_is_spent_and_comes_back() -> None:
    stage = staged(budget(BudgetScope.FLEET))
    for index, cause in enumerate(("a", "b", "c")):
        struck(stage, index, cause=cause)
        stage.carry_out(stage.on_host(f"n{index}"))
        stage.at(index + 1)
    assert stage.on_host("n2").reason == "budget_fleet"

    stage.at(HOUR + 2)
    struck(stage, 3, cause="d")
    assert stage.on_host("n3").reason == "allowed"


def test_one_of_a_budget_is_left_to_other_classes() -> None:
    stage = staged(budget(BudgetScope.FLEET, count=3))
    for index, cause in enumerate(("a", "a", "a", "b")):
        struck(stage, index, cause=cause)

    assert [stage.on_host(f"n{index}").reason for index in range(4)] == [
        "allowed",
        "allowed",
        "budget_of_others",
        "allowed",
    ]


def test_budgets_of_job_leaf_and_minipod() -> None:
    for scope, reason in ((BudgetScope.LEAF, "budget_leaf"), (BudgetScope.MINIPOD, "budget_minipod")):
        stage = staged(budget(scope, count=1), 22)
        for index in (1, 11, 2):
            stage.tell(MachineFacts(CLUSTER, f"n{index}", T0 + 1, minipod=f"pod{index % 10}"))
            struck(stage, index, cause=f"cause{index}")
        assert [stage.on_host(f"n{index}").reason for index in (1, 11, 2)] == ["allowed", reason, "allowed"]
    stage = Stage(budget(BudgetScope.JOB, count=1))
    stage.judge(verdict_on("n1", action=ActionKind.DRAIN))
    stage.judge(verdict_on("n2", name="v2", action=ActionKind.DRAIN, cause="b"))
    assert sorted(reason for _, reason in stage.states()) == ["allowed", "budget_job"]


def test_at_least_one_is_allowed_whatever_the_share() -> None:
    stage = staged(budget(BudgetScope.FLEET, count=9, share=0.001))
    struck(stage, 0)
    struck(stage, 1, cause="b")

    assert [stage.on_host(f"n{index}").reason for index in range(2)] == ["allowed", "budget_fleet"]


def test_machines_that_are_out_at_once_are_counted_apart() -> None:
    stage = staged(budget(BudgetScope.FLEET, window_seconds=0, count=1))
    struck(stage, 0)
    stage.carry_out(stage.on_host("n0"))
    stage.at(100 * HOUR)
    struck(stage, 1, cause="b")
    assert stage.on_host("n1").reason == "budget_concurrent"

    stage.tell(
        CheckResult(CLUSTER, "n0", "", "burn", is_passed=True, is_under_load=True, ts_ns=stage.now_ns, gpu_count=8)
    )
    stage.ack(stage.on_host("n0"), AckKind.UNDONE)
    stage.at(100 * HOUR + 1)
    assert stage.on_host("n1").reason == "allowed"


def test_a_machine_that_is_out_already_needs_no_second_place() -> None:
    stage = staged(replace(budget(BudgetScope.FLEET, count=1), approval_kinds=frozenset()))
    stage.judge(verdict_on("n1", action=ActionKind.DRAIN))
    stage.carry_out(stage.on_host("n1", ActionKind.DRAIN))
    stage.judge(verdict_on("n1", name="v2", action=ActionKind.REBOOT))
    stage.judge(verdict_on("n2", name="v3", action=ActionKind.REBOOT))

    assert stage.on_host("n1", ActionKind.REBOOT).reason == "allowed"
    assert stage.on_host("n2", ActionKind.REBOOT).reason == "budget_fleet"


def test_restarts_have_a_budget_of_their_own() -> None:
    limit = BudgetLimit(BudgetScope.JOB, HOUR, 2)
    stage = Stage(replace(ROOMY, restart_budgets=(limit,)))
    for index in range(3):
        stage.at(index)
        verdict = verdict_on(name=f"v{index}", action=ActionKind.RESTART, at_seconds=index, cause=f"c{index}")
        stage.judge(verdict)
        found = [one for one in stage.controller.actions() if one.verdict_id == f"v{index}"]
        if found[0].state is S.APPROVED:
            stage.carry_out(found[0])

    assert [reason for _, reason in stage.states()] == ["done", "done", "budget_job"]


def test_a_class_needs_approval_after_two_unproven_actions_however_slowly_they_come() -> None:
    stage = staged(replace(LIVE, machine_budgets=(), restart_budgets=()))
    for index in range(3):
        struck(stage, index)
        if stage.on_host(f"n{index}").state is S.APPROVED:
            stage.carry_out(stage.on_host(f"n{index}"))
        stage.at((index + 1) * 14 * 24 * HOUR)
    assert stage.pages() == ["class_unproven"]
    struck(stage, 3, cause="nic_down")
    assert stage.on_host("n3").reason == "allowed"

    stage.tell(Feedback(CLUSTER, "v0", is_true=True, note="", actor="uid:0", ts_ns=stage.now_ns))
    struck(stage, 4)
    assert stage.on_host("n4").reason == "allowed"


def test_a_class_is_counted_over_all_clusters_of_the_controller() -> None:
    stage = staged()
    for index in range(4):
        cluster, job = f"c{index}", JobKey(f"c{index}", "j", 0)
        stage.tell(JobFacts(job, T0, hosts=("n1", "x", "y", "z"), may_shrink=True))
        stage.tell(EngineHeartbeat(cluster, EngineWay.EMBEDDED, stage.now_ns))
        stage.tell(ExecutorHeard(cluster, "slurm", KINDS, stage.now_ns))
        stage.judge(verdict_on("n1", name=f"v{index}", job=job))

    def states() -> list[ActionState]:
        found = [one for one in stage.controller.actions() if one.kind is ActionKind.EVICT]
        return [one.state for one in sorted(found, key=lambda one: one.verdict_id)]

    asked = S.WAITING_APPROVAL
    assert states() == [S.APPROVED, S.APPROVED, asked, asked]
    assert {reason for state, reason in stage.states() if state is asked} == {"class_unproven"}

    stage.crash()
    stage.tell(Feedback("c0", "v0", True, "", "operator:ann", stage.now_ns))
    stage.published += stage.controller.on_time(stage.now_ns)
    assert sorted(states()[2:]) == [S.APPROVED, asked], "one of two was proved right"


def test_a_state_that_counted_each_cluster_apart_is_added_up() -> None:
    guard = UnprovenClassGuard()
    guard.load_state([("a\nxid_79", ["one"]), ("b\nxid_79", ["two"]), ("a\nxid_48", ["three"])])

    assert guard.to_state() == [("xid_79", ["one", "two"]), ("xid_48", ["three"])]


def test_a_person_lets_one_more_of_an_unproven_class_through() -> None:
    stage = staged(replace(LIVE, machine_budgets=(), restart_budgets=()))
    for index in range(3):
        struck(stage, index)
    action = stage.on_host("n2")
    assert (action.state, action.reason) == (S.WAITING_APPROVAL, "class_unproven")
    stage.tell(Approval(CLUSTER, action.action_id, "eve", stage.now_ns))
    assert stage.on_host("n2").reason == "approved_by_person"
    struck(stage, 3)
    assert stage.on_host("n3").reason == "class_unproven"


def test_the_class_is_told_apart_by_driver_and_firmware() -> None:
    stage = staged(replace(LIVE, machine_budgets=(), restart_budgets=()))
    for index in range(4):
        stage.tell(MachineFacts(CLUSTER, f"n{index}", T0 + 1, driver="550" if index < 3 else "570"))
        struck(stage, index)

    assert [stage.on_host(f"n{index}").reason for index in (2, 3)] == ["class_unproven", "allowed"]


def test_machines_behind_a_leaf_are_one_action_that_a_person_approves() -> None:
    stage = Stage()
    hosts = ("n1", "n11", "n21", "n31")
    stage.judge(verdict_on(*hosts, common=LEAF))
    assert stage.states() == [(S.WAITING_APPROVAL, "leaf_asks")]
    stage.judge(verdict_on("n1", name="v2", cause="nic_down"))
    assert stage.on_host("n1").reason == "covered_by_leaf"

    leaf = stage.controller.actions()[0]
    leaf = (
        next(one for one in stage.controller.actions() if one.target.hosts == hosts)
        if leaf.target.hosts != hosts
        else leaf
    )
    stage.tell(JobFacts(JOB, T0 + 1, may_shrink=True))
    stage.tell(Approval(CLUSTER, leaf.action_id, "eve", stage.now_ns))
    assert stage.action(leaf.action_id).state is S.APPROVED
    stage.carry_out(leaf)
    stage.now_ns += NS_PER_SECOND
    for name in hosts:
        assert stage.action(leaf.action_id).state is S.DONE
        stage.tell(
            CheckResult(CLUSTER, name, "", "burn", is_passed=True, is_under_load=True, ts_ns=stage.now_ns, gpu_count=8)
        )
    assert stage.action(leaf.action_id).state is S.UNDOING


def test_proposals_on_each_machine_behind_a_leaf_become_one() -> None:
    stage = Stage()
    stage.ladder.answer = lambda verdict: [
        replace(proposals_of(verdict)[0], component=None, hosts=("n1", "n11"), rule="each")
    ]
    stage.judge(verdict_on("n1", "n11", common=LEAF))

    assert [one.target.component for one in stage.controller.actions() if one.kind is ActionKind.EVICT] == [LEAF]


def test_the_policy_may_ask_for_approval() -> None:
    stage = Stage()
    stage.ladder.answer = lambda verdict: [replace(one, needs_approval=True) for one in proposals_of(verdict)]
    stage.judge(verdict_on("n1"))
    assert stage.states() == [(S.WAITING_APPROVAL, "policy_asks")]
    stage.ack(stage.on_host("n1"), AckKind.CLAIMED)
    assert stage.states() == [(S.WAITING_APPROVAL, "policy_asks")]


def prove_wrong_by_feedback(stage: Stage, index: int) -> None:
    """A person says that a verdict was wrong."""
    stage.tell(Feedback(CLUSTER, f"v{index}", is_true=False, note="", actor="uid:0", ts_ns=stage.now_ns))


def prove_wrong_by_check(stage: Stage, index: int) -> None:
    """The machine passes a check that was made for the verdict."""
    name = f"n{index}"
    stage.tell(
        CheckResult(
            CLUSTER,
            name,
            "",
            "burn",
            is_passed=True,
            is_under_load=True,
            ts_ns=stage.now_ns,
            verdict_id=f"v{index}",
            gpu_count=8,
        )
    )


@pytest.mark.parametrize("prove_wrong", [prove_wrong_by_feedback, prove_wrong_by_check])
def test_a_detector_that_was_wrong_twice_proposes_nothing_more_on_the_attempt(
    prove_wrong: Callable[[Stage, int], None],
) -> None:
    stage = Stage(ROOMY)
    for index in (1, 2, 3):
        stage.judge(verdict_on(f"n{index}", name=f"v{index}", cause=f"cause{index}"))
        prove_wrong(stage, index)
        assert stage.on_host(f"n{index}").reason == (
            "detector_wrong" if index == 3 else stage.on_host(f"n{index}").reason
        )
    assert stage.on_host("n3").state is S.REFUSED
    assert stage.pages() == ["detector_wrong"]

    stage.tell(JobFacts(replace(JOB, attempt=1), T0 + 1, hosts=stage.hosts, may_shrink=True))
    stage.judge(verdict_on("n4", name="v4", cause="cause4", job=replace(JOB, attempt=1)))
    assert stage.on_host("n4").reason == "allowed"


def test_a_denied_action_is_vetoed_for_its_cause_only() -> None:
    stage = Stage(ROOMY)
    stage.judge(verdict_on("n1"))
    stage.tell(Denial(CLUSTER, stage.on_host("n1").action_id, "eve", stage.now_ns))
    stage.judge(verdict_on("n1", name="v2"))
    stage.at(1)
    stage.judge(verdict_on("n1", name="v3", cause="nic_down", at_seconds=1))

    assert {one.verdict_id: one.reason for one in stage.controller.actions()} == {
        "v1": "denied",
        "v2": "vetoed",
        "v3": "allowed",
    }


def test_what_is_held_for_long_is_blocked_and_paged_and_goes_on() -> None:
    stage = staged(budget(BudgetScope.FLEET, window_seconds=0, count=1))
    struck(stage, 0)
    stage.carry_out(stage.on_host("n0"))
    struck(stage, 1, cause="b", expires_ns=T0 + 9999 * NS_PER_SECOND)
    stage.at(901)
    assert stage.on_host("n1").state is S.BLOCKED
    assert stage.pages() == ["held_for_long"]

    stage.tell(
        CheckResult(CLUSTER, "n0", "", "burn", is_passed=True, is_under_load=True, ts_ns=stage.now_ns, gpu_count=8)
    )
    stage.ack(stage.on_host("n0"), AckKind.UNDONE)
    stage.at(902)
    assert stage.on_host("n1").state is S.APPROVED


def test_an_approval_of_a_dry_run_executes_nothing() -> None:
    stage = Stage(ControllerConfig())
    stage.judge(verdict_on("n1", action=ActionKind.REBOOT))
    action = stage.on_host("n1", ActionKind.REBOOT)
    stage.tell(Approval(CLUSTER, action.action_id, "eve", stage.now_ns))
    assert stage.states() == [(S.PROPOSED, "dry_run")]


def test_a_configuration_without_a_place_or_memory_is_refused() -> None:
    with pytest.raises(ConfigError, match="budget"):
        ControllerConfig(machine_budgets=(BudgetLimit(BudgetScope.FLEET, HOUR, 0),))
    with pytest.raises(ConfigError, match="final_kept_seconds"):
        ControllerConfig(final_kept_seconds=HOUR)


def test_a_controller_that_knows_nothing_of_the_engine_executes_nothing() -> None:
    controller = ActionController(LIVE, ScriptedLadder())

    assert [one.reason for one in controller.on_verdict(verdict_on("n1"), T0)] == ["engine_silent"]


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.booleans(), st.just(1)), max_size=3),
    st.sampled_from((0, 6, 60)),
    st.integers(1, 5),
    st.integers(1, 2),
)
def test_a_budget_that_all_uses_together_do_not_spend_is_not_spent(
    found: list[tuple[int, bool, int]], window_seconds: int, most_count: int, needed: int
) -> None:
    """Whatever the windows: the short way says what counting each use says."""
    stage = Stage()
    stage.judge(verdict_on("n1"))
    case = stage.controller._desk.case(next(iter(stage.controller._desk.book)), T0 + 9 * NS_PER_SECOND)  # noqa: SLF001
    uses = [
        (Use(case.tracked, T0 + at * NS_PER_SECOND, places, case.action.budget_class if is_same else "other"), places)
        for at, is_same, places in found
    ]
    most, most_same = sum(one for _, one in uses), sum(one for use, one in uses if use.budget_class != "other")
    limit = BudgetLimit(BudgetScope.FLEET, window_seconds, most_count)
    by_short_way, by_counting = (
        BudgetGuard()._judge_one(case, limit, BudgetPlace("", 0, needed, uses, *totals))  # noqa: SLF001
        for totals in ((most, most_same), (10**6, 10**6))
    )

    assert by_short_way == by_counting
