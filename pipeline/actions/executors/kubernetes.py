"""Actions on a Kubernetes cluster: drain, evict, and their undoing.

Each look reads the API server anew. The first change of a node is one conditional call: annotation, cordon and taint
together, and only if nobody changed the node since the look. Then its condition says what is suspected. An eviction
takes the job's pods from the machine as far as disruption budgets allow; the job's own controller starts them anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from tocsin.pipeline.actions.executors.kubernetes_cluster import KubernetesCluster
from tocsin.pipeline.actions.executors.kubernetes_devices import DeviceRules
from tocsin.pipeline.actions.executors.kubernetes_marks import (
    CONDITION,
    CORDON,
    TAINT,
    TAINTED,
    Mark,
    given_on,
    is_condition_ours,
    mark_of,
    marks_on,
)
from tocsin.pipeline.actions.executors.kubernetes_pods import evict_one, look_at_pods, pod_left, pods_of_job, with_pod
from tocsin.pipeline.actions.executors.kubernetes_text import KubeNode
from tocsin.pipeline.actions.executors.kubernetes_watch import NodeWatch
from tocsin.pipeline.actions.executors.looks import joined
from tocsin.pipeline.actions.executors.reasons import ExecutorReason
from tocsin.pipeline.actions.executors.target import Look, Stage
from tocsin.schemas.action_events import ActionEvent
from tocsin.schemas.actions import Action, Machine
from tocsin.schemas.errors import TargetError, TargetRefusedError
from tocsin.schemas.verdicts import ActionKind

_LOG = logging.getLogger("tocsin.executor")
_MOST_STEPS: Final = 10
KINDS: Final = frozenset({ActionKind.DRAIN, ActionKind.EVICT})
"""What Kubernetes can do."""
_TAKEN: Final = (ExecutorReason.DRAINED_BY_SOMEBODY, ExecutorReason.HELD_BY_OTHER_ACTION)


@dataclass(frozen=True, slots=True)
class KubernetesTargetConfig:
    """Settings of a Kubernetes cluster as a target.

    Attributes:
        kinds: kinds of actions that may be done here.
        node_of_host: names of nodes by the host's name in verdicts, for those that Kubernetes cannot tell.
    """

    kinds: frozenset[ActionKind] = KINDS
    node_of_host: Mapping[str, str] = field(default_factory=dict)


class KubernetesTarget:
    """A Kubernetes cluster on which actions are done.

    Attributes:
        kinds: kinds of actions that it can do.
    """

    def __init__(
        self, settings: KubernetesTargetConfig, cluster: KubernetesCluster, devices: DeviceRules | None = None
    ) -> None:
        """Ask nothing yet.

        Args:
            settings: settings.
            cluster: asks Kubernetes.
            devices: the rules for single devices, None: there are none.
        """
        self.kinds = settings.kinds
        self._settings = settings
        self._cluster = cluster
        self._devices = devices
        host_of_node = {node: host for host, node in settings.node_of_host.items()}
        self._watch = NodeWatch(cluster, host_of_node)
        self._steps: Mapping[str, Callable[[Action, Machine, KubeNode], None]] = MappingProxyType(
            {
                "hold": self._hold,
                "mark": self._mark,
                "condition": self._condition,
                "evict": self._evict,
                "take_condition": lambda _action, _machine, node: cluster.take_condition(node),
                "give_back": self._give_back,
            }
        )

    def look(self, action: Action) -> Look:
        """See ``TargetSystem.look``."""
        if action.kind not in self.kinds:
            return Look(Stage.REFUSED, ExecutorReason.KIND_NOT_DONE_HERE)
        machines = self._on_nodes(action)
        look_at = self._look_at_drain if action.kind is ActionKind.DRAIN else self._look_at_evict
        nodes = joined([look_at(action, one) for one in machines])
        if nodes.stage is Stage.DONE and self._devices is not None:
            nodes = self._devices.look(action, nodes, self._node_of, self._cluster.now_ns())
        if nodes.stage is not Stage.DONE or action.kind is ActionKind.DRAIN:
            return nodes
        looks = [look_at_pods(self._cluster, action, one, self._owner_of(action, one)) for one in machines]
        due = [one for one in looks if one.step]  # a machine that is held up holds up no other
        pods = due[0] if due else joined(looks)
        return replace(pods, effects=tuple(sorted({*nodes.effects, *pods.effects})))

    def look_back(self, action: Action) -> Look:
        """See ``TargetSystem.look_back``. A pod that was evicted stays evicted: its machine is given back."""
        found = Look(Stage.DONE, ExecutorReason.NOTHING_TO_UNDO)
        for machine in self._on_nodes(action):
            found = self._look_back_at(action, machine)
            if found.stage is not Stage.DONE:
                return found
        if self._devices is not None and self._devices.is_there(action, self._cluster.now_ns()):
            return Look(Stage.BEGUN, ExecutorReason.NEXT_EFFECT_DUE, "take_device")
        return found

    def on_action(self, action: Action) -> None:
        """See ``ShowsProposals.on_action``."""
        self._watch.on_action(action)
        if self._devices is not None:
            self._devices.on_action(action)

    def on_time(self) -> None:
        """See ``ShowsProposals.on_time``."""
        if self._devices is None:
            return
        try:
            self._devices.compare(self._node_of, self._cluster.now_ns())
        except TargetError as error:
            _LOG.warning("proposals are not shown", extra={"reason": error.reason, "error": str(error)})

    def facts(self, cluster: str) -> Sequence[ActionEvent]:
        """See ``TellsFacts.facts``. What an undone action left on a node that somebody uncordoned goes, too."""
        found: Sequence[ActionEvent] = ()
        try:
            found = self._watch.facts(cluster)
            for action in self._watch.take_leftovers():
                self._take_leftovers(action)
        except TargetError as error:
            _LOG.warning("the nodes cannot be read", extra={"reason": error.reason, "error": str(error)})
        return found

    def _take_leftovers(self, action: Action) -> None:
        for _ in range(_MOST_STEPS):
            look = self.look_back(action)
            if not look.step:
                return
            self.make(action, look)

    def make(self, action: Action, look: Look) -> None:
        """See ``TargetSystem.make``."""
        if self._devices is not None and look.step in ("device", "take_device"):
            if look.step == "device":
                self._devices.put(action, self._node_of, self._cluster.now_ns())
            else:
                self._devices.take(action)
            return
        machine = next(one for one in self._on_nodes(action) if one.host == look.host)
        node = self._cluster.node(look.host)
        if node is None:
            raise TargetRefusedError(f"node {look.host} is not there any more", ExecutorReason.NOT_FOUND)
        self._steps[look.step](action, machine, node)

    def _look_at_drain(self, action: Action, machine: Machine) -> Look:
        """Return how far a machine is on its way to take no new work."""
        node = self._cluster.node(machine.host)
        if node is None:
            return _unknown(machine.host)
        held = marks_on(node)
        if action.action_id in held:
            return self._held(node, held[action.action_id])
        found = _another_incarnation(machine, node) or pod_left(self._cluster, machine)
        if found is None and held:
            detail = f"{node.name} is held by {' '.join(held)}"
            found = Look(Stage.REFUSED, ExecutorReason.HELD_BY_OTHER_ACTION, host=node.name, detail=detail)
        return found or _held_by_others(node) or _due("hold", node.name)

    def _look_at_evict(self, action: Action, machine: Machine) -> Look:
        """A machine that others took away already is only marked; the job leaves it all the same."""
        node = self._cluster.node(machine.host)
        is_begun = node is not None and action.action_id in marks_on(node)
        if not machine.pod_uid and "/" not in machine.pod_name and not is_begun:
            detail = f"no pod of job {action.target.job.job_id} is known on {machine.host}"
            return Look(Stage.REFUSED, ExecutorReason.NO_POD, host=machine.host, detail=detail)
        look = self._look_at_drain(action, machine)
        return _due("mark", machine.host) if look.reason in _TAKEN else look

    def _held(self, node: KubeNode, mark: Mark) -> Look:
        """Return the look of a node that holds the action's mark."""
        is_tainted = any((one.key, one.value) == (TAINT, mark.action_id) for one in node.taints)
        effects = tuple(sorted({"mark", *mark.did}))
        if (CORDON in mark.did and not node.is_cordoned) or (TAINTED in mark.did and not is_tainted):
            detail = f"{node.name} takes work again"
            return Look(Stage.FAILED, ExecutorReason.GIVEN_BACK_BY_SOMEBODY, "", node.name, detail, effects)
        if mark.did and CONDITION not in node.conditions:
            return Look(Stage.BEGUN, ExecutorReason.NEXT_EFFECT_DUE, "condition", node.name, effects=effects)
        if mark.did:
            effects = (*effects, "condition")
        is_empty = all(pod.is_drained for pod in self._cluster.pods_on(node.name))
        reason = ExecutorReason.DRAINED if is_empty else ExecutorReason.DRAINING
        return Look(Stage.DONE, reason, host=node.name, effects=effects)

    def _look_back_at(self, action: Action, machine: Machine) -> Look:
        """Return how far a machine is on its way back."""
        node = self._cluster.node(machine.host)
        held = {} if node is None else marks_on(node)
        if node is None or action.action_id not in held:
            return Look(Stage.DONE, ExecutorReason.GIVEN_BACK, host=machine.host)
        if len(held) == 1 and is_condition_ours(node.conditions.get(CONDITION)):
            return Look(Stage.BEGUN, ExecutorReason.NEXT_EFFECT_DUE, "take_condition", node.name)
        return Look(Stage.BEGUN, ExecutorReason.NEXT_EFFECT_DUE, "give_back", node.name)

    def _hold(self, action: Action, machine: Machine, node: KubeNode) -> None:
        if _another_incarnation(machine, node) is not None:
            return  # since the look: the next look says so
        if _held_by_others(node) is not None:
            raise TargetRefusedError(f"{node.name} was cordoned meanwhile", ExecutorReason.DRAINED_BY_SOMEBODY)
        self._put_mark(action, machine, node, (CORDON, TAINTED))

    def _mark(self, action: Action, machine: Machine, node: KubeNode) -> None:
        if _another_incarnation(machine, node) is None:
            self._put_mark(action, machine, node, ())

    def _put_mark(self, action: Action, machine: Machine, node: KubeNode, did: tuple[str, ...]) -> None:
        pods = [one for one in self._cluster.pods_on(node.name) if one.uid == machine.pod_uid]
        owner_uid = pods[0].owner_uid if pods else ""
        hosts = [one.host for one in action.target.machines if one.host != node.name]
        host = next((one for one in hosts if self._node_of(one) == node.name), "")
        self._cluster.put_mark(node, mark_of(action, did, self._cluster.now_ns(), owner_uid, host))

    def _condition(self, action: Action, _machine: Machine, node: KubeNode) -> None:
        self._cluster.put_condition(node, marks_on(node)[action.action_id])

    def _evict(self, action: Action, machine: Machine, _node: KubeNode) -> None:
        pods = pods_of_job(self._cluster, machine, self._owner_of(action, machine), action.issued_ns)
        evict_one(self._cluster, pods)

    def _give_back(self, action: Action, _machine: Machine, node: KubeNode) -> None:
        held = marks_on(node)
        mark = held[action.action_id]
        others = [one for name, one in held.items() if name != action.action_id]
        self._cluster.take_mark(node, mark, given_on(mark, others[0]) if others else None)

    def _owner_of(self, action: Action, machine: Machine) -> str:
        """Return the UID of the controller of the job's pods, as the mark on the node has it."""
        node = self._cluster.node(machine.host)
        mark = None if node is None else marks_on(node).get(action.action_id)
        return "" if mark is None else mark.owner_uid

    def _on_nodes(self, action: Action) -> list[Machine]:
        """Return the machines of an action with the names of nodes in place of hosts, and with UIDs of pods."""
        nodes = [replace(one, host=self._node_of(one.host)) for one in action.target.machines]
        return [with_pod(self._cluster, one, action.issued_ns) for one in nodes]

    def _node_of(self, host: str) -> str:
        """Return the name of the node that a host is; the host's own name where Kubernetes knows no such machine.

        What was written down counts first, then a node of this name, then its label ``kubernetes.io/hostname``.

        Raises:
            TargetRefusedError: several nodes have this label.
        """
        known = self._settings.node_of_host.get(host)
        if known is not None or self._cluster.node(host) is not None:
            return known or host
        short = host.partition(".")[0]
        for name in dict.fromkeys((host, short)):
            found = self._cluster.nodes_of_host(name)
            if len(found) > 1:
                some = ", ".join(found[:3])
                raise TargetRefusedError(f"{host} has {len(found)} nodes ({some}): --node-map can name one of them")
            if found:
                return found[0]
        return short if self._cluster.node(short) is not None else host


