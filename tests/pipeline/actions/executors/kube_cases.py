"""What the executor does on Kubernetes: on a fake in ``make test``, on a real API server in ``tests/peers_kube``."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.pipeline.actions.executors.kube_world import NOBODY, KubeWorld
from tests.pipeline.actions.executors.made import SECOND_NS, carried_out, made_action, steps_of
from tocsin.pipeline.actions.executors.kubernetes_marks import CONDITION, PREFIX, TAINT, mark_of
from tocsin.pipeline.actions.executors.reasons import ExecutorReason
from tocsin.pipeline.actions.executors.target import Look, Stage
from tocsin.schemas.actions import Action, ActionTarget, Machine
from tocsin.schemas.errors import TargetAwayError, TargetRefusedError
from tocsin.schemas.job_key import JobKey
from tocsin.schemas.verdicts import ActionKind

OTHERS = [("gpu", "yes")]
DRAIN, EVICT = ActionKind.DRAIN, ActionKind.EVICT


def action_on(kind: ActionKind, *machines: Machine | str, verdict: str = "v1") -> Action:
    """An action on machines, issued now."""
    found = [Machine(one) if isinstance(one, str) else one for one in machines]
    target = ActionTarget(JobKey("ci", "train", 0), None, tuple(sorted(found)))
    now_ns = time.time_ns() + SECOND_NS  # the API server's times have whole seconds
    return made_action(kind, verdict=verdict, now_ns=now_ns, target=target, action_id=(verdict[-1] * 32))


def said(look: Look) -> tuple[Stage, ExecutorReason]:
    return look.stage, look.reason


def is_untouched(world: KubeWorld, name: str) -> bool:
    """Whether nothing of ours is on a node, and all of the others'."""
    ours = [key for key in world.annotations(name) if key.startswith(PREFIX)]
    is_ours = bool(ours) or world.is_cordoned(name) or CONDITION in world.conditions(name)
    return not is_ours and world.taints(name) == OTHERS and world.conditions(name)["Ready"] == "True"


