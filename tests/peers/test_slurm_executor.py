"""Actions on a real Slurm: what is ours is done and taken back, what is not ours stays, a death repeats nothing."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from tests.peers.slurm import Slurm, is_ready, user_name
from tests.pipeline.actions.executors.made import SECOND_NS, carried_out, made_action, steps_of
from tests.pipeline.actions.executors.world import SmallController
from tocsin.pipeline.actions.executors.core import ExecutorConfig, ExecutorCore
from tocsin.pipeline.actions.executors.reasons import ExecutorReason
from tocsin.pipeline.actions.executors.slurm import SlurmTarget, SlurmTargetConfig
from tocsin.pipeline.actions.executors.target import Look, Stage
from tocsin.pipeline.actions.executors.worker import ExecutorWorker
from tocsin.schemas.action_events import Ack
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.actions import Action
from tocsin.schemas.verdicts import ActionKind


def target_of(slurm: Slurm) -> SlurmTarget:
    """A new executor's target: it remembers nothing."""
    return SlurmTarget(SlurmTargetConfig(user_name()), slurm.cluster)


def action_of(kind: ActionKind, *hosts: str, job_id: int | None = None, verdict: str = "v1") -> Action:
    name = "" if job_id is None else str(job_id)
    return made_action(kind, *hosts, slurm_job_id=name, verdict=verdict, now_ns=time.time_ns())


def said(look: Look) -> tuple[Stage, ExecutorReason]:
    return look.stage, look.reason


def test_a_node_is_drained_once_and_given_back(slurm: Slurm) -> None:
    action = action_of(ActionKind.DRAIN, "node1")
    first, last = steps_of(target_of(slurm), action)
    assert (first.stage, first.step) == (Stage.UNTOUCHED, "drain")
    assert said(last) == (Stage.DONE, ExecutorReason.DRAINED)
    node = slurm.node("node1")
    assert node.reason == f"[HC] tocsin ecc_error {action.action_id}"
    assert node.is_drained
    assert [said(look) for look in steps_of(target_of(slurm), action)] == [said(last)]  # found done: nothing is made
    assert slurm.node("node1").reason_seconds == node.reason_seconds
    slurm.until(lambda: carried_out(target_of(slurm), action, back=True).stage is Stage.DONE)
    slurm.until(lambda: is_ready(slurm.node("node1")))


def test_a_drain_lets_the_job_go_on_and_does_not_say_drained(slurm: Slurm) -> None:
    job_id = slurm.submit("node1,node2")
    action = action_of(ActionKind.DRAIN, "node1", job_id=job_id)
    assert said(carried_out(target_of(slurm), action)) == (Stage.DONE, ExecutorReason.DRAINING)
    assert slurm.job(job_id).is_running
    slurm.ask("scancel", str(job_id))
    slurm.until(lambda: slurm.node("node1").is_drained)
    assert said(target_of(slurm).look(action)) == (Stage.DONE, ExecutorReason.DRAINED)


def test_what_somebody_else_drained_keeps_their_reason_and_is_not_ours_to_give_back(slurm: Slurm) -> None:
    slurm.ask("scontrol", "update", "NodeName=node1", "State=DRAIN", "Reason=fan, ticket 7")
    action = action_of(ActionKind.DRAIN, "node1")
    assert said(carried_out(target_of(slurm), action)) == (Stage.REFUSED, ExecutorReason.DRAINED_BY_SOMEBODY)
    assert slurm.node("node1").reason == "fan, ticket 7"

    mine = action_of(ActionKind.DRAIN, "node2")
    carried_out(target_of(slurm), mine)
    changed = f"{slurm.node('node2').reason} keep, ticket 8"
    slurm.ask("scontrol", "update", "NodeName=node2", "State=DRAIN", f"Reason={changed}")
    back = carried_out(target_of(slurm), mine, back=True)
    assert said(back) == (Stage.FAILED, ExecutorReason.CHANGED_BY_SOMEBODY)
    assert "ticket 8" in back.detail
    assert slurm.node("node2").is_drained


