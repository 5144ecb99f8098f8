"""What NVSentinel is told about an action: one health event a machine.

Every event sets its processing strategy: NVSentinel reads an absent one as leave to act. ``STORE_ONLY`` is the default,
and then NVSentinel keeps and exports the event and changes nothing in the cluster.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from tocsin.schemas.actions import HARD_KINDS, Action, Machine
from tocsin.schemas.formats.nvsentinel import (
    BehaviourOverrides,
    Entity,
    HealthEvent,
    ProcessingStrategy,
    RecommendedAction,
)
from tocsin.schemas.verdicts import ActionKind, ComponentKind

AGENT: Final = "tocsin"
ACTION_ENTITY: Final = "TOCSIN_ACTION"
"""Type of the entity that stands for the action: a healthy event of one action leaves what another one began."""

RECOMMENDED: Final[Mapping[ActionKind, RecommendedAction]] = MappingProxyType(
    {
        ActionKind.NOTIFY: RecommendedAction.NONE,
        ActionKind.DRAIN: RecommendedAction.NONE,
        ActionKind.EVICT: RecommendedAction.NONE,
        ActionKind.RESET_GPU: RecommendedAction.COMPONENT_RESET,
        ActionKind.REBOOT: RecommendedAction.RESTART_BM,
    }
)
"""What is asked for by each kind that NVSentinel can do. A drain and an eviction ask for no repair: the node is taken
from the scheduler because the event is fatal."""

_CLASSES: Final[Mapping[ComponentKind, str]] = MappingProxyType(
    {ComponentKind.GPU: "GPU", ComponentKind.NIC: "NIC", ComponentKind.RANK: "GPU"}
)
_CHECK_NAMES: Final[Mapping[str, str]] = MappingProxyType(
    {"GPU": "TocsinGpu", "NIC": "TocsinNic", "Node": "TocsinNode"}
)


@dataclass(frozen=True, slots=True)
class EventSettings:
    """How events are written.

    Attributes:
        strategy: what NVSentinel may do with them.
        node_names: names of the nodes in Kubernetes by host, where they differ.
    """

    strategy: ProcessingStrategy = ProcessingStrategy.STORE_ONLY
    node_names: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse a strategy that NVSentinel would read as leave to act.

        Raises:
            ValueError: the strategy is ``UNSPECIFIED``.
        """
        if self.strategy is ProcessingStrategy.UNSPECIFIED:
            raise ValueError("the processing strategy must be STORE_ONLY or EXECUTE_REMEDIATION")


def unhealthy_events(action: Action, settings: EventSettings) -> tuple[HealthEvent, ...]:
    """Return the events that begin an action, one a machine; the same action gives the same events.

    Returns:
        An empty tuple for a kind that NVSentinel cannot do.
    """
    recommended = RECOMMENDED.get(action.kind)
    if recommended is None:
        return ()
    fatal = action.kind in HARD_KINDS
    # The taint keeps new pods away; a drain must not end what runs.
    overrides = BehaviourOverrides(skip=True) if action.kind is ActionKind.DRAIN else None
    message = f"{action.cause}: {action.kind.value} proposed by rule {action.rule}, verdict {action.verdict_id}"
    return tuple(
        _event(action, machine, settings, _Statement(message, fatal, recommended, overrides))
        for machine in action.target.machines
    )


def healthy_events(action: Action, settings: EventSettings) -> tuple[HealthEvent, ...]:
    """Return the events that end what ``unhealthy_events`` began, stamped with the action's last change."""
    if action.kind not in RECOMMENDED:
        return ()
    message = f"{action.kind.value} taken back: {action.reason}"
    return tuple(_event(action, machine, settings, _Statement(message)) for machine in action.target.machines)


@dataclass(frozen=True, slots=True)
class _Statement:
    """What is said of each machine; without a recommended action it is a healthy event."""

    message: str
    is_fatal: bool = False
    recommended: RecommendedAction | None = None
    drain: BehaviourOverrides | None = None


def _event(action: Action, machine: Machine, settings: EventSettings, said: _Statement) -> HealthEvent:
    """Return the event about one machine."""
    is_healthy = said.recommended is None
    component = action.target.component
    kind = "Node" if component is None else _CLASSES.get(component.kind, "Node")
    node = settings.node_names.get(machine.host, machine.host)
    part = Entity(kind, node if component is None or kind == "Node" else component.name)
    return HealthEvent(
        agent=AGENT,
        component_class=kind,
        check_name=_CHECK_NAMES[kind],
        is_fatal=said.is_fatal,
        is_healthy=is_healthy,
        message=said.message,
        recommended_action=said.recommended or RecommendedAction.NONE,
        error_codes=() if is_healthy else (f"TOCSIN_{action.cause.upper()}",),
        entities=(part, Entity(ACTION_ENTITY, action.action_id)),
        metadata=(
            ("tocsin_action_id", action.action_id),
            ("tocsin_job", f"{action.target.job.job_id}/{action.target.job.attempt}"),
            ("tocsin_kind", action.kind.value),
            ("tocsin_verdict_id", action.verdict_id),
        ),
        generated_ns=action.changed_ns if is_healthy else action.issued_ns,
        node_name=node,
        strategy=settings.strategy,
        drain_overrides=said.drain,
    )
