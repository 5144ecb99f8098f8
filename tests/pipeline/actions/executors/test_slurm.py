"""Actions on a fake of Slurm that answers in recorded words; ``tests/peers`` has the same against a real one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pipeline.actions.executors.fake_slurm import START_SECONDS, USER, FakeSlurm
from tests.pipeline.actions.executors.made import SECOND_NS, carried_out, made_action, steps_of
from tocsin.pipeline.actions.executors.reasons import ExecutorReason
from tocsin.pipeline.actions.executors.slurm import SlurmTarget, SlurmTargetConfig
from tocsin.pipeline.actions.executors.slurm_cluster import SlurmCluster
from tocsin.pipeline.actions.executors.target import Look, Stage
from tocsin.schemas.actions import Action
from tocsin.schemas.errors import TargetAwayError, TargetRefusedError
from tocsin.schemas.job_key import JobKey
from tocsin.schemas.verdicts import ActionKind

NOW_SECONDS = START_SECONDS + 1000


def target_of(slurm: FakeSlurm) -> SlurmTarget:
    return SlurmTarget(SlurmTargetConfig(USER), SlurmCluster(slurm))


def action_of(kind: ActionKind, *hosts: str, job: str = "", verdict: str = "v1") -> Action:
    return made_action(kind, *hosts, slurm_job_id=job, verdict=verdict, now_ns=NOW_SECONDS * SECOND_NS)


def said(look: Look) -> tuple[Stage, ExecutorReason]:
    return look.stage, look.reason


def test_a_drain_is_made_once_and_its_undo_gives_the_node_back_once() -> None:
    slurm = FakeSlurm("a", "b")
    action = action_of(ActionKind.DRAIN, "a", "b")
    for _ in range(2):
        assert said(carried_out(target_of(slurm), action)) == (Stage.DONE, ExecutorReason.DRAINED)
    assert len(slurm.effects) == 2
    assert all(node.reason == f"[HC] tocsin ecc_error {action.action_id}" for node in slurm.nodes.values())
    for _ in range(2):
        assert carried_out(target_of(slurm), action, back=True).stage is Stage.DONE
    assert [effect.split()[-1] for effect in slurm.effects[2:]] == ["State=RESUME"] * 2


def test_a_drain_of_a_node_with_a_job_says_draining() -> None:
    slurm = FakeSlurm("a", "b")
    slurm.add_job(7, "b")
    look = carried_out(target_of(slurm), action_of(ActionKind.DRAIN, "a", "b"))
    assert said(look) == (Stage.DONE, ExecutorReason.DRAINING)


@pytest.mark.parametrize(
    ("changes", "stage", "reason"),
    [
        ({"flags": {"DRAIN"}, "reason": "fan"}, Stage.REFUSED, ExecutorReason.DRAINED_BY_SOMEBODY),
        ({"is_down": True, "reason": "fan"}, Stage.REFUSED, ExecutorReason.DRAINED_BY_SOMEBODY),
        ({"is_down": True, "reason": "Not responding"}, Stage.UNTOUCHED, ExecutorReason.FIRST_EFFECT_DUE),
        ({"flags": {"MAINT"}}, Stage.BLOCKED, ExecutorReason.IN_MAINTENANCE),
        ({"flags": {"FAIL"}, "reason": "x"}, Stage.REFUSED, ExecutorReason.DRAINED_BY_SOMEBODY),
        ({"boot_seconds": NOW_SECONDS + 1}, Stage.EXPIRED, ExecutorReason.REBOOTED_SINCE),
        ({"boot_seconds": NOW_SECONDS}, Stage.UNTOUCHED, ExecutorReason.FIRST_EFFECT_DUE),
        (
            {"flags": {"DRAIN"}, "reason": f"[HC] tocsin hang {'1' * 32}"},
            Stage.REFUSED,
            ExecutorReason.HELD_BY_OTHER_ACTION,
        ),
        (
            {"flags": {"DRAIN"}, "reason": f"[HC] tocsin hang {'1' * 32}", "user": "ann"},
            Stage.REFUSED,
            ExecutorReason.DRAINED_BY_SOMEBODY,
        ),
    ],
)
def test_what_stands_against_a_drain(changes: dict[str, Any], stage: Stage, reason: ExecutorReason) -> None:
    slurm = FakeSlurm("a")
    for name, value in changes.items():
        setattr(slurm.nodes["a"], name, value)
    assert said(target_of(slurm).look(action_of(ActionKind.DRAIN, "a"))) == (stage, reason)


@pytest.mark.parametrize("kind", [ActionKind.DRAIN, ActionKind.EVICT, ActionKind.RESTART, ActionKind.REBOOT])
@pytest.mark.parametrize(("told", "is_let_go"), [(1, True), (2, False), (None, False)])
def test_an_attempt_that_slurm_requeued_since_is_let_go(kind: ActionKind, told: int | None, is_let_go: bool) -> None:
    slurm = FakeSlurm("a", "b")
    slurm.add_job(7, "a", restarts=2)  # on the same machine again, since before the action was proposed
    action = action_of(kind, "a", job="7")
    look = target_of(slurm).look(replace(action, target=replace(action.target, slurm_restart_count=told)))
    wanted = (Stage.EXPIRED, ExecutorReason.NEW_ATTEMPT)
    assert said(look) == (wanted if is_let_go else (Stage.UNTOUCHED, ExecutorReason.FIRST_EFFECT_DUE))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"state": "COMPLETED"}, ExecutorReason.JOB_OVER),
        ({"state": "PENDING"}, ExecutorReason.JOB_NOT_RUNNING),
        ({"start_seconds": NOW_SECONDS + 1}, ExecutorReason.NEW_ATTEMPT),
        ({"hosts": ["b"]}, ExecutorReason.HOST_LEFT_JOB),
    ],
)
@pytest.mark.parametrize("kind", [ActionKind.DRAIN, ActionKind.EVICT, ActionKind.RESTART, ActionKind.REBOOT])
def test_an_action_of_another_attempt_is_let_go(
    kind: ActionKind, changes: dict[str, Any], reason: ExecutorReason
) -> None:
    slurm = FakeSlurm("a", "b")
    job = slurm.add_job(7, "a")
    for name, value in changes.items():
        setattr(job, name, value)
    assert said(carried_out(target_of(slurm), action_of(kind, "a", job="7"))) == (Stage.EXPIRED, reason)
    gone = action_of(kind, "a", job="8")
    assert said(carried_out(target_of(slurm), gone)) == (Stage.EXPIRED, ExecutorReason.JOB_OVER)
    assert slurm.effects == []


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"het_job_id": 6}, ExecutorReason.HETEROGENEOUS_JOB),
        ({"is_batch": False}, ExecutorReason.JOB_CANNOT_REQUEUE),
        ({"can_requeue": False}, ExecutorReason.JOB_CANNOT_REQUEUE),
        ({"required": "b,a"}, ExecutorReason.HOST_DEMANDED),
    ],
)
def test_a_job_that_cannot_be_requeued_keeps_its_machine(changes: dict[str, Any], reason: ExecutorReason) -> None:
    slurm = FakeSlurm("a", "b")
    slurm.add_job(7, "a", "b", **changes)
    assert said(carried_out(target_of(slurm), action_of(ActionKind.EVICT, "a", job="7"))) == (Stage.REFUSED, reason)
    assert slurm.effects == []


@pytest.mark.parametrize(
    ("kind", "hosts", "job", "reason"),
    [
        (ActionKind.EVICT, ("a",), "", ExecutorReason.NO_SLURM_JOB),
        (ActionKind.EVICT, (), "7", ExecutorReason.NO_MACHINE),
        (ActionKind.RESTART, ("a",), "", ExecutorReason.NO_SLURM_JOB),
        (ActionKind.DRAIN, (), "", ExecutorReason.NO_MACHINE),
        (ActionKind.DRAIN, ("x",), "", ExecutorReason.UNKNOWN_NODE),
        (ActionKind.REBOOT, ("x",), "", ExecutorReason.UNKNOWN_NODE),
        (ActionKind.PROBE, ("a",), "", ExecutorReason.KIND_NOT_DONE_HERE),
    ],
)
def test_what_names_too_little_or_asks_too_much_is_refused(
    kind: ActionKind, hosts: tuple[str, ...], job: str, reason: ExecutorReason
) -> None:
    slurm = FakeSlurm("a")
    slurm.add_job(7, "a")
    assert said(carried_out(target_of(slurm), action_of(kind, *hosts, job=job))) == (Stage.REFUSED, reason)
    assert slurm.effects == []


def test_the_name_of_all_nodes_reaches_nobody() -> None:
    slurm = FakeSlurm("a")
    with pytest.raises(TargetRefusedError):
        target_of(slurm).look(action_of(ActionKind.DRAIN, "ALL"))
    assert slurm.effects == []


def test_a_restart_requeues_once_and_drains_nothing() -> None:
    slurm = FakeSlurm("a")
    job = slurm.add_job(7, "a", required="a")
    action = action_of(ActionKind.RESTART, "a", job="7")
    for _ in range(3):
        look = carried_out(target_of(slurm), action)
        assert said(look) == (Stage.DONE, ExecutorReason.REQUEUED)
        slurm.start_again(7, NOW_SECONDS + 5)
    assert (job.restarts, job.hosts, slurm.takes_no_work("a")) == (1, ["a"], False)


def test_a_machine_that_somebody_drained_is_left_by_the_job_and_keeps_its_reason() -> None:
    slurm = FakeSlurm("a", "b")
    job = slurm.add_job(7, "a")
    slurm.nodes["a"].flags, slurm.nodes["a"].reason = {"DRAIN"}, "fan"
    action = action_of(ActionKind.EVICT, "a", job="7")
    assert said(carried_out(target_of(slurm), action)) == (Stage.DONE, ExecutorReason.REQUEUED)
    assert (slurm.nodes["a"].reason, job.excluded) == ("fan", "a")
    assert said(carried_out(target_of(slurm), action, back=True)) == (Stage.DONE, ExecutorReason.CHANGED_BY_SOMEBODY)
    assert (slurm.nodes["a"].reason, slurm.takes_no_work("a")) == ("fan", True)


def test_hosts_that_a_user_excluded_stay_excluded_beside_ours() -> None:
    slurm = FakeSlurm("a", "b", "c")
    job = slurm.add_job(7, "a", excluded="b")
    action = action_of(ActionKind.EVICT, "a", job="7")
    for _ in range(2):
        assert said(carried_out(target_of(slurm), action)) == (Stage.DONE, ExecutorReason.REQUEUED)
    assert job.excluded == "b,a"
    slurm.start_again(7, NOW_SECONDS + 5)
    assert job.hosts == ["c"]


def test_a_job_that_leaves_by_itself_after_the_drain_is_not_requeued() -> None:
    slurm = FakeSlurm("a", "b")
    job = slurm.add_job(7, "a")
    steps = steps_of(target_of(slurm), action_of(ActionKind.EVICT, "a", job="7"))
    assert next(steps).step == "drain"
    job.state = "COMPLETED"
    assert [said(look) for look in steps] == [(Stage.DONE, ExecutorReason.JOB_LEFT_BY_ITSELF)]
    assert job.restarts == 0


def test_a_job_that_somebody_released_to_the_machine_is_said_so() -> None:
    slurm = FakeSlurm("a")
    job = slurm.add_job(7, "a")
    steps = steps_of(target_of(slurm), action_of(ActionKind.EVICT, "a", job="7"))
    while next(steps).step != "exclude":
        pass
    job.state, job.hosts, job.is_held = "RUNNING", ["a"], False
    with pytest.raises(TargetRefusedError, match="no longer pending"):
        next(steps)
    look = target_of(slurm).look(action_of(ActionKind.EVICT, "a", job="7"))
    assert said(look) == (Stage.FAILED, ExecutorReason.RETURNED_TO_HOST)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("ReturnToService         = 1", "ReturnToService         = 2", ExecutorReason.RETURNS_BY_ITSELF),
        ("/etc/slurm/reboot", "(null)", ExecutorReason.NO_REBOOT_PROGRAM),
    ],
)
def test_a_cluster_that_cannot_keep_a_node_down_is_not_asked_to_reboot(
    old: str, new: str, reason: ExecutorReason
) -> None:
    slurm = FakeSlurm("a")
    slurm.config = slurm.config.replace(old, new)
    assert said(carried_out(target_of(slurm), action_of(ActionKind.REBOOT, "a"))) == (Stage.REFUSED, reason)
    assert slurm.effects == []


def test_a_reboot_never_asks_for_a_return_by_itself() -> None:
    slurm = FakeSlurm("a")
    action = action_of(ActionKind.REBOOT, "a")
    assert carried_out(target_of(slurm), action).stage is Stage.WAITING
    slurm.reboot_now("a", NOW_SECONDS + 60)
    assert said(carried_out(target_of(slurm), action)) == (Stage.DONE, ExecutorReason.REBOOTED)
    assert slurm.effects == [f"reboot ASAP nextstate=DOWN reason=[HC] tocsin ecc_error {action.action_id} a"]
    slurm.nodes["a"].reason = f"[HC] tocsin ecc_error {action.action_id} : reboot issued"
    assert said(target_of(slurm).look(action)) == (Stage.FAILED, ExecutorReason.REBOOT_FAILED)


EFFECTS = st.lists(st.sampled_from(["go", "lost", "drain", "resume", "edit", "end", "start"]), max_size=14)


@given(EFFECTS, st.sampled_from([ActionKind.DRAIN, ActionKind.EVICT, ActionKind.RESTART, ActionKind.REBOOT]))
def test_deaths_and_people_between_any_two_effects(events: list[str], kind: ActionKind) -> None:
    """Nothing is done twice, and a reason that is not ours is never replaced."""
    slurm = FakeSlurm("a", "b")
    job, node = slurm.add_job(7, "a"), slurm.nodes["a"]
    action = action_of(kind, "a", job="7")
    for event in [*events, *["go"] * 8]:
        theirs = node.reason if action.action_id not in node.reason or "by hand" in node.reason else None
        before = len(slurm.effects)
        if event in ("go", "lost"):
            target = target_of(slurm)
            slurm.away_after_effect = event == "lost"
            look = target.look(action)
            if look.step:
                try:
                    target.make(action, look)
                except TargetAwayError:
                    assert event == "lost"
            assert len(slurm.effects) - before <= 1
            if theirs:
                assert node.reason == theirs
        elif event == "drain":
            node.flags, node.reason, node.user = {*node.flags, "DRAIN"}, "by hand", "ann"
        elif event == "edit" and node.reason:
            node.reason, node.user = f"{node.reason} by hand", "ann"
        elif event == "resume":
            node.flags, node.is_down, node.reason = set(), False, ""
        elif event == "end":
            job.state, job.hosts = "COMPLETED", []
        else:
            slurm.start_again(7, NOW_SECONDS + 30)
    assert job.restarts <= (1 if kind in (ActionKind.EVICT, ActionKind.RESTART) else 0)
    assert sum("AdminComment" in effect for effect in slurm.effects) <= 1


@pytest.mark.parametrize("kind", [ActionKind.EVICT, ActionKind.RESTART])
def test_a_job_id_that_is_slurms_number_names_the_job_and_another_job_of_that_number_is_left_alone(
    kind: ActionKind,
) -> None:
    slurm = FakeSlurm("a", "b", "c")
    slurm.add_job(7, "a")
    told = action_of(kind, "a")
    action = replace(told, target=replace(told.target, job=JobKey("ci", "7", 0)))
    assert carried_out(target_of(slurm), action).stage is Stage.DONE
    assert (slurm.jobs[7].restarts, slurm.takes_no_work("a")) == (1, kind is ActionKind.EVICT)
    told = action_of(kind, "c", verdict="v2")
    other = replace(told, target=replace(told.target, job=JobKey("ci", "8", 0)))
    slurm.add_job(8, "b")
    assert said(carried_out(target_of(slurm), other)) == (Stage.EXPIRED, ExecutorReason.HOST_LEFT_JOB)
    assert slurm.jobs[8].restarts == 0


def test_a_number_that_is_no_job_of_slurm_does_not_keep_a_machine_from_being_drained() -> None:
    slurm = FakeSlurm("a")
    told = action_of(ActionKind.DRAIN, "a")
    action = replace(told, target=replace(told.target, job=JobKey("ci", "20261127", 0)))
    assert said(carried_out(target_of(slurm), action)) == (Stage.DONE, ExecutorReason.DRAINED)
