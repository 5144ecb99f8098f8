"""DeviceTaintRules: on a fake in ``make test``, on a real API server in ``tests/peers_kube``."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.pipeline.actions.executors.kube_cases import DRAIN, EVICT, action_on
from tests.pipeline.actions.executors.kube_world import KubeWorld
from tests.pipeline.actions.executors.made import SECOND_NS, carried_out
from tocsin.pipeline.actions.executors.kubernetes import KubernetesTarget
from tocsin.pipeline.actions.executors.kubernetes_marks import PREFIX, TAINT
from tocsin.pipeline.actions.executors.target import Stage
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.actions import Action, Machine
from tocsin.schemas.verdicts import ActionKind, Component, ComponentKind

GPU = "GPU-11111111-2222-3333-4444-555555555555"


def about_gpu(action: Action, gpu: str = GPU) -> Action:
    """The same action, about one GPU."""
    return replace(action, target=replace(action.target, component=Component(ComponentKind.GPU, gpu)))


def tell(world: KubeWorld, target: KubernetesTarget, action: Action, state: ActionState) -> Action:
    """The controller publishes a state; ten seconds pass."""
    changed = replace(action, state=state)
    target.on_action(changed)
    world.clock_ns[0] += 11 * SECOND_NS
    target.on_time()
    return changed


class DeviceCases:
    """The rules of a cluster whose GPUs are given out by DRA."""

    @pytest.mark.parametrize("state", [ActionState.PROPOSED, ActionState.WAITING_APPROVAL, ActionState.APPROVED])
    def test_what_is_proposed_has_a_rule_without_effect(self, world: KubeWorld, state: ActionState) -> None:
        world.add_node("a")
        world.add_device("a", "gpu-3", GPU)
        action = about_gpu(action_on(DRAIN, "a"))
        tell(world, world.target(), action, state)
        (rule,) = world.rules()
        assert rule["spec"]["taint"]["effect"] == "None"
        assert (rule["spec"]["taint"]["key"], rule["spec"]["taint"]["value"]) == (TAINT, action.action_id)
        assert rule["spec"]["deviceSelector"] == {"driver": "gpu.example.com", "pool": "a", "device": "gpu-3"}
        assert '"cause": "ecc_error"' in rule["metadata"]["annotations"][f"{PREFIX}{action.action_id}"]
        assert not world.is_cordoned("a")

    @pytest.mark.parametrize("state", [ActionState.CANCELLED, ActionState.REFUSED, ActionState.EXPIRED])
    def test_what_nobody_will_do_loses_its_rule(self, world: KubeWorld, state: ActionState) -> None:
        world.add_node("a")
        world.add_device("a", "gpu-3", GPU)
        target, action = world.target(), about_gpu(action_on(DRAIN, "a"))
        tell(world, target, action, ActionState.PROPOSED)
        tell(world, target, action, state)
        assert world.rules() == []

    def test_a_drain_keeps_the_device_from_new_pods_and_its_undo_gives_it_back(self, world: KubeWorld) -> None:
        world.add_node("a")
        world.add_device("a", "gpu-3", GPU)
        world.add_rule("others")
        action = about_gpu(action_on(DRAIN, "a"))
        tell(world, world.target(), action, ActionState.PROPOSED)
        look = carried_out(world.target(), action)
        assert (look.stage, "device" in look.effects) == (Stage.DONE, True)
        assert [one["spec"]["taint"]["effect"] for one in world.rules()] == ["NoSchedule"]
        tell(world, world.target(), action, ActionState.DONE)
        assert [one["spec"]["taint"]["effect"] for one in world.rules()] == ["NoSchedule"]
        assert carried_out(world.target(), action, back=True).stage is Stage.DONE
        assert world.rules() == []
        assert not world.is_cordoned("a")
        assert world.api().call("GET", f"{world.rule_path}/others")["metadata"]["name"] == "others"

    def test_an_evict_without_a_proposal_before_writes_the_rule_itself(self, world: KubeWorld) -> None:
        world.add_node("a")
        world.add_device("a", "gpu-3", GPU)
        action = about_gpu(action_on(EVICT, Machine("a", pod_uid=world.add_pod("p", "a"))))
        assert carried_out(world.target(), action).stage is Stage.WAITING
        assert [one["spec"]["taint"]["effect"] for one in world.rules()] == ["NoSchedule"]
        assert world.pods() == {"p": True}

    @pytest.mark.parametrize("kind", [ActionKind.DRAIN, ActionKind.REBOOT])
    def test_a_gpu_that_dra_does_not_know_has_no_rule(self, world: KubeWorld, kind: ActionKind) -> None:
        world.add_node("a")
        world.add_device("a", "gpu-3", GPU)
        action = about_gpu(action_on(kind, "a"), "GPU-other")
        tell(world, world.target(), action, ActionState.PROPOSED)
        carried_out(world.target(), action)
        assert world.rules() == []
        assert world.is_cordoned("a") is (kind is ActionKind.DRAIN)
