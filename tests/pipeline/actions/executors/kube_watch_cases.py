"""What the executor tells of nodes: on a fake in ``make test``, on a real API server in ``tests/peers_kube``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tests.pipeline.actions.executors.kube_cases import DRAIN, action_on, is_untouched
from tests.pipeline.actions.executors.kube_world import KubeWorld
from tests.pipeline.actions.executors.made import SECOND_NS, carried_out
from tocsin.pipeline.actions.executors.kubernetes import KubernetesTarget
from tocsin.schemas.action_events import ActionEvent, CordonOwner, CordonSeen, HumanChange, MachineFacts
from tocsin.schemas.action_states import ActionState


def told_later(world: KubeWorld, target: KubernetesTarget, seconds: int = 31) -> Sequence[ActionEvent]:
    world.clock_ns[0] += seconds * SECOND_NS
    return target.facts("ci")


def owners(told: Sequence[ActionEvent]) -> dict[str, CordonOwner]:
    return {one.host: one.owner for one in told if isinstance(one, CordonSeen)}


class WatchCases:
    """Facts of nodes."""

    def test_uids_and_who_cordoned_are_told_once_and_again_when_they_change(self, world: KubeWorld) -> None:
        uids = {name: world.add_node(name) for name in ("a", "b")}
        world.cordon("b")
        target = world.target()
        told = target.facts("ci")
        assert {one.host: one.node_uid for one in told if isinstance(one, MachineFacts)} == uids
        assert owners(told) == {"a": CordonOwner.NOBODY, "b": CordonOwner.OTHER}
        assert told_later(world, target) == []
        carried_out(target, action_on(DRAIN, "a"))
        world.cordon("b", is_on=False)
        assert owners(told_later(world, target)) == {"a": CordonOwner.TOCSIN, "b": CordonOwner.NOBODY}
        assert len(told_later(world, target, 301)) == 4

    def test_a_persons_uncordon_is_told_once_and_what_we_left_goes_when_the_action_is_undone(
        self, world: KubeWorld
    ) -> None:
        world.add_node("a")
        target, action = world.target(), action_on(DRAIN, "a")
        carried_out(target, action)
        target.facts("ci")
        world.cordon("a", is_on=False)
        told = told_later(world, target)
        assert [one.host for one in told if isinstance(one, HumanChange)] == ["a"]
        assert not any(isinstance(one, HumanChange) for one in told_later(world, target))
        assert not is_untouched(world, "a")
        target.on_action(replace(action, state=ActionState.UNDONE))
        told_later(world, target)
        assert is_untouched(world, "a")

    def test_a_cordon_that_somebody_made_over_our_mark_is_told_as_theirs(self, world: KubeWorld) -> None:
        world.add_node("a")
        target = world.target()
        carried_out(target, action_on(DRAIN, "a"))
        assert owners(target.facts("ci")) == {"a": CordonOwner.TOCSIN}
        world.cordon("a", is_on=False)
        world.cordon("a")
        assert owners(told_later(world, target)) == {"a": CordonOwner.OTHER}

    def test_what_we_left_stays_when_the_action_was_not_undone_after_all(self, world: KubeWorld) -> None:
        world.add_node("a")
        target, action = world.target(), action_on(DRAIN, "a")
        carried_out(target, action)
        target.on_action(replace(action, state=ActionState.UNDONE))
        target.on_action(replace(action, state=ActionState.DONE))
        told_later(world, target)
        assert world.is_cordoned("a")
        assert not is_untouched(world, "a")

    def test_an_undone_action_whose_mark_another_one_inherited_gives_nothing_back(self, world: KubeWorld) -> None:
        world.add_node("a")
        target, action = world.target(), action_on(DRAIN, "a")
        carried_out(target, action)
        target.on_action(replace(action_on(DRAIN, "a", verdict="v2"), state=ActionState.UNDONE))
        told_later(world, target)
        assert world.is_cordoned("a")
