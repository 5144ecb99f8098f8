"""What the executor asks of a Kubernetes cluster, and the changes that it makes there, each in one call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final
from urllib.parse import quote

from tocsin.pipeline.actions.executors.kubernetes_api import MERGE, KubernetesApi
from tocsin.pipeline.actions.executors.kubernetes_marks import (
    CONDITION,
    CORDON,
    TAINT,
    TAINTED,
    Mark,
    condition_of,
    taint_of,
)
from tocsin.pipeline.actions.executors.kubernetes_text import (
    HOST_LABEL,
    MANAGER,
    KubeNode,
    KubePod,
    Taint,
    node_of,
    pod_of,
    time_of,
)
from tocsin.pipeline.actions.executors.reasons import ExecutorReason
from tocsin.schemas.errors import TargetAnswerError, TargetRefusedError

_PAGE: Final = "500"
_MANAGED: Final = ("fieldManager", MANAGER)


class KubernetesCluster:
    """The nodes and pods of a cluster."""

    def __init__(self, api: KubernetesApi, clock_ns: Callable[[], int]) -> None:
        """Ask nothing yet.

        Args:
            api: calls the API server.
            clock_ns: returns the present time.
        """
        self._api = api
        self.now_ns = clock_ns

    def node(self, name: str) -> KubeNode | None:
        """Return a node, None where there is none of this name.

        Raises:
            TargetError: the API server is away, or its answer cannot be read.
        """
        try:
            return node_of(self._api.call("GET", _node_path(name)))
        except TargetRefusedError as error:
            if error.reason == ExecutorReason.NOT_FOUND:
                return None
            raise

    def nodes_of_host(self, host: str) -> tuple[str, ...]:
        """Return the names of the nodes with this ``kubernetes.io/hostname``.

        Raises:
            TargetError: the API server is away, or its answer cannot be read.
        """
        query = [("labelSelector", f"{HOST_LABEL}={host}")]
        return tuple(node_of(one).name for one in _items(self._api.call("GET", "/api/v1/nodes", query=query)))

    def nodes(self) -> Iterator[KubeNode]:
        """All nodes, read in pages.

        Raises:
            TargetError: the API server is away, or its answer cannot be read.
        """
        after = ""
        while True:
            found = self._api.call("GET", "/api/v1/nodes", query=[("limit", _PAGE), ("continue", after)])
            yield from (node_of(one) for one in _items(found))
            after = str(found.get("metadata", {}).get("continue") or "")
            if not after:
                return

    def pods_on(self, node: str) -> tuple[KubePod, ...]:
        """Return all pods of a node, in all namespaces.

        Raises:
            TargetError: the API server is away, or its answer cannot be read.
        """
        query = [("fieldSelector", f"spec.nodeName={node}")]
        return tuple(pod_of(one) for one in _items(self._api.call("GET", "/api/v1/pods", query=query)))

    def put_mark(self, node: KubeNode, mark: Mark) -> None:
        """Write a mark, and with the same call what its ``did`` names: the cordon and the taint.

        Raises:
            TargetAwayError: no answer, or somebody changed the node since it was read.
            TargetRefusedError: it is refused.
        """
        spec: dict[str, object] = {}
        if CORDON in mark.did:
            spec["unschedulable"] = True
        if TAINTED in mark.did:
            taints = [one for one in node.taints if (one.key, one.value) != (TAINT, mark.action_id)]
            spec["taints"] = _taints([*taints, taint_of(mark.action_id, self.now_ns())])
        self._patch(node, {mark.annotation: mark.as_text()}, spec)

    def take_mark(self, node: KubeNode, mark: Mark, heir: Mark | None) -> None:
        """Take a mark away, and with the same call what its ``did`` names, unless it is somebody else's by now.

        Args:
            node: the node, as it was read.
            mark: the mark.
            heir: mark of another action of ours on this node, which holds what the first one changed from now on.

        Raises:
            TargetAwayError: no answer, or somebody changed the node since it was read.
            TargetRefusedError: it is refused.
        """
        annotations: dict[str, str | None] = {mark.annotation: None}
        taints = [one for one in node.taints if (one.key, one.value) != (TAINT, mark.action_id)]
        spec: dict[str, object] = {}
        if heir is not None:
            annotations[heir.annotation] = heir.as_text()
            if TAINTED in mark.did and (TAINT, heir.action_id) not in {(one.key, one.value) for one in taints}:
                taints.append(taint_of(heir.action_id, self.now_ns()))
        elif CORDON in mark.did and node.is_cordoned and node.is_cordon_ours:
            spec["unschedulable"] = None
        if tuple(taints) != node.taints:
            spec["taints"] = _taints(taints)
        self._patch(node, annotations, spec)

    def put_condition(self, node: KubeNode, mark: Mark) -> None:
        """Set the node's condition ``TrainingFaultSuspected``; all other conditions stay.

        Raises:
            TargetAwayError: no answer.
            TargetRefusedError: it is refused.
        """
        found, now = condition_of(mark), time_of(self.now_ns())
        one = {"type": CONDITION, "status": found.status, "reason": found.reason, "message": found.message}
        self._patch_status(node, one | {"lastHeartbeatTime": now, "lastTransitionTime": now})

    def take_condition(self, node: KubeNode) -> None:
        """Take the condition ``TrainingFaultSuspected`` away; all other conditions stay.

        Raises:
            TargetAwayError: no answer.
            TargetRefusedError: it is refused.
        """
        self._patch_status(node, {"type": CONDITION, "$patch": "delete"})

    def evict(self, pod: KubePod, *, is_dry: bool = False) -> None:
        """Ask for the eviction of exactly this pod; one that is gone already is no error.

        Args:
            pod: the pod.
            is_dry: only ask whether it would be allowed now.

        Raises:
            TargetAwayError: no answer, or not now; the error's reason says why.
            TargetRefusedError: it is refused.
        """
        path = f"/api/v1/namespaces/{quote(pod.namespace, safe='')}/pods/{quote(pod.name, safe='')}/eviction"
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            "deleteOptions": {"preconditions": {"uid": pod.uid}},
        }
        query = [("dryRun", "All")] if is_dry else []
        try:
            self._api.call("POST", path, body, query=query)
        except TargetRefusedError as error:
            if error.reason != ExecutorReason.NOT_FOUND:
                raise

    def _patch(self, node: KubeNode, annotations: Mapping[str, str | None], spec: Mapping[str, object]) -> None:
        """Change a node if it is still as it was read."""
        metadata = {"resourceVersion": node.version, "uid": node.uid, "annotations": annotations}
        body = {"metadata": metadata} | ({"spec": spec} if spec else {})
        self._api.call("PATCH", _node_path(node.name), body, query=[_MANAGED], content=MERGE)

    def _patch_status(self, node: KubeNode, condition: Mapping[str, str]) -> None:
        """Change one condition. Kubelets change others all the time, so the version is not compared."""
        body = {"metadata": {"uid": node.uid}, "status": {"conditions": [condition]}}
        self._api.call("PATCH", f"{_node_path(node.name)}/status", body, query=[_MANAGED], content=MERGE)


def _node_path(name: str) -> str:
    return f"/api/v1/nodes/{quote(name, safe='')}"


def _items(found: Mapping[str, object]) -> Sequence[Mapping[str, object]]:
    items = found.get("items")
    if not isinstance(items, list):
        raise TargetAnswerError("a list of Kubernetes has no items")
    return items


def _taints(taints: Sequence[Taint]) -> list[dict[str, str]] | None:
    """Return all taints as the API server takes them; None takes the field away."""
    return [one.as_json() for one in taints] or None
