"""NVSentinel's health event, as its ``health_event.proto`` defines it, and its CloudEvents envelope.

Names of fields and values are those of the published message (package ``datamodels``), so that a reader finds them
there again.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import IntEnum
from typing import Any

ENVELOPE_TYPE = "com.nvidia.nvsentinel.health.v1"
MESSAGE_VERSION = 1

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class RecommendedAction(IntEnum):
    """What NVSentinel is asked to do with a component."""

    NONE = 0
    COMPONENT_RESET = 2
    CONTACT_SUPPORT = 5
    RUN_FIELDDIAG = 6
    RESTART_VM = 15
    RESTART_BM = 24
    REPLACE_VM = 25
    RUN_DCGMEUD = 26
    RESTART_APP = 39
    UNKNOWN = 99


class ProcessingStrategy(IntEnum):
    """What NVSentinel may do with an event. It reads an absent value (0) as ``EXECUTE_REMEDIATION``."""

    UNSPECIFIED = 0
    EXECUTE_REMEDIATION = 1
    STORE_ONLY = 2


@dataclass(frozen=True, slots=True)
class Entity:
    """A part that an event is about.

    Attributes:
        entity_type: kind of the part, e.g. ``GPU``.
        entity_value: its name.
    """

    entity_type: str
    entity_value: str


@dataclass(frozen=True, slots=True)
class BehaviourOverrides:
    """An exception from how NVSentinel treats events of this kind.

    Attributes:
        force: do it although a rule speaks against it.
        skip: leave it out.
    """

    force: bool = False
    skip: bool = False


@dataclass(frozen=True, slots=True)
class HealthEvent:
    """One statement about the health of a node.

    Attributes:
        agent: the program that says it.
        component_class: class of the part, e.g. ``GPU``, ``NIC``, ``Node``.
        check_name: name of the check; a healthy event ends what an unhealthy one of the same check began.
        is_fatal: whether the node must not be used.
        is_healthy: whether the check passes.
        message: one sentence for people.
        recommended_action: what to do.
        error_codes: codes of the error.
        entities: the parts.
        metadata: further fields, as (name, value) in order of names.
        generated_ns: when it was said.
        node_name: the node.
        strategy: what NVSentinel may do with it; never ``UNSPECIFIED``.
        quarantine_overrides: exception for taking the node from the scheduler, None = none.
        drain_overrides: exception for moving pods away, None = none.
    """

    agent: str
    component_class: str
    check_name: str
    is_fatal: bool
    is_healthy: bool
    message: str
    recommended_action: RecommendedAction
    error_codes: tuple[str, ...]
    entities: tuple[Entity, ...]
    metadata: tuple[tuple[str, str], ...]
    generated_ns: int
    node_name: str
    strategy: ProcessingStrategy
    quarantine_overrides: BehaviourOverrides | None = None
    drain_overrides: BehaviourOverrides | None = None


def health_envelope(event: HealthEvent, cluster: str, event_id: str) -> dict[str, Any]:
    """Return the event in the CloudEvents envelope in which NVSentinel's exporter publishes it.

    Args:
        event: the event.
        cluster: name of the cluster.
        event_id: id of the envelope; the same on each retry.
    """
    return {
        "specversion": "1.0",
        "id": event_id,
        "source": f"nvsentinel://{cluster}/healthevents",
        "type": ENVELOPE_TYPE,
        "time": _utc_text(event.generated_ns),
        "datacontenttype": "application/json",
        "data": {"metadata": {"cluster": cluster}, "healthEvent": _event_object(event)},
    }


def _event_object(event: HealthEvent) -> dict[str, Any]:
    """Return the event with the JSON names of its message."""
    found: dict[str, Any] = {
        "version": MESSAGE_VERSION,
        "agent": event.agent,
        "componentClass": event.component_class,
        "checkName": event.check_name,
        "isFatal": event.is_fatal,
        "isHealthy": event.is_healthy,
        "message": event.message,
        "recommendedAction": event.recommended_action.value,
        "errorCode": list(event.error_codes),
        "entitiesImpacted": [
            {"entityType": one.entity_type, "entityValue": one.entity_value} for one in event.entities
        ],
        "metadata": dict(event.metadata),
        "generatedTimestamp": _utc_text(event.generated_ns),
        "nodeName": event.node_name,
        "processingStrategy": event.strategy.value,
    }
    for name, overrides in (
        ("quarantineOverrides", event.quarantine_overrides),
        ("drainOverrides", event.drain_overrides),
    ):
        if overrides is not None:
            found[name] = {"force": overrides.force, "skip": overrides.skip}
    return found


def _utc_text(time_ns: int) -> str:
    """Return a time in RFC 3339 with microseconds."""
    when = _EPOCH + timedelta(microseconds=time_ns // 1000)
    return when.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