def _due(step: str, host: str) -> Look:
    return Look(Stage.UNTOUCHED, ExecutorReason.FIRST_EFFECT_DUE, step, host)


def _unknown(host: str) -> Look:
    return Look(Stage.REFUSED, ExecutorReason.UNKNOWN_NODE, host=host, detail=f"Kubernetes has no node {host}")


def _another_incarnation(machine: Machine, node: KubeNode) -> Look | None:
    """Return the look of a node that is no longer the one of the evidence; what is not known is not compared."""
    if machine.node_uid and machine.node_uid != node.uid:
        detail = f"{node.name} was registered anew: UID {node.uid}"
        return Look(Stage.EXPIRED, ExecutorReason.NODE_REPLACED, host=node.name, detail=detail)
    if machine.boot_id and node.boot_id and machine.boot_id != node.boot_id:
        detail = f"{node.name} booted since: boot id {node.boot_id}"
        return Look(Stage.EXPIRED, ExecutorReason.REBOOTED_SINCE, host=node.name, detail=detail)
    return None


def _held_by_others(node: KubeNode) -> Look | None:
    """Return the look of a node that somebody else cordoned, None where it is free to be taken."""
    if not node.is_cordoned:
        return None
    detail = f"{node.name} is cordoned by somebody else"
    return Look(Stage.REFUSED, ExecutorReason.DRAINED_BY_SOMEBODY, host=node.name, detail=detail)
