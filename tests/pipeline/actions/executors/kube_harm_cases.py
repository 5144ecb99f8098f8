"""What a drain or an evict must not do: on a fake in ``make test``, on a real API server in ``tests/peers_kube``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from tests.pipeline.actions.executors.kube_cases import DRAIN, EVICT, OTHERS, action_on, is_untouched, said
from tests.pipeline.actions.executors.kube_world import KubeWorld
from tests.pipeline.actions.executors.made import SECOND_NS, carried_out
from tocsin.pipeline.actions.executors.kubernetes import KubernetesTarget, KubernetesTargetConfig
from tocsin.pipeline.actions.executors.kubernetes_marks import CONDITION, PREFIX, TAINT, mark_of
from tocsin.pipeline.actions.executors.reasons import ExecutorReason
from tocsin.pipeline.actions.executors.target import Stage
from tocsin.schemas.action_events import CordonOwner, CordonSeen, HumanChange, MachineFacts
from tocsin.schemas.actions import Machine
from tocsin.schemas.errors import TargetError, TargetRefusedError

APPLY = "application/apply-patch+yaml"
HOST_LABEL = "kubernetes.io/hostname"


def condition_in(world: KubeWorld, name: str) -> Mapping[str, Any]:
    """The condition of our type."""
    return next(one for one in world.node(name)["status"]["conditions"] if one["type"] == CONDITION)


class HarmCases:
    """What happens to pods, to other people's work, and to a node that is another one by now."""

    def test_the_taint_ends_no_pod(self, world: KubeWorld) -> None:
        world.add_node("a")
        carried_out(world.target(), action_on(DRAIN, "a"))
        effects = {one["key"]: one["effect"] for one in world.node("a")["spec"]["taints"]}
        assert effects[TAINT] == "NoSchedule"

    def test_pods_that_came_after_the_evidence_and_pods_that_ended_are_not_evicted(self, world: KubeWorld) -> None:
        world.add_node("a")
        action = action_on(EVICT, Machine("a", pod_uid=world.add_pod("p", "a")))
        world.add_pod("over", "a")
        world.finish_pod("over")
        world.add_pod("late", "a")
        old = replace(action, issued_ns=1)  # before each of its controller's other pods
        carried_out(world.target(), old)
        assert world.pods() == {"p": True, "over": False, "late": False}
        carried_out(world.target(), action)
        assert world.pods() == {"p": True, "over": False, "late": True}

    def test_somebody_elses_condition_of_our_type_stays(self, world: KubeWorld) -> None:
        world.add_node("a")
        theirs = {"type": CONDITION, "status": "True", "reason": "Other", "message": "by a problem detector"}
        world.patch("/api/v1/nodes/a/status", {"status": {"conditions": [theirs]}})
        action = action_on(DRAIN, "a")
        carried_out(world.target(), action)
        assert condition_in(world, "a")["message"] == "by a problem detector"
        carried_out(world.target(), action, back=True)
        assert condition_in(world, "a")["message"] == "by a problem detector"

    def test_a_person_who_takes_only_our_taint_away_gave_the_node_back(self, world: KubeWorld) -> None:
        world.add_node("a")
        action = action_on(DRAIN, "a")
        carried_out(world.target(), action)
        left = [one for one in world.node("a")["spec"]["taints"] if one["key"] != TAINT]
        world.patch("/api/v1/nodes/a", {"spec": {"taints": left}})
        assert said(world.target().look(action)) == (Stage.FAILED, ExecutorReason.GIVEN_BACK_BY_SOMEBODY)

    @pytest.mark.parametrize("text", ["{", None])
    def test_a_cordon_that_no_readable_mark_calls_ours_stays(self, world: KubeWorld, text: str | None) -> None:
        world.add_node("a")
        action = action_on(DRAIN, "a")
        carried_out(world.target(), action)
        world.patch("/api/v1/nodes/a", {"metadata": {"annotations": {f"{PREFIX}{action.action_id}": text}}})
        other = world.target().look(action_on(DRAIN, "a", verdict="v2"))
        assert said(other) == (Stage.REFUSED, ExecutorReason.HELD_BY_OTHER_ACTION)
        carried_out(world.target(), action, back=True)
        assert world.is_cordoned("a")
        assert world.taints("a") == OTHERS

    def test_a_cordon_that_somebody_declares_as_well_stays(self, world: KubeWorld) -> None:
        world.add_node("a")
        action = action_on(DRAIN, "a")
        carried_out(world.target(), action)
        declared = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}, "spec": {"unschedulable": True}}
        query = [("fieldManager", "argocd"), ("force", "true")]
        world.api().call("PATCH", "/api/v1/nodes/a", declared, query=query, content=APPLY)
        carried_out(world.target(), action, back=True)
        assert world.is_cordoned("a")
        assert world.taints("a") == OTHERS

    def test_a_cordon_between_look_and_effect_is_not_taken_for_ours(self, world: KubeWorld) -> None:
        world.add_node("a")
        target, action = world.target(), action_on(DRAIN, "a")
        look = target.look(action)
        world.cordon("a")
        with pytest.raises(TargetRefusedError) as caught:
            target.make(action, look)
        assert caught.value.reason == ExecutorReason.DRAINED_BY_SOMEBODY
        assert world.taints("a") == OTHERS

    def test_a_node_that_was_registered_anew_since_the_look_is_left_alone(self, world: KubeWorld) -> None:
        action = action_on(DRAIN, Machine("a", "boot-1", world.add_node("a")))
        target = world.target()
        look = target.look(action)
        world.remove_node("a")
        world.add_node("a", boot_id="boot-2")
        target.make(action, look)
        assert is_untouched(world, "a")
        assert said(target.look(action)) == (Stage.EXPIRED, ExecutorReason.NODE_REPLACED)

    def test_a_node_that_booted_since_the_look_is_left_alone(self, world: KubeWorld) -> None:
        world.add_node("a")
        target, action = world.target(), action_on(DRAIN, Machine("a", "boot-1"))
        look = target.look(action)
        world.boot("a", "boot-2")
        target.make(action, look)
        assert is_untouched(world, "a")
        assert said(target.look(action)) == (Stage.EXPIRED, ExecutorReason.REBOOTED_SINCE)

    def test_a_change_names_the_node_that_was_read(self, world: KubeWorld) -> None:
        world.add_node("a")
        cluster, action = world.cluster(), action_on(DRAIN, "a")
        node = cluster.node("a")
        assert node is not None
        other = replace(node, uid="5a0c3b2e-0000-4000-8000-0000000000ff")
        mark = mark_of(action, ("cordon", "taint"), 0)
        for change in (cluster.put_mark, cluster.put_condition):
            with pytest.raises(TargetError):
                change(other, mark)
        assert is_untouched(world, "a")

    def test_the_eviction_of_a_pod_that_is_gone_is_no_refusal(self, world: KubeWorld) -> None:
        world.add_node("a")
        world.add_pod("p", "a")
        (pod,) = world.cluster().pods_on("a")
        world.remove_pod("p")
        world.cluster().evict(pod)


