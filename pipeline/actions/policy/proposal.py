"""What proposals say of a verdict, and what events ask for without one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tocsin.schemas.causes import CAUSES
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import JobKey
from tocsin.schemas.verdicts import ActionKind, Component, ComponentKind, Verdict

_REASONS: Final = frozenset(one.value for one in Reason)


@dataclass(frozen=True, slots=True)
class RepeatedCode:
    """A host reported codes of user programs again and again, and no verdict tells of it: diagnostics for people.

    Attributes:
        job: the job of the newest event.
        host: the host.
        kind: what the rule would do about a verdict.
        rule: name of the rule.
        at_ns: time of the newest event.
    """

    job: JobKey
    host: str
    kind: ActionKind
    rule: str
    at_ns: int

    @property
    def target(self) -> Component:
        """The host as a component."""
        return Component(ComponentKind.HOST, self.host)


def signal_of(verdict: Verdict) -> str:
    """Return the class of a verdict's evidence: its cause; where that is not known, what it was seen by.

    Both are words of lists. A text of another program is no class of its own: a flood of one false signal that writes
    each verdict with another text would be as many classes, and no breaker would see it.
    """
    if verdict.cause in CAUSES and verdict.cause != "unknown":
        return verdict.cause
    return f"unknown_{verdict.reason}" if verdict.reason in _REASONS else "unknown"


def hosts_of(verdict: Verdict, component: Component | None) -> tuple[str, ...]:
    """Return the machines that an action concerns: the component itself, or all suspects behind a common one."""
    if component is None:
        return ()
    if component.kind is ComponentKind.HOST:
        return (component.name,)
    if component != verdict.common:
        return ()
    hosts = {one.component.name for one in verdict.suspects if one.component.kind is ComponentKind.HOST}
    return tuple(sorted(hosts))