class KubeCases:
    """Actions on a cluster."""

    def test_a_drain_cordons_taints_and_says_why_and_its_undo_leaves_what_is_others(self, world: KubeWorld) -> None:
        world.add_node("a")
        world.add_pod("daemon", "a", owner="")
        action = action_on(DRAIN, "a")
        look = carried_out(world.target(), action)
        assert said(look) == (Stage.DONE, ExecutorReason.DRAINING)
        assert look.effects == ("condition", "cordon", "mark", "taint")
        assert world.is_cordoned("a")
        assert world.taints("a") == [*OTHERS, (TAINT, action.action_id)]
        assert world.conditions("a") == {"Ready": "True", CONDITION: "True"}
        assert '"cause": "ecc_error"' in world.annotations("a")[f"{PREFIX}{action.action_id}"]
        assert world.pods() == {"daemon": False}
        assert [one.step for one in steps_of(world.target(), action)] == [""]
        assert carried_out(world.target(), action, back=True).stage is Stage.DONE
        assert is_untouched(world, "a")
        assert [one.step for one in steps_of(world.target(), action, back=True)] == [""]

    def test_what_others_add_meanwhile_survives_the_undo(self, world: KubeWorld) -> None:
        world.add_node("a")
        action = action_on(DRAIN, "a")
        carried_out(world.target(), action)
        taints = [*world.node("a")["spec"]["taints"], {"key": "late", "value": "x", "effect": "NoExecute"}]
        world.patch("/api/v1/nodes/a", {"spec": {"taints": taints}, "metadata": {"annotations": {"who": "ann"}}})
        disk = {"type": "DiskPressure", "status": "False", "reason": "r", "message": "m"}
        world.patch("/api/v1/nodes/a/status", {"status": {"conditions": [disk]}})
        carried_out(world.target(), action, back=True)
        assert world.taints("a") == [*OTHERS, ("late", "x")]
        assert world.conditions("a") == {"Ready": "True", "DiskPressure": "False"}
        assert world.annotations("a") == {"who": "ann"}
        assert not world.is_cordoned("a")

    def test_a_cordon_that_somebody_took_back_and_made_again_is_theirs(self, world: KubeWorld) -> None:
        world.add_node("a")
        action = action_on(DRAIN, "a")
        carried_out(world.target(), action)
        world.cordon("a", is_on=False)
        assert said(world.target().look(action)) == (Stage.FAILED, ExecutorReason.GIVEN_BACK_BY_SOMEBODY)
        world.cordon("a")
        carried_out(world.target(), action, back=True)
        assert world.is_cordoned("a")
        assert world.taints("a") == OTHERS

    def test_a_node_that_somebody_cordoned_is_not_drained_again(self, world: KubeWorld) -> None:
        world.add_node("a")
        world.cordon("a")
        look = carried_out(world.target(), action_on(DRAIN, "a"))
        assert said(look) == (Stage.REFUSED, ExecutorReason.DRAINED_BY_SOMEBODY)
        assert world.taints("a") == OTHERS

    def test_a_second_action_is_refused_and_an_evict_shares_the_node(self, world: KubeWorld) -> None:
        world.add_node("a")
        uid = world.add_pod("p", "a")
        first, second = action_on(DRAIN, "a"), action_on(EVICT, Machine("a", pod_uid=uid), verdict="v2")
        carried_out(world.target(), first)
        look = carried_out(world.target(), action_on(DRAIN, "a", verdict="v3"))
        assert said(look) == (Stage.REFUSED, ExecutorReason.HELD_BY_OTHER_ACTION)
        assert carried_out(world.target(), second).stage is Stage.WAITING
        carried_out(world.target(), first, back=True)
        assert world.is_cordoned("a")
        assert world.taints("a") == [*OTHERS, (TAINT, second.action_id)]
        carried_out(world.target(), second, back=True)
        assert is_untouched(world, "a")

    @pytest.mark.parametrize(
        ("machine", "reason"),
        [
            (Machine("a", node_uid="other"), ExecutorReason.NODE_REPLACED),
            (Machine("a", boot_id="boot-0"), ExecutorReason.REBOOTED_SINCE),
            (Machine("a", pod_uid="other"), ExecutorReason.HOST_LEFT_JOB),
        ],
    )
    def test_another_incarnation_is_let_go(self, world: KubeWorld, machine: Machine, reason: ExecutorReason) -> None:
        world.add_node("a")
        assert said(carried_out(world.target(), action_on(DRAIN, machine))) == (Stage.EXPIRED, reason)
        assert is_untouched(world, "a")

    def test_the_same_incarnation_is_drained(self, world: KubeWorld) -> None:
        uid = world.add_node("a")
        machine = Machine("a", "boot-1", uid, world.add_pod("p", "a"))
        assert carried_out(world.target(), action_on(DRAIN, machine)).stage is Stage.DONE

    def test_a_pod_that_is_over_lets_the_action_go(self, world: KubeWorld) -> None:
        world.add_node("a")
        uid = world.add_pod("p", "a")
        world.finish_pod("p")
        look = carried_out(world.target(), action_on(EVICT, Machine("a", pod_uid=uid)))
        assert said(look) == (Stage.EXPIRED, ExecutorReason.JOB_OVER)

    def test_an_evict_takes_the_pods_of_the_job_and_no_other(self, world: KubeWorld) -> None:
        world.add_node("a")
        uid = world.add_pod("p", "a")
        world.add_pod("q", "a")
        world.add_pod("other", "a", owner="")
        action = action_on(EVICT, Machine("a", pod_uid=uid))
        look = carried_out(world.target(), action)
        assert said(look) == (Stage.WAITING, ExecutorReason.PODS_LEAVE)
        assert world.pods() == {"p": True, "q": True, "other": False}
        world.remove_pod("p")
        world.remove_pod("q")
        look = carried_out(world.target(), action)
        assert said(look) == (Stage.DONE, ExecutorReason.EVICTED)
        assert look.effects == ("condition", "cordon", "evict", "mark", "taint")
        assert world.is_cordoned("a")

    def test_an_evict_without_a_known_pod_is_refused(self, world: KubeWorld) -> None:
        world.add_node("a")
        look = carried_out(world.target(), action_on(EVICT, "a"))
        assert said(look) == (Stage.REFUSED, ExecutorReason.NO_POD)
        assert is_untouched(world, "a")

    def test_an_evict_finds_the_pod_by_its_name_and_goes_on_when_the_pod_is_gone(self, world: KubeWorld) -> None:
        world.add_node("a")
        world.add_pod("p", "a", owner="")
        action = action_on(EVICT, Machine("a", pod_name="default/p"))
        assert said(carried_out(world.target(), action)) == (Stage.WAITING, ExecutorReason.PODS_LEAVE)
        assert world.pods() == {"p": True}
        world.remove_pod("p")
        assert said(carried_out(world.target(), action)) == (Stage.DONE, ExecutorReason.EVICTED)

    @pytest.mark.parametrize(
        ("name", "stage", "reason"),
        [
            ("other/p", Stage.EXPIRED, ExecutorReason.HOST_LEFT_JOB),
            ("default/q", Stage.EXPIRED, ExecutorReason.HOST_LEFT_JOB),
            ("q", Stage.REFUSED, ExecutorReason.NO_POD),
        ],
    )
    def test_a_pod_of_another_name_is_not_evicted(
        self, world: KubeWorld, name: str, stage: Stage, reason: ExecutorReason
    ) -> None:
        world.add_node("a")
        world.add_pod("p", "a")
        look = carried_out(world.target(), action_on(EVICT, Machine("a", pod_name=name)))
        assert said(look) == (stage, reason)
        assert world.pods() == {"p": False}

    def test_a_budget_holds_the_eviction_up_until_it_allows_one(self, world: KubeWorld) -> None:
        world.add_node("a")
        action = action_on(EVICT, Machine("a", pod_uid=world.add_pod("p", "a")))
        world.add_budget("p", 0)
        look = carried_out(world.target(), action)
        assert said(look) == (Stage.BLOCKED, ExecutorReason.DISRUPTION_BUDGET)
        assert look.effects == ("condition", "cordon", "mark", "taint")
        world.allow("p", 0, observed=0)
        assert said(world.target().look(action)) == (Stage.BLOCKED, ExecutorReason.TARGET_BUSY)
        assert world.pods() == {"p": False}
        world.allow("p", 1)
        assert said(carried_out(world.target(), action)) == (Stage.WAITING, ExecutorReason.PODS_LEAVE)

    def test_a_budget_of_one_pod_holds_up_no_other(self, world: KubeWorld) -> None:
        world.add_node("a")
        action = action_on(EVICT, Machine("a", pod_uid=world.add_pod("p", "a")))
        world.add_pod("q", "a")
        world.add_budget("p", 0)
        assert said(carried_out(world.target(), action)) == (Stage.BLOCKED, ExecutorReason.DISRUPTION_BUDGET)
        assert world.pods() == {"p": False, "q": True}

    def test_two_budgets_on_a_pod_are_told_as_they_are(self, world: KubeWorld) -> None:
        world.add_node("a")
        action = action_on(EVICT, Machine("a", pod_uid=world.add_pod("p", "a")))
        world.add_budget("p", 1)
        world.add_budget("again", 1, app="p")
        with pytest.raises(TargetAwayError, match="more than one PodDisruptionBudget"):
            carried_out(world.target(), action)

    def test_a_pod_that_stays_after_its_time_is_told(self, world: KubeWorld) -> None:
        world.add_node("a")
        action = action_on(EVICT, Machine("a", pod_uid=world.add_pod("p", "a")))
        carried_out(world.target(), action)
        world.clock_ns[0] += 600 * SECOND_NS
        assert said(world.target().look(action)) == (Stage.BLOCKED, ExecutorReason.POD_DOES_NOT_LEAVE)

    def test_a_change_between_look_and_effect_is_seen(self, world: KubeWorld) -> None:
        world.add_node("a")
        action, cluster = action_on(DRAIN, "a"), world.cluster()
        node = cluster.node("a")
        assert node is not None
        world.patch("/api/v1/nodes/a", {"metadata": {"annotations": {"who": "ann"}}})
        with pytest.raises(TargetAwayError) as caught:
            cluster.put_mark(node, mark_of(action, ("cordon", "taint"), 0))
        assert caught.value.reason == ExecutorReason.CHANGED_MEANWHILE
        assert is_untouched(world, "a")

    def test_a_node_that_is_gone_is_unknown_and_has_nothing_to_undo(self, world: KubeWorld) -> None:
        action = action_on(DRAIN, "gone")
        assert said(carried_out(world.target(), action)) == (Stage.REFUSED, ExecutorReason.UNKNOWN_NODE)
        assert said(carried_out(world.target(), action, back=True)) == (Stage.DONE, ExecutorReason.GIVEN_BACK)
        with pytest.raises(TargetRefusedError) as caught:
            world.target().make(action, Look(Stage.UNTOUCHED, ExecutorReason.FIRST_EFFECT_DUE, "hold", "gone"))
        assert caught.value.reason == ExecutorReason.NOT_FOUND

    @pytest.mark.parametrize(
        ("token", "error", "reason"),
        [
            (NOBODY, TargetRefusedError, ExecutorReason.FORBIDDEN),
            ("expired", TargetAwayError, ExecutorReason.CREDENTIALS_REFUSED),
        ],
    )
    def test_who_may_not_is_told_so(
        self, world: KubeWorld, token: str, error: Callable[..., Exception], reason: ExecutorReason
    ) -> None:
        world.add_node("a")
        with pytest.raises((TargetRefusedError, TargetAwayError)) as caught:
            world.target(token).look(action_on(DRAIN, "a"))
        assert (caught.type, caught.value.reason) == (error, reason)

    def test_a_host_is_found_by_the_label_of_its_node(self, world: KubeWorld) -> None:
        world.add_node("gpu-7", labels={"kubernetes.io/hostname": "a"})
        assert carried_out(world.target(), action_on(DRAIN, "a.example.org")).stage is Stage.DONE
        assert world.is_cordoned("gpu-7")