def test_a_job_is_evicted_once_whenever_its_executor_dies(slurm: Slurm) -> None:
    job_id = slurm.submit(2, "--job-name=train")
    left, kept = slurm.hosts_of(job_id)
    action = action_of(ActionKind.EVICT, left, job_id=job_id)
    slurm.ask("scontrol", "update", f"JobId={job_id}", "AdminComment=paid for by physics")
    steps: list[str] = []

    def is_done() -> bool:
        """An executor that dies after each effect, before it can tell; the next one starts from nothing."""
        look = target_of(slurm).look(action)
        if look.step:
            steps.append(look.step)
            target_of(slurm).make(action, look)
        assert look.stage in (Stage.UNTOUCHED, Stage.BEGUN, Stage.WAITING, Stage.DONE), look
        return look.stage is Stage.DONE

    slurm.until(is_done)
    assert steps == ["drain", "note", "requeue_held", "exclude", "release"]
    slurm.until(lambda: slurm.job(job_id).is_running)
    job = slurm.job(job_id)
    assert (job.restart_count, job.excluded) == (1, left)
    assert job.admin_comment == f"paid for by physics; [HC] tocsin {action.action_id} after 0 restarts"
    assert left not in slurm.hosts_of(job_id)
    assert (slurm.node(left).is_drained, slurm.node(kept).takes_no_work) == (True, False)
    look = target_of(slurm).look(action)
    assert said(look) == (Stage.DONE, ExecutorReason.REQUEUED)
    assert look.effects == ("drain", "note", "requeue")

    later = action_of(ActionKind.EVICT, slurm.hosts_of(job_id)[0], job_id=job_id, verdict="old")
    old = made_action(ActionKind.EVICT, later.target.hosts[0], slurm_job_id=str(job_id), now_ns=action.issued_ns)
    assert said(carried_out(target_of(slurm), old)) == (Stage.EXPIRED, ExecutorReason.NEW_ATTEMPT)
    gone = action_of(ActionKind.EVICT, left, job_id=job_id, verdict="v2")
    assert said(carried_out(target_of(slurm), gone)) == (Stage.EXPIRED, ExecutorReason.HOST_LEFT_JOB)
    assert slurm.job(job_id).restart_count == 1


def test_a_job_that_cannot_go_on_without_the_host_is_left_alone(slurm: Slurm) -> None:
    demanding, fixed = slurm.submit("node1"), slurm.submit("node2", "--no-requeue")
    for host, job_id, reason in (
        ("node1", demanding, ExecutorReason.HOST_DEMANDED),
        ("node2", fixed, ExecutorReason.JOB_CANNOT_REQUEUE),
    ):
        look = carried_out(target_of(slurm), action_of(ActionKind.EVICT, host, job_id=job_id))
        assert said(look) == (Stage.REFUSED, reason)
        assert (slurm.node(host).takes_no_work, slurm.job(job_id).is_running) == (False, True)


def test_a_reboot_waits_for_the_job_and_leaves_the_node_down_until_it_is_given_back(slurm: Slurm) -> None:
    job_id = slurm.submit("node3")
    action = action_of(ActionKind.REBOOT, "node3", job_id=job_id)
    assert said(carried_out(target_of(slurm), action)) == (Stage.WAITING, ExecutorReason.WAITS_FOR_REBOOT)
    assert slurm.job(job_id).is_running
    assert said(target_of(slurm).look(action)) == (Stage.WAITING, ExecutorReason.WAITS_FOR_REBOOT)
    slurm.ask("scancel", str(job_id))
    slurm.until(lambda: slurm.restart_rebooted() == ["node3"])
    slurm.until(lambda: target_of(slurm).look(action).stage is Stage.DONE)
    assert said(target_of(slurm).look(action)) == (Stage.DONE, ExecutorReason.REBOOTED)
    early = made_action(ActionKind.DRAIN, "node3", now_ns=action.issued_ns, verdict="v3")
    assert said(target_of(slurm).look(early)) == (Stage.EXPIRED, ExecutorReason.REBOOTED_SINCE)
    later = action_of(ActionKind.DRAIN, "node3", verdict="v2")
    later = replace(later, issued_ns=later.issued_ns + 10**10)
    assert target_of(slurm).look(later).reason is ExecutorReason.HELD_BY_OTHER_ACTION
    slurm.settle("node3")  # it registers again: that alone gives it no work
    assert slurm.node("node3").base == "DOWN"
    slurm.until(lambda: carried_out(target_of(slurm), action, back=True).stage is Stage.DONE)
    slurm.until(lambda: is_ready(slurm.node("node3")))


def test_a_drained_node_is_rebooted_and_each_undo_takes_back_its_own(slurm: Slurm) -> None:
    job_id = slurm.submit("node4")
    drain, reboot = (action_of(kind, "node4", verdict="v4") for kind in (ActionKind.DRAIN, ActionKind.REBOOT))
    carried_out(target_of(slurm), drain)
    assert carried_out(target_of(slurm), reboot).stage is Stage.WAITING
    assert slurm.node("node4").reason == f"[HC] tocsin ecc_error {drain.action_id} {reboot.action_id}"
    back = carried_out(target_of(slurm), reboot, back=True)
    assert said(back) == (Stage.DONE, ExecutorReason.HELD_BY_OTHER_ACTION)
    assert (slurm.node("node4").is_rebooting, slurm.node("node4").takes_no_work) == (False, True)
    slurm.ask("scancel", str(job_id))
    slurm.until(lambda: carried_out(target_of(slurm), drain, back=True).stage is Stage.DONE)
    slurm.until(lambda: is_ready(slurm.node("node4")))


