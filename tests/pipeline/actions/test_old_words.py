"""What is told late or played again about an action: the newest check and word count, and only the holder ends it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.pipeline.actions.kit import CLUSTER, T0, ScriptedLadder, Stage, verdict_on
from tocsin.pipeline.actions.ladder import Proposal
from tocsin.schemas.action_events import AckKind, CheckResult, ExecutorHeard
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.actions import Action
from tocsin.schemas.job_key import IDLE_JOB_ID, JobKey
from tocsin.schemas.operator_notes import Feedback
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import ActionKind, Component, ComponentKind, Suspect, Verdict

S = ActionState


def evicted() -> Stage:
    """A stage on which one machine was evicted."""
    stage = Stage()
    stage.judge(verdict_on("n1"))
    stage.carry_out(stage.on_host("n1"))
    return stage


def check(at_seconds: float, *, is_passed: bool) -> CheckResult:
    """The result of a check of that machine under load."""
    ts_ns = T0 + int(at_seconds * NS_PER_SECOND)
    return CheckResult(
        CLUSTER, "n1", "boot-n1", "burn", is_passed=is_passed, is_under_load=True, ts_ns=ts_ns, gpu_count=8
    )


def word(at_seconds: float, *, is_true: bool) -> Feedback:
    """A person's judgement of the verdict."""
    return Feedback(CLUSTER, "v1", is_true, "", "operator:ann", T0 + int(at_seconds * NS_PER_SECOND))


@pytest.mark.parametrize(("passed_seconds", "state"), [(20, S.DONE), (60, S.UNDOING)])
def test_of_a_machines_checks_the_newest_counts(passed_seconds: float, state: ActionState) -> None:
    stage = evicted()
    stage.at(50)
    stage.tell(check(50, is_passed=False))
    stage.at(70)
    stage.tell(check(passed_seconds, is_passed=True))

    assert stage.on_host("n1").state is state
    assert stage.controller.left_out.get("fact_old", 0) == (state is S.DONE)


def test_that_a_check_was_newer_is_known_after_a_crash() -> None:
    stage = evicted()
    stage.at(50)
    stage.tell(check(50, is_passed=False))
    stage.crash()
    stage.tell(check(20, is_passed=True))

    assert stage.on_host("n1").state is S.DONE


def gpu_check(stage: Stage, gpu_count: int, known_gpu_count: int = 0) -> None:
    """The machine passes a check with so many GPUs now."""
    told = check((stage.now_ns - T0) / NS_PER_SECOND, is_passed=True)
    stage.tell(replace(told, gpu_count=gpu_count, known_gpu_count=known_gpu_count))


@pytest.mark.parametrize(("worked", "shown"), [(0, 0), (0, 8), (7, 8)])
def test_a_gpus_machine_stays_out_after_a_check_that_did_not_load_each_gpu(worked: int, shown: int) -> None:
    stage = evicted()
    for seconds in (50, 60):
        stage.at(seconds)
        gpu_check(stage, worked, shown)

    assert stage.on_host("n1").state is S.DONE
    assert stage.pages() == ["check_too_narrow"]
    stage.at(70)
    gpu_check(stage, 8, 8)
    assert (stage.on_host("n1").state, stage.on_host("n1").reason) == (S.UNDOING, "check_passed")


def test_how_many_gpus_a_check_saw_is_known_after_a_crash() -> None:
    stage = evicted()
    stage.at(50)
    stage.tell(replace(check(50, is_passed=False), gpu_count=8))
    stage.crash()
    stage.at(60)
    gpu_check(stage, 7, 7)

    assert stage.on_host("n1").state is S.DONE


@pytest.mark.parametrize(
    ("cause", "suspect", "state"),
    [
        ("disk_slow", Component(ComponentKind.HOST, "n1"), S.UNDOING),
        ("unknown", Component(ComponentKind.GPU, "n1/3"), S.DONE),
        ("xid_79", Component(ComponentKind.HOST, "n1"), S.DONE),
        ("nvlink_error", Component(ComponentKind.HOST, "n1"), S.DONE),
    ],
)
def test_only_what_is_about_a_gpu_needs_a_check_of_gpus(cause: str, suspect: Component, state: ActionState) -> None:
    stage = Stage(ladder=ScriptedLadder(lambda one: [evict_n1(one)]))
    stage.judge(replace(verdict_on("n1", cause=cause), suspects=(Suspect(suspect),)))
    stage.carry_out(stage.on_host("n1"))
    stage.at(50)
    gpu_check(stage, 0)

    assert stage.on_host("n1").state is state


