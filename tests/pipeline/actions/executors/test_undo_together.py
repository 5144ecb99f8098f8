"""Several actions that keep one machine out: it comes back with the last of them, and other people's work stays."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.pipeline.actions.executors.fake_slurm import FakeSlurm
from tests.pipeline.actions.executors.made import carried_out
from tests.pipeline.actions.executors.test_slurm import action_of, said, target_of
from tests.pipeline.actions.executors.test_with_controller import Site
from tests.pipeline.actions.kit import CLUSTER, T0, verdict_on
from tocsin.pipeline.actions.executors.reasons import ExecutorReason
from tocsin.pipeline.actions.executors.target import Stage
from tocsin.schemas.action_events import Approval, Cancel, CheckResult, HumanChange, HumanChangeKind
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.operator_notes import Feedback
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import ActionKind

DRAIN, EVICT, REBOOT = ActionKind.DRAIN, ActionKind.EVICT, ActionKind.REBOOT


def taken_twice(second: ActionKind) -> Site:
    """A machine that is drained for one verdict, and evicted or rebooted for another one."""
    site = Site()
    site.start("e1", (DRAIN, EVICT, REBOOT))
    site.stage.judge(verdict_on("n1", name="v1", action=DRAIN))
    site.until(ActionState.DONE, "e1", kind=DRAIN)
    at_seconds = (site.stage.now_ns - T0) / NS_PER_SECOND
    site.stage.judge(verdict_on("n1", name="v2", action=second, at_seconds=at_seconds, cause="nic_down"))
    if second is REBOOT:
        site.stage.tell(Approval(CLUSTER, site.stage.on_host("n1", REBOOT).action_id, "uid:0", site.stage.now_ns))
        site.job.state, site.job.hosts = "COMPLETED", []
        site.until(ActionState.STARTED, "e1", kind=REBOOT)
        while "REBOOT_REQUESTED" not in site.slurm.nodes["n1"].flags:
            site.go("e1")
        site.slurm.reboot_now("n1", site.stage.now_ns // NS_PER_SECOND)
    site.until(ActionState.DONE, "e1", kind=second)
    return site


def cancel(site: Site, kind: ActionKind) -> None:
    site.stage.tell(Cancel(CLUSTER, site.stage.on_host("n1", kind).action_id, "uid:0", site.stage.now_ns))


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("second", [EVICT, REBOOT])
def test_a_machine_comes_back_with_the_last_of_two_in_any_order(
    second: ActionKind, order: Sequence[int], *, is_restarted: bool
) -> None:
    site = taken_twice(second)
    kinds = (DRAIN, second)
    cancel(site, kinds[order[0]])
    for _ in range(20):
        site.go("e1")
    first = site.stage.on_host("n1", kinds[order[0]])
    assert (first.state, first.reason) == (ActionState.UNDONE, "held_by_other_action")
    assert site.slurm.takes_no_work("n1")
    if is_restarted:
        site.stage.crash()
        site.start("e1", (DRAIN, EVICT, REBOOT))
    cancel(site, kinds[order[1]])
    for _ in range(40):
        site.go("e1")

    assert [site.stage.on_host("n1", kind).state for kind in kinds] == [ActionState.UNDONE] * 2
    assert not site.slurm.takes_no_work("n1")
    assert site.slurm.nodes["n1"].reason == ""


def test_a_wrong_verdict_waits_for_the_check_that_clears_the_other_one() -> None:
    site = taken_twice(EVICT)
    told = Feedback(CLUSTER, "v1", False, "no", "operator:ann", site.stage.now_ns)
    site.stage.published += site.stage.controller.on_event(told, site.stage.now_ns)
    for _ in range(20):
        site.go("e1")
    assert site.slurm.takes_no_work("n1")
    site.stage.tell(CheckResult(CLUSTER, "n1", "boot-n1", "load", True, True, site.stage.now_ns))
    for _ in range(40):
        site.go("e1")
    assert not site.slurm.takes_no_work("n1")
    assert "others_let_go" in {one.reason for one in site.stage.published}


def test_a_person_who_resumes_the_machine_ends_both() -> None:
    site = taken_twice(EVICT)
    cancel(site, DRAIN)
    node = site.slurm.nodes["n1"]
    node.flags, node.reason = set(), ""
    effects = len(site.slurm.effects)
    told = HumanChange(CLUSTER, "n1", HumanChangeKind.UNCORDONED, "ann", site.stage.now_ns)
    site.stage.tell(told)
    for _ in range(20):
        site.go("e1")
    assert [site.stage.on_host("n1", kind).state for kind in (DRAIN, EVICT)] == [ActionState.UNDONE] * 2
    assert len(site.slurm.effects) == effects


def test_of_two_machines_only_the_one_that_no_other_action_keeps_out_comes_back() -> None:
    slurm = FakeSlurm("a", "b", "c")
    slurm.add_job(7, "b", "c")
    drain = action_of(DRAIN, "a", "b")
    evict = action_of(EVICT, "b", job="7", verdict="v2")
    carried_out(target_of(slurm), drain)
    assert carried_out(target_of(slurm), evict).stage is Stage.DONE
    assert slurm.nodes["b"].reason == f"[HC] tocsin ecc_error {drain.action_id} {evict.action_id}"

    look = carried_out(target_of(slurm), drain, back=True)
    assert said(look) == (Stage.DONE, ExecutorReason.HELD_BY_OTHER_ACTION)
    assert (slurm.takes_no_work("a"), slurm.takes_no_work("b")) == (False, True)
    carried_out(target_of(slurm), evict, back=True)
    assert not slurm.takes_no_work("b")


def test_a_reboot_that_an_administrator_asked_for_outlives_our_undo() -> None:
    slurm = FakeSlurm("a")
    slurm.add_job(7, "a")
    drain = action_of(DRAIN, "a")
    carried_out(target_of(slurm), drain)
    slurm.nodes["a"].flags |= {"REBOOT_REQUESTED"}  # "scontrol reboot ASAP a" without a reason: ours stays
    assert said(carried_out(target_of(slurm), drain, back=True)) == (Stage.WAITING, ExecutorReason.WAITS_FOR_REBOOT)
    assert [effect.split()[0] for effect in slurm.effects] == ["update"]

    slurm.nodes["a"].flags = {"DRAIN"}
    slurm.nodes["a"].reason += " : reboot complete"
    assert carried_out(target_of(slurm), drain, back=True).stage is Stage.DONE
    assert not slurm.takes_no_work("a")


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        (DRAIN, (Stage.REFUSED, ExecutorReason.DRAINED_BY_SOMEBODY)),
        (REBOOT, (Stage.REFUSED, ExecutorReason.DRAINED_BY_SOMEBODY)),
        (EVICT, (Stage.DONE, ExecutorReason.REQUEUED)),
    ],
)
def test_a_node_that_an_administrator_is_to_reboot_keeps_the_administrators_reason(
    kind: ActionKind, wanted: tuple[Stage, ExecutorReason]
) -> None:
    slurm = FakeSlurm("a")
    slurm.add_job(7, "a")
    node = slurm.nodes["a"]
    node.flags, node.reason, node.user = {"REBOOT_REQUESTED"}, "kernel update", "ann"
    assert said(carried_out(target_of(slurm), action_of(kind, "a", job="7"))) == wanted
    assert (node.reason, node.flags) == ("kernel update", {"REBOOT_REQUESTED"})


def test_where_a_person_has_to_bring_silent_nodes_back_we_do_not() -> None:
    slurm = FakeSlurm("a")
    slurm.config = slurm.config.replace("ReturnToService         = 1", "ReturnToService         = 0")
    slurm.nodes["a"].is_down, slurm.nodes["a"].reason = True, "Not responding"
    drain = action_of(DRAIN, "a")
    assert said(carried_out(target_of(slurm), drain)) == (Stage.REFUSED, ExecutorReason.DRAINED_BY_SOMEBODY)
    assert (slurm.effects, slurm.takes_no_work("a")) == ([], True)
