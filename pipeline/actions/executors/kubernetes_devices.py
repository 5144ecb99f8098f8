"""DeviceTaintRules: which device of a node is suspected, for clusters whose GPUs are given out by DRA.

While an action about a GPU is only proposed, its rule has the effect ``None``: people see what is suspected, and the
API server changes nothing. When the action has begun, the effect is ``NoSchedule``: the device is given to no new pod.
``NoExecute`` is never used: it would end pods without asking their disruption budgets.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from tocsin.pipeline.actions.executors.kubernetes_api import MERGE, KubernetesApi
from tocsin.pipeline.actions.executors.kubernetes_marks import MARKED, TAINT, mark_of
from tocsin.pipeline.actions.executors.kubernetes_text import MANAGER
from tocsin.pipeline.actions.executors.reasons import ExecutorReason
from tocsin.pipeline.actions.executors.target import Look, Stage
from tocsin.schemas.action_states import FINAL_STATES, OPEN_STATES, ActionState
from tocsin.schemas.actions import Action
from tocsin.schemas.errors import TargetRefusedError
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import ActionKind, ComponentKind

_LOG = logging.getLogger("tocsin.executor")
_GROUP: Final = "/apis/resource.k8s.io"
_VERSIONS: Final = ("v1", "v1beta2")
_NOT_SERVED: Final = (ExecutorReason.NOT_FOUND, ExecutorReason.FORBIDDEN)
_MANAGED: Final = ("fieldManager", MANAGER)
_AGAIN_NS: Final = 600 * NS_PER_SECOND
"""When a cluster that serves no DeviceTaintRules is asked anew."""
_REST_NS: Final = 10 * NS_PER_SECOND
"""Time between two comparisons of rules with proposals."""
_MOST_PROPOSED: Final = 1000
_KINDS: Final = frozenset({ActionKind.DRAIN, ActionKind.EVICT})
SHOWN: Final = frozenset({*OPEN_STATES, ActionState.CLAIMED, ActionState.BLOCKED})
"""States in which an action is shown as a proposal; where it has begun, its rule is there already."""


@dataclass(frozen=True, slots=True)
class Device:
    """A device as DRA names it.

    Attributes:
        driver: its driver.
        pool: the pool, mostly the node's name.
        device: its name in the pool.
    """

    driver: str
    pool: str
    device: str


class DeviceRules:
    """The rules of a cluster; does nothing where the API server has none."""

    def __init__(self, api: KubernetesApi) -> None:
        """Ask nothing yet.

        Args:
            api: calls the API server.
        """
        self._api = api
        self._path = ""
        self._asked_ns = 0
        self._compared_ns = 0
        self._proposed: dict[str, Action] = {}

    def on_action(self, action: Action) -> None:
        """Take one change of an action; its rule is written or taken away by the next ``compare``."""
        known = self._proposed.get(action.action_id, action)
        if _gpu_of(action) and (action.epoch, action.revision) >= (known.epoch, known.revision):
            self._proposed.pop(action.action_id, None)
            self._proposed[action.action_id] = action
            while len(self._proposed) > _MOST_PROPOSED:
                self._proposed.pop(next(iter(self._proposed)))

    def compare(self, node_of: Callable[[str], str], now_ns: int) -> None:
        """Write the rules of what is proposed, and take away those of what nobody will do. At most once in 10 s.

        Rules of actions that have begun, or are not known here, stay.

        Args:
            node_of: returns the name of the node that a host is.
            now_ns: the present time.

        Raises:
            TargetError: the API server is away, or refuses.
        """
        if not self._proposed or now_ns - self._compared_ns < _REST_NS or not self._is_served(now_ns):
            return
        self._compared_ns = now_ns
        there = self._rules()
        for name, action in list(self._proposed.items()):
            if action.state in SHOWN and name not in there:
                device = self._device(action, node_of)
                if device is None:
                    del self._proposed[name]
                else:
                    self._create(action, device, now_ns)
            elif action.state not in SHOWN:
                if action.state in FINAL_STATES and there.get(name) == "None":
                    self._delete(name)
                del self._proposed[name]

    def look(self, action: Action, nodes: Look, node_of: Callable[[str], str], now_ns: int) -> Look:
        """Return the look of an action whose nodes are as they should be: its device may still be given to new pods.

        Args:
            action: the action.
            nodes: the look of its nodes.
            node_of: returns the name of the node that a host is.
            now_ns: the present time.

        Raises:
            TargetError: the API server is away, or refuses.
        """
        if not _gpu_of(action) or not self._is_served(now_ns):
            return nodes
        effect = self._rules().get(action.action_id)
        if effect == "None" or (effect is None and self._device(action, node_of) is not None):
            return Look(Stage.BEGUN, ExecutorReason.NEXT_EFFECT_DUE, "device", effects=nodes.effects)
        return nodes if effect is None else replace(nodes, effects=tuple(sorted({*nodes.effects, "device"})))

    def is_there(self, action: Action, now_ns: int) -> bool:
        """Return whether an action has a rule.

        Raises:
            TargetError: the API server is away, or refuses.
        """
        return bool(_gpu_of(action)) and self._is_served(now_ns) and action.action_id in self._rules()

    def put(self, action: Action, node_of: Callable[[str], str], now_ns: int) -> None:
        """Keep an action's device from new pods.

        Raises:
            TargetError: the API server is away, or refuses.
        """
        if action.action_id in self._rules():
            body = {"spec": {"taint": {"effect": "NoSchedule"}}}
            self._api.call("PATCH", self._rule_path(action.action_id), body, query=[_MANAGED], content=MERGE)
            return
        device = self._device(action, node_of)
        if device is not None:
            self._create(action, device, now_ns, "NoSchedule")

    def take(self, action: Action) -> None:
        """Take an action's rule away.

        Raises:
            TargetError: the API server is away, or refuses.
        """
        self._delete(action.action_id)

    def _is_served(self, now_ns: int) -> bool:
        """Return whether the API server serves DeviceTaintRules to us; a server that did not is asked again later."""
        if not self._path and (not self._asked_ns or now_ns - self._asked_ns >= _AGAIN_NS):
            self._asked_ns = now_ns
            paths = (f"{_GROUP}/{version}/devicetaintrules" for version in _VERSIONS)
            self._path = next((path for path in paths if self._items(path) is not None), "")
            _LOG.info("DeviceTaintRules", extra={"path": self._path or "not served, or not allowed"})
        return bool(self._path)

    def _items(self, path: str, *query: tuple[str, str]) -> Sequence[Mapping[str, Any]] | None:
        """Return a list, None where the API server has no such list, or does not let us read it."""
        try:
            found: Sequence[Mapping[str, Any]] = self._api.call("GET", path, query=query).get("items") or ()
        except TargetRefusedError as error:
            if error.reason in _NOT_SERVED:
                return None
            raise
        return found

    def _rules(self) -> Mapping[str, str]:
        """Return the effect of each rule of ours, by action."""
        found = self._items(self._path, ("labelSelector", MARKED)) or ()
        taints = [one.get("spec", {}).get("taint", {}) for one in found]
        return {str(one.get("value", "")): str(one.get("effect", "")) for one in taints if one.get("key") == TAINT}

    def _device(self, action: Action, node_of: Callable[[str], str]) -> Device | None:
        """Return the device with the GPU's UUID on the action's machines, None where DRA knows none."""
        for host in action.target.hosts:
            chosen = ("fieldSelector", f"spec.nodeName={node_of(host)}")
            found = device_in(self._items(f"{_GROUP}/v1/resourceslices", chosen) or (), _gpu_of(action))
            if found is not None:
                return found
        return None

    def _create(self, action: Action, device: Device, now_ns: int, effect: str = "None") -> None:
        mark = mark_of(action, (), now_ns)
        metadata = {
            "name": _name_of(action.action_id),
            "labels": {MARKED: action.action_id},
            "annotations": {mark.annotation: mark.as_text()},
        }
        selector = {"driver": device.driver, "pool": device.pool, "device": device.device}
        taint = {"key": TAINT, "value": action.action_id, "effect": effect}
        version = f"resource.k8s.io/{self._path.split('/')[3]}"
        spec = {"deviceSelector": selector, "taint": taint}
        body = {"apiVersion": version, "kind": "DeviceTaintRule", "metadata": metadata, "spec": spec}
        self._api.call("POST", self._path, body, query=[_MANAGED])

    def _delete(self, action_id: str) -> None:
        try:
            self._api.call("DELETE", self._rule_path(action_id))
        except TargetRefusedError as error:
            if error.reason != ExecutorReason.NOT_FOUND:
                raise

    def _rule_path(self, action_id: str) -> str:
        return f"{self._path}/{_name_of(action_id)}"


def device_in(slices: Sequence[Mapping[str, Any]], gpu_uuid: str) -> Device | None:
    """Return the device with an attribute ``uuid`` of this value, of whichever driver, in a node's ResourceSlices."""
    for one in slices:
        spec = one.get("spec", {})
        for device in spec.get("devices", ()):
            for name, value in device.get("attributes", {}).items():
                if name.rpartition("/")[2] == "uuid" and value.get("string") == gpu_uuid:
                    return Device(str(spec["driver"]), str(spec["pool"]["name"]), str(device["name"]))
    return None


def _gpu_of(action: Action) -> str:
    """Return the UUID of the GPU that an action is about, "" for any other action."""
    component = action.target.component
    is_gpu = component is not None and component.kind is ComponentKind.GPU and action.kind in _KINDS
    return component.name if component is not None and is_gpu else ""


def _name_of(action_id: str) -> str:
    return f"tocsin-{action_id}"
