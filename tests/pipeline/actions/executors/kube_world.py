"""A Kubernetes cluster for the tests, real or fake, as its administrators and its kubelets change it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from kubernetes import client

from tocsin.pipeline.actions.executors.kubernetes import KubernetesTarget, KubernetesTargetConfig
from tocsin.pipeline.actions.executors.kubernetes_api import MERGE, KubernetesApi
from tocsin.pipeline.actions.executors.kubernetes_cluster import KubernetesCluster
from tocsin.pipeline.actions.executors.kubernetes_devices import DeviceRules
from tocsin.pipeline.actions.executors.kubernetes_marks import TAINT
from tocsin.schemas.errors import TargetError

ADMIN, EXECUTOR, NOBODY = "admin-token", "executor-token", "nobody-token"
JOB_UID = "5a0c3b2e-0000-4000-8000-00000000000a"
_POD = {"containers": [{"name": "train", "image": "train"}]}


def api_of(url: str, token: str) -> KubernetesApi:
    """Calls an API server as the holder of a token."""
    settings = client.Configuration(host=url)
    settings.verify_ssl = False
    settings.api_key = {"authorization": f"Bearer {token}"}
    return KubernetesApi(settings, 10)


@dataclass
class KubeWorld:
    """What administrators and kubelets do.

    Attributes:
        url: address of the API server.
        clock_ns: the executor's clock.
        is_real: whether it is a real API server.
    """

    url: str
    clock_ns: list[int] = field(default_factory=lambda: [0])
    is_real: bool = True
    budgets: str = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
    rule_path: str = "/apis/resource.k8s.io/v1beta2/devicetaintrules"
    _made: list[str] = field(default_factory=list)
    _apis: dict[str, KubernetesApi] = field(default_factory=dict)

    def api(self, token: str = ADMIN) -> KubernetesApi:
        if token not in self._apis:
            self._apis[token] = api_of(self.url, token)
        return self._apis[token]

    def cluster(self, token: str = EXECUTOR) -> KubernetesCluster:
        """What the executor asks."""
        return KubernetesCluster(self.api(token), lambda: self.clock_ns[0])

    def target(self, token: str = EXECUTOR) -> KubernetesTarget:
        """The executor's target."""
        return KubernetesTarget(KubernetesTargetConfig(), self.cluster(token), DeviceRules(self.api(token)))

    def add_node(self, name: str, *, boot_id: str = "boot-1", labels: Mapping[str, str] | None = None) -> str:
        """Register a node with somebody else's taint and condition; return its UID."""
        spec = {"taints": [{"key": "gpu", "value": "yes", "effect": "NoSchedule"}]}
        body = {"kind": "Node", "metadata": {"name": name, "labels": labels or {}}, "spec": spec}
        self.api().call("POST", "/api/v1/nodes", body)
        self._made.append(f"/api/v1/nodes/{name}")
        condition = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "is posting"}
        self.patch(f"/api/v1/nodes/{name}/status", {"status": {"conditions": [condition], "nodeInfo": _info(boot_id)}})
        self.patch(f"/api/v1/nodes/{name}", {"spec": spec})  # admission added a taint of its own
        return str(self.node(name)["metadata"]["uid"])

    def add_pod(self, name: str, node: str, *, owner: str = JOB_UID, namespace: str = "default") -> str:
        """A pod of a job that runs on a node; return its UID."""
        owners = [{"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": owner, "controller": True}]
        body = {
            "kind": "Pod",
            "metadata": {"name": name, "labels": {"app": name}, "ownerReferences": owners if owner else []},
            "spec": {**_POD, "nodeName": node},
        }
        path = f"/api/v1/namespaces/{namespace}/pods"
        made = self.api().call("POST", path, body)
        self._made.append(f"{path}/{name}")
        ready = {"type": "Ready", "status": "True"}  # of a pod that is not ready most budgets let go
        self.patch(f"{path}/{name}/status", {"status": {"phase": "Running", "conditions": [ready]}})
        return str(made["metadata"]["uid"])

    def add_budget(self, name: str, allowed_count: int, app: str = "") -> None:
        """A budget for the pod of the same name, whose status no controller computes here."""
        body = {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": name},
            "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": app or name}}},
        }
        self.api().call("POST", self.budgets, body)
        self._made.append(f"{self.budgets}/{name}")
        self.allow(name, allowed_count)

    def allow(self, name: str, count: int, observed: int = 1) -> None:
        """What the controller of budgets would compute; ``observed`` 0: it has not yet."""
        status = {
            "disruptionsAllowed": count,
            "currentHealthy": 1,
            "desiredHealthy": 1 - min(count, 1),
            "expectedPods": 1,
            "observedGeneration": observed,
        }
        self.patch(f"{self.budgets}/{name}/status", {"status": status})

    def finish_pod(self, name: str, phase: str = "Succeeded") -> None:
        self.patch(f"/api/v1/namespaces/default/pods/{name}/status", {"status": {"phase": phase}})

    def remove_pod(self, name: str) -> None:
        """The kubelet says that a pod is gone."""
        body = {"gracePeriodSeconds": 0}
        self.api().call("DELETE", f"/api/v1/namespaces/default/pods/{name}", body)

    def remove_node(self, name: str) -> None:
        self.api().call("DELETE", f"/api/v1/nodes/{name}")

    def node(self, name: str) -> Mapping[str, Any]:
        return self.api().call("GET", f"/api/v1/nodes/{name}")

    def pods(self) -> dict[str, bool]:
        """Name of each pod -> whether it is being ended."""
        items = self.api().call("GET", "/api/v1/pods")["items"]
        return {one["metadata"]["name"]: "deletionTimestamp" in one["metadata"] for one in items}

    def patch(self, path: str, body: Mapping[str, object], manager: str = "kubectl") -> None:
        self.api().call("PATCH", path, body, query=[("fieldManager", manager)], content=MERGE)

    def cordon(self, name: str, *, is_on: bool = True) -> None:
        """Somebody cordons a node, or takes that back."""
        self.patch(f"/api/v1/nodes/{name}", {"spec": {"unschedulable": True if is_on else None}})

    def boot(self, name: str, boot_id: str) -> None:
        """A node booted."""
        self.patch(f"/api/v1/nodes/{name}/status", {"status": {"nodeInfo": _info(boot_id)}})

    def taints(self, name: str) -> list[tuple[str, str]]:
        """Key and value of each taint."""
        return [(one["key"], one.get("value", "")) for one in self.node(name)["spec"].get("taints", ())]

    def conditions(self, name: str) -> dict[str, str]:
        """Type -> status."""
        return {one["type"]: one["status"] for one in self.node(name)["status"].get("conditions", ())}

    def is_cordoned(self, name: str) -> bool:
        return bool(self.node(name)["spec"].get("unschedulable", False))

    def annotations(self, name: str) -> dict[str, str]:
        return dict(self.node(name)["metadata"].get("annotations", {}))

    def add_device(self, node: str, device: str, gpu_uuid: str) -> None:
        """What a driver of DRA says of a node's GPU."""
        spec = {
            "driver": "gpu.example.com",
            "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
            "nodeName": node,
            "devices": [{"name": device, "attributes": {"uuid": {"string": gpu_uuid}}}],
        }
        body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": f"{node}-gpu"}}
        self.api().call("POST", "/apis/resource.k8s.io/v1/resourceslices", body | {"spec": spec})
        self._made.append(f"/apis/resource.k8s.io/v1/resourceslices/{node}-gpu")

    def add_rule(self, name: str) -> None:
        """Somebody else's rule."""
        spec = {"deviceSelector": {"driver": "x"}, "taint": {"key": "who", "value": "ann", "effect": "NoSchedule"}}
        body = {"apiVersion": "resource.k8s.io/v1beta2", "kind": "DeviceTaintRule", "metadata": {"name": name}}
        self.api().call("POST", self.rule_path, body | {"spec": spec})
        self._made.append(f"{self.rule_path}/{name}")

    def rules(self) -> list[Mapping[str, Any]]:
        """Our DeviceTaintRules."""
        items = self.api().call("GET", self.rule_path)["items"]
        return [one for one in items if one["spec"]["taint"]["key"] == TAINT]

    def made(self, path: str) -> None:
        """Something else is to be taken away at the end."""
        self._made.append(path)

    def clear(self) -> None:
        """Take away all that was made."""
        self._made += [f"{self.rule_path}/{one['metadata']['name']}" for one in self.rules()]
        for path in reversed(self._made):
            body = {"gracePeriodSeconds": 0} if "/pods/" in path else None
            with suppress(TargetError):
                self.api().call("DELETE", path, body)
        self._made.clear()


def _info(boot_id: str) -> dict[str, str]:
    names: Sequence[str] = (
        "machineID",
        "systemUUID",
        "kernelVersion",
        "osImage",
        "containerRuntimeVersion",
        "kubeletVersion",
        "kubeProxyVersion",
        "operatingSystem",
        "architecture",
    )
    return {**dict.fromkeys(names, ""), "bootID": boot_id}
