"""The pods of a job on one machine: whether they are those of the evidence, and how far their eviction is."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tocsin.pipeline.actions.executors.kubernetes_cluster import KubernetesCluster
from tocsin.pipeline.actions.executors.kubernetes_text import KubePod
from tocsin.pipeline.actions.executors.reasons import ExecutorReason
from tocsin.pipeline.actions.executors.target import Look, Stage
from tocsin.schemas.actions import Action, Machine
from tocsin.schemas.errors import TargetAwayError
from tocsin.schemas.records import NS_PER_SECOND

_LATE_NS: Final = 60 * NS_PER_SECOND
"""How long after its time to end a pod may still be there."""
_ASKED_AGAIN: Final = (ExecutorReason.DISRUPTION_BUDGET, ExecutorReason.TARGET_BUSY)


def with_pod(cluster: KubernetesCluster, machine: Machine, before_ns: int) -> Machine:
    """Return a machine with the UID of the job's pod, where only its name was told and one such pod is on it.

    Args:
        cluster: asks Kubernetes.
        machine: the machine, by the name of its node.
        before_ns: a pod that was created later is another one of that name.

    Raises:
        TargetError: the API server is away, or its answer cannot be read.
    """
    if machine.pod_uid or not machine.pod_name:
        return machine
    namespace, _, name = machine.pod_name.rpartition("/")
    found = [
        pod.uid
        for pod in cluster.pods_on(machine.host)
        if pod.name == name and namespace in ("", pod.namespace) and pod.created_ns <= before_ns
    ]
    return replace(machine, pod_uid=found[0]) if len(found) == 1 else machine


def pod_left(cluster: KubernetesCluster, machine: Machine) -> Look | None:
    """Return the look of a machine that the job's pod left, None where it is there or not known.

    A pod that is known by its name counts with its namespace only: a process that was not told its pod's name takes
    its host name for it, which may be the node's.

    Raises:
        TargetError: the API server is away, or its answer cannot be read.
    """
    if not machine.pod_uid and "/" not in machine.pod_name:
        return None
    for pod in cluster.pods_on(machine.host):
        if pod.uid != machine.pod_uid:
            continue
        if not pod.is_over:
            return None
        detail = f"pod {pod.namespace}/{pod.name} is over"
        return Look(Stage.EXPIRED, ExecutorReason.JOB_OVER, host=machine.host, detail=detail)
    detail = f"pod {machine.pod_uid or machine.pod_name} is not on {machine.host} now"
    return Look(Stage.EXPIRED, ExecutorReason.HOST_LEFT_JOB, host=machine.host, detail=detail)


def pods_of_job(cluster: KubernetesCluster, machine: Machine, owner_uid: str, before_ns: int) -> list[KubePod]:
    """Return the job's pods that are on a machine and not over: that of the evidence, and others of its controller.

    Args:
        cluster: asks Kubernetes.
        machine: the machine.
        owner_uid: UID of the controller of the job's pods, "" for none.
        before_ns: other pods of the controller that were created later are left out: they came after the evidence.

    Raises:
        TargetError: the API server is away, or its answer cannot be read.
    """
    return [
        pod
        for pod in cluster.pods_on(machine.host)
        if not pod.is_over
        and (pod.uid == machine.pod_uid or (owner_uid and pod.owner_uid == owner_uid and pod.created_ns <= before_ns))
    ]


def evict_one(cluster: KubernetesCluster, pods: list[KubePod]) -> None:
    """Evict the first pod whose eviction is allowed.

    Raises:
        TargetAwayError: none is; the last refusal.
        TargetRefusedError: it is refused.
    """
    refusal: TargetAwayError | None = None
    for pod in pods:
        if pod.gone_ns:
            continue
        try:
            cluster.evict(pod)
        except TargetAwayError as error:
            if error.reason not in _ASKED_AGAIN:
                raise
            refusal = error
        else:
            return
    if refusal is not None:
        raise refusal


def look_at_pods(cluster: KubernetesCluster, action: Action, machine: Machine, owner_uid: str) -> Look:
    """Return how far the eviction of a job's pods from a machine is.

    A pod whose eviction is not allowed now holds up only itself: the others are evicted first.

    Raises:
        TargetError: the API server is away, or its answer cannot be read.
    """
    held_up: Look | None = None
    leaving: Look | None = None
    for pod in pods_of_job(cluster, machine, owner_uid, action.issued_ns):
        name = f"{pod.namespace}/{pod.name}"
        if pod.gone_ns:
            is_late = cluster.now_ns() > pod.gone_ns + _LATE_NS
            stage = Stage.BLOCKED if is_late else Stage.WAITING
            reason = ExecutorReason.POD_DOES_NOT_LEAVE if is_late else ExecutorReason.PODS_LEAVE
            leaving = Look(stage, reason, host=machine.host, detail=f"pod {name} is being ended", effects=("evict",))
            continue
        try:
            cluster.evict(pod, is_dry=True)
        except TargetAwayError as error:
            if error.reason not in _ASKED_AGAIN:
                raise
            held_up = Look(Stage.BLOCKED, ExecutorReason(error.reason), host=machine.host, detail=f"{name}: {error}")
        else:
            return Look(Stage.BEGUN, ExecutorReason.NEXT_EFFECT_DUE, "evict", machine.host, detail=name)
    done = Look(Stage.DONE, ExecutorReason.EVICTED, host=machine.host, effects=("evict",))
    return held_up or leaving or done