def evict_n1(verdict: Verdict) -> Proposal:
    """The eviction of that machine."""
    return Proposal(verdict, ActionKind.EVICT, Component(ComponentKind.HOST, "n1"), ("n1",), "rule", verdict.cause)


@pytest.mark.parametrize(("worked", "state"), [(0, S.APPROVED), (8, S.CANCELLED)])
def test_an_unbegun_action_about_a_gpu_is_cancelled_by_a_check_of_gpus_alone(worked: int, state: ActionState) -> None:
    stage = Stage()
    stage.judge(verdict_on("n1"))
    stage.at(10)
    gpu_check(stage, worked)

    assert stage.on_host("n1").state is state


@pytest.mark.parametrize(("false_seconds", "state"), [(5, S.DONE), (150, S.UNDOING)])
def test_of_peoples_words_about_a_verdict_the_newest_counts(false_seconds: float, state: ActionState) -> None:
    stage = evicted()
    stage.at(100)
    stage.tell(word(100, is_true=True))
    stage.at(160)
    stage.tell(word(false_seconds, is_true=False))

    assert stage.on_host("n1").state is state


def taken_over(action: ActionKind = ActionKind.EVICT) -> tuple[Stage, Action]:
    """A stage on which an executor took an action over from one that fell silent."""
    stage = Stage()
    for name in ("a", "b"):
        stage.controller.on_event(ExecutorHeard(CLUSTER, name, (action,), stage.now_ns), stage.now_ns)
    stage.judge(verdict_on("n1", action=action))
    taken = stage.on_host("n1", action)
    stage.ack(taken, AckKind.CLAIMED, "a")
    stage.ack(taken, AckKind.STARTED, "a")
    stage.at(70)
    stage.ack(taken, AckKind.CLAIMED, "b")
    return stage, taken


@pytest.mark.parametrize("kind", [AckKind.FAILED, AckKind.REFUSED, AckKind.EXPIRED])
def test_who_lost_an_action_does_not_end_it(kind: AckKind) -> None:
    stage, action = taken_over()
    assert stage.action(action.action_id).holder == "b"
    stage.ack(action, kind, "a")
    assert stage.action(action.action_id).state is S.STARTED
    assert stage.controller.left_out["ack_of_other"] == 1
    stage.ack(action, AckKind.DONE, "b", effects=("cordon",))

    assert stage.action(action.action_id).state is S.DONE


def test_what_looks_for_a_machine_needs_no_witness_against_one() -> None:
    stage = Stage()
    verdict = verdict_on("n1", action=ActionKind.REPLAY)
    heard = ExecutorHeard(CLUSTER, "slurm", (ActionKind.DRAIN,), stage.now_ns + 1)
    stage.controller.on_event(heard, stage.now_ns)
    stage.judge(replace(verdict, suspects=(), witnesses=()))

    assert stage.states(ActionKind.REPLAY) == [(S.WAITING, "no_executor")]
    assert stage.pages() == ["no_executor"]


@pytest.mark.parametrize(("host", "state"), [("n1", S.REFUSED), ("n9", S.APPROVED)])
def test_a_detector_that_was_wrong_on_one_idle_machine_may_name_another(host: str, state: ActionState) -> None:
    stage = Stage()
    idle = JobKey(CLUSTER, IDLE_JOB_ID, 0)
    for index in range(2):
        stage.at(1000 * index)
        name = f"w{index}"
        stage.judge(
            verdict_on("n1", name=name, job=idle, action=ActionKind.DRAIN, at_seconds=1000 * index, cause=f"c{index}")
        )
        stage.tell(Feedback(CLUSTER, name, is_true=False, note="", actor="operator:ann", ts_ns=stage.now_ns))
    stage.at(3000)
    stage.judge(verdict_on(host, name="next", job=idle, action=ActionKind.DRAIN, at_seconds=3000, cause="other"))
    found = [one for one in stage.controller.actions() if one.verdict_id == "next" and one.kind is ActionKind.DRAIN]

    assert [one.state for one in found] == [state]
