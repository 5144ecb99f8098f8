"""The controller of actions: from a verdict to what is done, and back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.pipeline.actions.kit import CLUSTER, JOB, KINDS, LIVE, T0, ScriptedLadder, Stage, proposals_of, verdict_on
from tocsin.pipeline.actions.config import ControllerConfig
from tocsin.schemas.action_events import (
    AckKind,
    Approval,
    Cancel,
    CheckResult,
    Denial,
    ExecutorHeard,
    HumanChange,
    HumanChangeKind,
    JobFacts,
    QuietSteps,
)
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.operator_notes import Feedback
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import ActionKind, VerdictState

S = ActionState


def test_a_verdict_becomes_an_action_that_an_executor_carries_out() -> None:
    stage = Stage()
    stage.judge(verdict_on("n1"))
    action = stage.on_host("n1")
    done = stage.carry_out(action)

    assert action.state is S.APPROVED
    assert action.target.machines[0].boot_id == "boot-n1"
    assert done.state is S.DONE
    assert [one.state for one in stage.published] == [S.APPROVED, S.CLAIMED, S.STARTED, S.DONE]
    assert [one.revision for one in stage.published] == [0, 1, 2, 3]


def test_a_fresh_installation_only_shows() -> None:
    stage = Stage(ControllerConfig())
    stage.judge(verdict_on("n1"))

    assert stage.states() == [(S.PROPOSED, "dry_run")]
    stage.ack(stage.on_host("n1"), AckKind.CLAIMED)
    assert stage.states() == [(S.PROPOSED, "dry_run")]
    assert stage.controller.left_out == {"ack_out_of_place": 1}


def test_a_renewal_prolongs_the_same_action_and_what_is_done_stays_done() -> None:
    stage = Stage()
    first = verdict_on("n1")
    stage.judge(first)
    before = stage.on_host("n1")
    stage.at(60)
    stage.judge(replace(first, update=1, detected_ns=stage.now_ns, expires_ns=stage.now_ns + 600 * NS_PER_SECOND))
    renewed = stage.on_host("n1")
    assert renewed.action_id == before.action_id
    assert renewed.deadline_ns == before.deadline_ns + 60 * NS_PER_SECOND

    stage.carry_out(renewed)
    stage.at(120)
    stage.judge(replace(first, update=2, expires_ns=stage.now_ns + 600 * NS_PER_SECOND))
    assert stage.states() == [(S.DONE, "done")]


def test_what_was_done_long_ago_is_not_done_again() -> None:
    stage = Stage()
    first = verdict_on("n1", action=ActionKind.RESTART)
    stage.judge(first)
    stage.carry_out(stage.on_host("n1", ActionKind.RESTART))
    stage.at(30 * 86_400)
    assert stage.states() == []
    stage.crash()
    stage.judge(replace(first, update=1, expires_ns=stage.now_ns + 600 * NS_PER_SECOND))

    assert stage.states() == []


def test_a_renewal_keeps_its_approval() -> None:
    stage = Stage()
    first = verdict_on("n1", action=ActionKind.REBOOT)
    stage.judge(first)
    action = stage.on_host("n1", ActionKind.REBOOT)
    assert (action.state, action.reason) == (S.WAITING_APPROVAL, "kind_asks")
    stage.tell(Approval(CLUSTER, action.action_id, "operator:eve", stage.now_ns))
    assert stage.states() == [(S.APPROVED, "approved_by_person")]

    stage.at(30)
    stage.judge(replace(first, update=1, expires_ns=stage.now_ns + 600 * NS_PER_SECOND))
    assert stage.states() == [(S.APPROVED, "approved_by_person")]
    assert stage.on_host("n1", ActionKind.REBOOT).actor == "operator:eve"


def test_a_consumer_that_starts_late_executes_nothing_old() -> None:
    stage = Stage()
    stage.at(700)
    stage.judge(verdict_on("n1"))

    assert stage.states() == [(S.EXPIRED, "verdict_stale")]


def test_a_repeated_or_older_update_changes_nothing() -> None:
    stage = Stage()
    first = verdict_on("n1")
    closed = replace(first, update=1, state=VerdictState.RESOLVED, reason="recovered")
    stage.judge(first)
    stage.judge(closed)
    assert stage.states() == [(S.CANCELLED, "verdict_closed")]

    assert stage.judge(first) == []
    assert stage.judge(closed) == []
    stage.judge(replace(first, update=2))
    assert stage.states() == [(S.APPROVED, "allowed")]


def test_the_first_claim_wins_and_a_lease_passes_on() -> None:
    stage = Stage()
    for name in ("a", "b"):
        stage.tell(ExecutorHeard(CLUSTER, name, KINDS, stage.now_ns))
    stage.judge(verdict_on("n1"))
    action = stage.on_host("n1")
    stage.ack(action, AckKind.CLAIMED, "a")
    stage.ack(action, AckKind.CLAIMED, "b")
    assert stage.action(action.action_id).holder == "a"
    assert stage.controller.left_out == {"claim_lost": 1}
    stage.ack(action, AckKind.STARTED, "b")
    assert stage.states() == [(S.CLAIMED, "claimed")]

    stage.at(31)
    assert stage.states() == [(S.APPROVED, "lease_over")]
    stage.ack(action, AckKind.CLAIMED, "b")
    stage.ack(action, AckKind.STARTED, "a")
    assert stage.action(action.action_id).holder == "b"
    assert stage.states() == [(S.CLAIMED, "claimed")]


def test_what_a_guard_holds_between_claim_and_begin_is_not_begun() -> None:
    stage = Stage()
    stage.judge(verdict_on("n1"))
    action = stage.on_host("n1")
    stage.ack(action, AckKind.CLAIMED)
    stage.tell(JobFacts(replace(JOB, attempt=1), stage.now_ns, hosts=stage.hosts))
    stage.ack(action, AckKind.STARTED)
    assert stage.states() == [(S.CLAIMED, "claimed")]
    assert stage.controller.left_out == {"claim_held": 1}

    stage.at(31)
    assert stage.states() == [(S.EXPIRED, "attempt_over")]


def test_an_action_that_nobody_began_expires() -> None:
    stage = Stage()
    stage.judge(verdict_on("n1"))
    stage.at(601)

    assert stage.states() == [(S.EXPIRED, "verdict_stale")]
    stage.ack(stage.on_host("n1"), AckKind.CLAIMED)
    assert stage.states() == [(S.EXPIRED, "verdict_stale")]


def test_an_old_ack_played_again_changes_nothing() -> None:
    stage = Stage()
    stage.judge(verdict_on("n1"))
    action = stage.on_host("n1")
    stage.carry_out(action)
    stage.tell(Cancel(CLUSTER, action.action_id, "uid:0", stage.now_ns))
    assert stage.states() == [(S.UNDOING, "cancelled_by_person")]
    for seq, kind in enumerate((AckKind.CLAIMED, AckKind.STARTED, AckKind.DONE), start=1):
        assert stage.ack(action, kind, seq=seq) == []
    assert stage.controller.left_out == {"ack_repeated": 3}
    assert [one.reason for one in stage.controller.take_left_out()] == ["ack_repeated"] * 3
    assert stage.controller.take_left_out() == []


def test_a_stranger_who_never_held_an_action_is_not_heard() -> None:
    stage = Stage()
    stage.judge(verdict_on("n1"))
    action = stage.on_host("n1")
    for fields in ({"executor": "other"}, {"epoch": 9}, {"job": replace(JOB, attempt=1)}, {"action_id": "f" * 32}):
        stage.ack(action, AckKind.DONE, **fields)

    assert stage.states() == [(S.APPROVED, "allowed")]
    assert stage.controller.left_out == {"ack_of_other": 1, "epoch_ahead": 1, "action_unknown": 2}


def test_a_cancel_wins_against_what_was_not_begun() -> None:
    stage = Stage()
    stage.judge(verdict_on("n1"))
    action = stage.on_host("n1")
    stage.ack(action, AckKind.CLAIMED)
    stage.tell(Cancel(CLUSTER, action.action_id, "uid:0", stage.now_ns))
    assert stage.states() == [(S.CANCELLED, "cancelled_by_person")]

    stage.ack(action, AckKind.DONE, effects=("cordon",))
    assert stage.states() == [(S.UNDOING, "effect_after_end")]
    stage.ack(action, AckKind.UNDONE)
    assert stage.states() == [(S.UNDONE, "undone")]


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (VerdictState.RESOLVED, "recovered"),
        (VerdictState.RESOLVED, "job_ended"),
        (VerdictState.RESOLVED, "new_attempt"),
        (VerdictState.EXPIRED, "engine_restarted"),
        (VerdictState.EXPIRED, "expired"),
    ],
)
def test_nothing_that_the_engine_says_brings_a_machine_back(state: VerdictState, reason: str) -> None:
    stage = Stage()
    first = verdict_on("n1")
    stage.judge(first)
    stage.carry_out(stage.on_host("n1"))
    stage.judge(replace(first, update=1, state=state, reason=reason))
    stage.tell(JobFacts(replace(JOB, attempt=1), stage.now_ns, hosts=("n2", "n3")))
    stage.at(100_000)

    assert stage.states(ActionKind.EVICT) == [(S.DONE, "done")]
    assert {one.kind for one in stage.controller.actions()} <= {ActionKind.EVICT, ActionKind.PROBE}


def test_only_a_check_under_load_brings_a_machine_back() -> None:
    stage = Stage()
    stage.judge(verdict_on("n1"))
    stage.carry_out(stage.on_host("n1"))
    stage.now_ns += NS_PER_SECOND
    check = CheckResult(
        CLUSTER, "n1", "boot-n1", "burn", is_passed=True, is_under_load=True, ts_ns=stage.now_ns, gpu_count=8
    )
    for useless in (
        replace(check, is_under_load=False),
        replace(check, is_passed=False),
        replace(check, boot_id="older"),
        replace(check, host="n2"),
        replace(check, ts_ns=T0 - 1),
    ):
        stage.tell(useless)
        assert stage.states() == [(S.DONE, "done")]

    stage.tell(check)
    assert stage.states() == [(S.UNDOING, "check_passed")]


def test_quiet_steps_on_that_machine_bring_it_back() -> None:
    stage = Stage()
    stage.judge(verdict_on("n1", action=ActionKind.DRAIN))
    stage.carry_out(stage.on_host("n1", ActionKind.DRAIN))
    stage.now_ns += NS_PER_SECOND
    stage.tell(QuietSteps(JOB, "n1", 499, stage.now_ns))
    stage.tell(QuietSteps(JOB, "n2", 900, stage.now_ns))
    assert stage.states() == [(S.DONE, "done")]

    stage.tell(QuietSteps(JOB, "n1", 500, stage.now_ns))
    assert stage.states() == [(S.UNDOING, "quiet_steps")]


def test_feedback_false_brings_a_machine_back_and_true_does_not() -> None:
    stage = Stage()
    stage.judge(verdict_on("n1"))
    stage.carry_out(stage.on_host("n1"))
    stage.tell(Feedback(CLUSTER, "v1", True, "", "uid:0", stage.now_ns))
    assert stage.states() == [(S.DONE, "done")]
    stage.tell(Feedback(CLUSTER, "v1", False, "it was the switch", "uid:0", stage.now_ns))
    assert stage.states() == [(S.UNDOING, "feedback_false")]


def test_a_machine_that_a_person_gave_back_is_vetoed_until_other_evidence_or_time() -> None:
    stage = Stage()
    stage.judge(verdict_on("n1"))
    stage.carry_out(stage.on_host("n1"))
    stage.at(10)
    stage.tell(HumanChange(CLUSTER, "n1", HumanChangeKind.UNCORDONED, "alice", stage.now_ns))
    assert stage.states() == [(S.UNDONE, "returned_by_person")]

    stage.judge(verdict_on("n1", name="v2", at_seconds=10))
    assert stage.states()[1:] == [(S.WAITING, "vetoed")]
    stage.at(7200)
    stage.ladder.answer = lambda verdict: [replace(one, signal="xid_79") for one in proposals_of(verdict)]
    stage.judge(verdict_on("n1", name="v3", at_seconds=7200))
    assert stage.states()[2:] == [(S.APPROVED, "allowed")]


def test_a_veto_ends_by_itself() -> None:
    stage = Stage()
    stage.judge(verdict_on("n1"))
    stage.tell(Denial(CLUSTER, stage.on_host("n1").action_id, "alice", stage.now_ns, "no"))
    assert stage.states() == [(S.REFUSED, "denied")]
    stage.at(13 * 3600)
    stage.judge(verdict_on("n1", name="v2", at_seconds=13 * 3600))
    assert stage.states()[1:] == [(S.APPROVED, "allowed")]


def test_an_older_uncordon_does_not_end_a_fresh_drain() -> None:
    stage = Stage()
    stage.at(10)
    stage.judge(verdict_on("n1", at_seconds=10))
    stage.carry_out(stage.on_host("n1"))
    stage.tell(HumanChange(CLUSTER, "n1", HumanChangeKind.UNCORDONED, "alice", T0))

    assert stage.states() == [(S.DONE, "done")]


def test_a_crash_at_any_moment_changes_nothing() -> None:
    stage = Stage()
    stage.judge(verdict_on("n1"))
    stage.crash()
    action = stage.on_host("n1")
    stage.ack(action, AckKind.CLAIMED)
    stage.crash()
    stage.ack(action, AckKind.STARTED)
    stage.crash()
    stage.ack(action, AckKind.DONE, effects=("cordon",))
    stage.crash()
    assert stage.states() == [(S.DONE, "done")]
    assert stage.judge(verdict_on("n1")) == []


def test_a_new_epoch_publishes_what_is_live_and_keeps_the_rest() -> None:
    stage = Stage()
    stage.judge(verdict_on("n1"))
    stage.carry_out(stage.on_host("n1"))
    stage.judge(verdict_on("n5", name="v2", cause="nic_down"))
    found = stage.controller.begin_epoch(4, stage.now_ns)

    assert [(one.target.hosts, one.state, one.epoch) for one in found] == [(("n5",), S.APPROVED, 4)]


def test_nobody_who_approves_blocks_and_pages() -> None:
    stage = Stage(replace(LIVE, approval_seconds=60))
    stage.judge(verdict_on("n1", action=ActionKind.REBOOT))
    stage.at(61)
    assert stage.states() == [(S.BLOCKED, "no_approver")]
    action = stage.on_host("n1", ActionKind.REBOOT)
    stage.tell(Approval(CLUSTER, action.action_id, "eve", stage.now_ns))

    assert stage.states() == [(S.BLOCKED, "no_approver")]
    assert stage.pages() == ["kind_asks", "no_approver"]
    assert stage.controller.left_out == {"approval_late": 1}


def test_a_disruption_budget_that_never_gives_way_blocks_and_pages() -> None:
    stage = Stage()
    stage.judge(verdict_on("n1"))
    action = stage.on_host("n1")
    stage.ack(action, AckKind.CLAIMED)
    stage.ack(action, AckKind.BLOCKED, reason="http_429")
    for seconds in range(20, 1000, 20):
        stage.at(seconds)
        stage.ack(action, AckKind.CLAIMED)
        stage.ack(action, AckKind.BLOCKED, reason="http_429")
    assert stage.states() == [(S.BLOCKED, "blocked_by_target")]
    assert stage.pages() == ["blocked_by_target"]

    stage.ack(action, AckKind.DONE, effects=("cordon", "evict"))
    assert stage.states() == [(S.DONE, "done")]


def test_the_policy_hears_how_an_action_ended_and_may_go_on() -> None:
    ladder = ScriptedLadder()
    stage = Stage(ladder=ladder)
    stage.judge(verdict_on("n1"))
    stage.carry_out(stage.on_host("n1"))

    assert [one.state for one in ladder.ended] == [S.DONE]