class NameCases:
    """Nodes whose name is not the machine's."""

    def test_a_label_that_several_nodes_have_names_none(self, world: KubeWorld) -> None:
        for name in ("a", "b"):
            world.add_node(name, labels={HOST_LABEL: "gpu1"})
        with pytest.raises(TargetRefusedError, match="2 nodes"):
            world.target().look(action_on(DRAIN, "gpu1"))

    def test_what_was_written_down_wins_and_is_used_both_ways(self, world: KubeWorld) -> None:
        for name in ("a", "b"):
            world.add_node(name)
        target = KubernetesTarget(KubernetesTargetConfig(node_of_host={"a": "b"}), world.cluster())
        carried_out(target, action_on(DRAIN, "a"))
        assert (world.is_cordoned("a"), world.is_cordoned("b")) == (False, True)
        told = [one for one in target.facts("ci") if isinstance(one, CordonSeen)]
        assert ("a", CordonOwner.TOCSIN) in [(one.host, one.owner) for one in told]

    def test_facts_of_a_node_that_was_written_down_are_of_that_machine_alone(self, world: KubeWorld) -> None:
        world.add_node("b", labels={HOST_LABEL: "c"})
        target = KubernetesTarget(KubernetesTargetConfig(node_of_host={"a": "b"}), world.cluster())
        assert {one.host for one in target.facts("ci")} == {"a"}  # type: ignore[union-attr]

    def test_facts_of_a_node_are_told_of_its_name_and_its_label(self, world: KubeWorld) -> None:
        world.add_node("b", labels={HOST_LABEL: "c"})
        assert {one.host for one in world.target().facts("ci")} == {"b", "c"}  # type: ignore[union-attr]

    def test_the_part_before_the_dot_is_tried(self, world: KubeWorld) -> None:
        world.add_node("a")
        carried_out(world.target(), action_on(DRAIN, "a.site.example"))
        assert world.is_cordoned("a")

    @pytest.mark.parametrize("host", ["gpu1", "gpu1.site.example"])
    def test_a_persons_uncordon_is_told_of_the_machine_by_its_name_in_verdicts(
        self, world: KubeWorld, host: str
    ) -> None:
        uid = world.add_node("ip-10-0-0-1", labels={HOST_LABEL: "gpu1"})
        carried_out(world.target(), action_on(DRAIN, host))
        target = world.target()  # another process
        told = target.facts("ci")
        assert (host, uid) in [(one.host, one.node_uid) for one in told if isinstance(one, MachineFacts)]
        assert (host, CordonOwner.TOCSIN) in [(one.host, one.owner) for one in told if isinstance(one, CordonSeen)]
        world.cordon("ip-10-0-0-1", is_on=False)
        world.clock_ns[0] += 31 * SECOND_NS
        assert host in [one.host for one in target.facts("ci") if isinstance(one, HumanChange)]

    def test_facts_of_all_pages_of_nodes_are_told(self, world: KubeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tocsin.pipeline.actions.executors.kubernetes_cluster._PAGE", "2")
        names = {f"n{index}" for index in range(5)}
        for name in sorted(names):
            world.add_node(name)
        told = world.target().facts("ci")
        assert {one.host for one in told if isinstance(one, CordonSeen)} == names
