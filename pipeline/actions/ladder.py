"""The protocol between the policy, which says what to do about a verdict, and the controller, which says whether.

The controller asks the ladder at each update of a verdict, at each final result of an action, and once a tick. It
passes every proposal through its guards; wherever they disagree, the guard wins. A ladder repeats itself: the same
proposal for a renewed verdict means the same action.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from tocsin.schemas.action_events import CheckResult
from tocsin.schemas.actions import Action, Parameter
from tocsin.schemas.records import Event
from tocsin.schemas.verdicts import ActionKind, Component, Verdict


@dataclass(frozen=True, slots=True)
class Proposal:
    """What the ladder would do about a verdict, if no guard is against it.

    Attributes:
        verdict: the update of the verdict that it rests on.
        kind: what to do.
        component: what it is about: a host, a GPU, a leaf; None for the whole job.
        hosts: the machines that it concerns, each once, in order; empty for a matter of the job alone.
        rule: name of the policy's rule.
        signal: class of the evidence, e.g. ``xid_79`` or ``process_stopped``; budgets and breakers count by it.
        needs_approval: whether a person has to approve it, whatever the guards say.
        deadline_seconds: for how long it may be begun after this update, None = until the verdict expires.
        parameters: settings of the kind, by name: the step of a rollback, the groups of a replay.
        note: one sentence for people, "" for none.
    """

    verdict: Verdict
    kind: ActionKind
    component: Component | None
    hosts: tuple[str, ...]
    rule: str
    signal: str
    needs_approval: bool = False
    deadline_seconds: float | None = None
    parameters: tuple[Parameter, ...] = ()
    note: str = ""


class Ladder(Protocol):
    """The decision ladder: what to do about a verdict. It reads no clock and keeps bounded state."""

    def on_verdict(self, verdict: Verdict, now_ns: int) -> Sequence[Proposal]:
        """Return what is to be done after one update of a verdict, open or closed; empty for nothing.

        Args:
            verdict: the update.
            now_ns: the present time; the verdict's own may be long past.
        """
        ...

    def on_action(self, action: Action, now_ns: int) -> Sequence[Proposal]:
        """Return what is to be done next after an action was done, failed, was refused or expired.

        Example: after stop-time checks that all passed, another attempt; after that, a rollback.
        """
        ...

    def on_check(self, check: CheckResult, now_ns: int) -> Sequence[Proposal]:
        """Return what is to be done after a check ended."""
        ...

    def on_hardware(self, event: Event, now_ns: int) -> Sequence[Proposal]:
        """Return what is to be done after a host reported something of its hardware; no event takes a machine."""
        ...

    def on_time(self, now_ns: int) -> Sequence[Proposal]:
        """Return what is to be done because time passed."""
        ...

    def snapshot(self) -> dict[str, bytes]:
        """Return the state as named parts, canonical: equal states give equal bytes."""
        ...

    def restore(self, parts: Mapping[str, bytes]) -> None:
        """Replace the state by parts that ``snapshot`` returned.

        Raises:
            SnapshotError: a part is missing, damaged or of another version.
        """
        ...