def test_a_node_that_two_actions_keep_out_comes_back_with_the_last(slurm: Slurm) -> None:
    job_id = slurm.submit(1)
    (host,) = slurm.hosts_of(job_id)
    drain = action_of(ActionKind.DRAIN, host, job_id=job_id)
    evict = action_of(ActionKind.EVICT, host, job_id=job_id, verdict="v2")
    carried_out(target_of(slurm), drain)
    slurm.until(lambda: carried_out(target_of(slurm), evict).stage is Stage.DONE)
    assert slurm.node(host).reason == f"[HC] tocsin ecc_error {drain.action_id} {evict.action_id}"
    back = carried_out(target_of(slurm), drain, back=True)
    assert said(back) == (Stage.DONE, ExecutorReason.HELD_BY_OTHER_ACTION)
    assert slurm.node(host).reason == f"[HC] tocsin ecc_error {evict.action_id}"
    assert slurm.node(host).takes_no_work
    slurm.until(lambda: carried_out(target_of(slurm), evict, back=True).stage is Stage.DONE)
    slurm.until(lambda: not slurm.node(host).takes_no_work)
    slurm.ask("scancel", str(job_id))


def test_an_administrators_reboot_outlives_our_drain_and_its_undo(slurm: Slurm) -> None:
    ours, theirs = slurm.submit("node5"), slurm.submit("node6")
    drain = action_of(ActionKind.DRAIN, "node5")
    carried_out(target_of(slurm), drain)
    slurm.ask("scontrol", "reboot", "ASAP", "node5")
    back = carried_out(target_of(slurm), drain, back=True)
    assert said(back) == (Stage.WAITING, ExecutorReason.WAITS_FOR_REBOOT)
    assert slurm.node("node5").is_rebooting

    slurm.ask("scontrol", "reboot", "reason=kernel update", "node6")
    look = carried_out(target_of(slurm), action_of(ActionKind.DRAIN, "node6"))
    assert said(look) == (Stage.REFUSED, ExecutorReason.DRAINED_BY_SOMEBODY)
    assert slurm.node("node6").reason.startswith("kernel update")
    assert slurm.node("node6").is_rebooting

    for host, job_id in (("node5", ours), ("node6", theirs)):
        slurm.ask("scontrol", "cancel_reboot", host)
        slurm.ask("scancel", str(job_id))
    slurm.until(lambda: carried_out(target_of(slurm), drain, back=True).stage is Stage.DONE)
    slurm.until(lambda: is_ready(slurm.node("node5")) and is_ready(slurm.node("node6")))


def test_a_cluster_that_takes_nodes_back_by_itself_is_not_asked_to_reboot(slurm: Slurm) -> None:
    config = slurm.folder / "slurm.conf"
    text = config.read_text()
    config.write_text(text.replace("ReturnToService=1", "ReturnToService=2"))
    try:
        slurm.ask("scontrol", "reconfigure")
        slurm.until(lambda: slurm.cluster.settings().returns_by_itself)
        look = carried_out(target_of(slurm), action_of(ActionKind.REBOOT, "node1"))
        assert said(look) == (Stage.REFUSED, ExecutorReason.RETURNS_BY_ITSELF)
        assert not slurm.node("node1").takes_no_work
    finally:
        config.write_text(text)
        slurm.ask("scontrol", "reconfigure")
        slurm.until(lambda: not slurm.cluster.settings().returns_by_itself)


@pytest.mark.parametrize(("host", "reason"), [("node99", ExecutorReason.UNKNOWN_NODE)])
def test_a_host_that_slurm_does_not_know_is_refused(slurm: Slurm, host: str, reason: ExecutorReason) -> None:
    assert said(carried_out(target_of(slurm), action_of(ActionKind.DRAIN, host))) == (Stage.REFUSED, reason)


def test_an_executor_that_dies_between_effect_and_message_is_followed_by_one_that_looks(slurm: Slurm) -> None:
    action = action_of(ActionKind.DRAIN, "node5")
    controller, clock = SmallController(action), [action.issued_ns]
    controller.publish(clock[0])
    cores = {
        name: ExecutorCore(ExecutorConfig("ci", name, frozenset({ActionKind.DRAIN}))) for name in ("first", "second")
    }

    def say(acks: list[Ack]) -> None:
        for ack in acks:
            controller.on_ack(ack, clock[0])

    def go(name: str) -> None:
        for change in controller.log:
            say(cores[name].on_action(change, clock[0]))
        ExecutorWorker(cores[name], target_of(slurm), lambda: clock[0], say).work()

    while not slurm.node("node5").takes_no_work:  # the first dies as soon as the node is drained
        go("first")
        clock[0] += SECOND_NS
    assert controller.action.state in (ActionState.STARTED, ActionState.DONE)
    controller.action = replace(controller.action, state=ActionState.STARTED)  # its last message is lost
    controller.publish(clock[0])
    written = slurm.node("node5").reason_seconds
    clock[0] = controller.action.lease_ns
    for _ in range(3):
        go("second")
    assert (controller.action.state, controller.action.holder) == (ActionState.DONE, "second")
    assert (slurm.node("node5").reason_seconds, slurm.node("node5").is_drained) == (written, True)
