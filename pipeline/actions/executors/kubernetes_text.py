"""What is read of Kubernetes' nodes and pods: its JSON objects, as few fields of them as the executor needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from tocsin.schemas.errors import TargetAnswerError
from tocsin.schemas.records import NS_PER_SECOND

MANAGER: Final = "tocsin"
"""Under this name the API server keeps which fields we wrote."""
HOST_LABEL: Final = "kubernetes.io/hostname"
_MIRROR: Final = "kubernetes.io/config.mirror"
_OVER: Final = frozenset({"Succeeded", "Failed"})
_NS_PER_MICROSECOND: Final = 1000


@dataclass(frozen=True, slots=True)
class Taint:
    """One taint of a node.

    Attributes:
        key: its key.
        value: its value, "" for none.
        effect: ``NoSchedule``, ``PreferNoSchedule`` or ``NoExecute``.
        added: when it was added, as the API server writes times, "" where it does not say so.
    """

    key: str
    value: str
    effect: str
    added: str = ""

    def as_json(self) -> dict[str, str]:
        """Return it as the API server takes it."""
        values = {"key": self.key, "value": self.value, "effect": self.effect, "timeAdded": self.added}
        return {name: value for name, value in values.items() if value}


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition of a node.

    Attributes:
        status: ``True``, ``False`` or ``Unknown``.
        reason: one word.
        message: one sentence.
    """

    status: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class KubeNode:
    """A node.

    Attributes:
        name: its name.
        uid: its UID; a node that was deleted and registered anew has another one.
        boot_id: boot id of its kernel, "" until a kubelet reported it.
        version: its ``resourceVersion``: a change that names another one is refused.
        is_cordoned: whether ``spec.unschedulable`` is set.
        is_cordon_ours: whether nobody but us set that, as far as the API server's record of fields says.
        taints: all taints, in their order.
        conditions: all conditions, by type.
        annotations: all annotations.
        host_label: its label ``kubernetes.io/hostname``, "" for none.
    """

    name: str
    uid: str
    boot_id: str
    version: str
    is_cordoned: bool
    is_cordon_ours: bool
    taints: tuple[Taint, ...] = ()
    conditions: Mapping[str, Condition] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    host_label: str = ""


@dataclass(frozen=True, slots=True)
class KubePod:
    """A pod.

    Attributes:
        namespace: its namespace.
        name: its name.
        uid: its UID.
        owner_uid: UID of the controller that made it, "" for none.
        owner_kind: kind of that controller, e.g. ``Job``; "" for none.
        is_over: whether all its containers ended.
        is_mirror: whether the kubelet made it from a file of its own.
        created_ns: when it was created.
        gone_ns: when it should be gone, 0 = nobody deletes it.
    """

    namespace: str
    name: str
    uid: str
    owner_uid: str
    owner_kind: str
    is_over: bool
    is_mirror: bool
    created_ns: int
    gone_ns: int

    @property
    def is_drained(self) -> bool:
        """Whether the pod does not keep its node from being drained. It has ended, or it belongs to the node itself."""
        return self.is_over or self.is_mirror or self.owner_kind == "DaemonSet"


def node_of(found: Mapping[str, Any]) -> KubeNode:
    """Read a node.

    Raises:
        TargetAnswerError: a field is missing or of another form.
    """
    try:
        metadata, spec, status = found["metadata"], found.get("spec", {}), found.get("status", {})
        conditions = {
            str(one["type"]): Condition(str(one["status"]), str(one.get("reason", "")), str(one.get("message", "")))
            for one in status.get("conditions", ())
        }
        return KubeNode(
            name=str(metadata["name"]),
            uid=str(metadata["uid"]),
            boot_id=str(status.get("nodeInfo", {}).get("bootID", "")),
            version=str(metadata["resourceVersion"]),
            is_cordoned=bool(spec.get("unschedulable", False)),
            is_cordon_ours=_is_cordon_ours(metadata.get("managedFields", ())),
            taints=tuple(_taint(one) for one in spec.get("taints", ())),
            conditions=conditions,
            annotations={str(name): str(value) for name, value in metadata.get("annotations", {}).items()},
            host_label=str(metadata.get("labels", {}).get(HOST_LABEL, "")),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise TargetAnswerError(f"a node cannot be read: {type(error).__name__}: {error}") from error


def pod_of(found: Mapping[str, Any]) -> KubePod:
    """Read a pod.

    Raises:
        TargetAnswerError: a field is missing or of another form.
    """
    try:
        metadata = found["metadata"]
        owners = [one for one in metadata.get("ownerReferences", ()) if one.get("controller")]
        owner = owners[0] if owners else {}
        return KubePod(
            namespace=str(metadata["namespace"]),
            name=str(metadata["name"]),
            uid=str(metadata["uid"]),
            owner_uid=str(owner.get("uid", "")),
            owner_kind=str(owner.get("kind", "")),
            is_over=found.get("status", {}).get("phase") in _OVER,
            is_mirror=_MIRROR in metadata.get("annotations", {}),
            created_ns=time_ns_of(str(metadata["creationTimestamp"])),
            gone_ns=time_ns_of(str(metadata["deletionTimestamp"])) if "deletionTimestamp" in metadata else 0,
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise TargetAnswerError(f"a pod cannot be read: {type(error).__name__}: {error}") from error


def time_ns_of(text: str) -> int:
    """Return a time of the API server in Unix ns.

    Raises:
        ValueError: it is no time.
    """
    return int(datetime.fromisoformat(text).timestamp()) * NS_PER_SECOND


def time_of(now_ns: int, *, is_micro: bool = False) -> str:
    """Return a time as the API server writes it.

    Args:
        now_ns: Unix ns.
        is_micro: with six digits after the second, as a lease has them. The API server refuses such a time without.

    Example:
        >>> time_of(1_800_000_000_000_000_000), time_of(1_800_000_000_000_000_000, is_micro=True)
        ('2027-01-15T08:00:00Z', '2027-01-15T08:00:00.000000Z')
    """
    seconds, rest_ns = divmod(now_ns, NS_PER_SECOND)
    text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text}.{rest_ns // _NS_PER_MICROSECOND:06d}Z" if is_micro else f"{text}Z"


def _taint(found: Mapping[str, Any]) -> Taint:
    values = (found.get(name, "") for name in ("key", "value", "effect", "timeAdded"))
    return Taint(*(str(value) for value in values))


def _is_cordon_ours(fields: list[Mapping[str, Any]]) -> bool:
    """Return whether this executor alone set ``spec.unschedulable``; True where nobody is recorded.

    Whoever sets another value takes the field over. Whoever declares the same value owns it, too: it is theirs as well.
    """
    writers = [
        one.get("manager", "")
        for one in fields
        if "f:unschedulable" in one.get("fieldsV1", {}).get("f:spec", {}) and not one.get("subresource")
    ]
    return set(writers) <= {MANAGER}
