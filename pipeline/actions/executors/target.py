"""A system on which actions are done, as the core of an executor sees it: look first, then one effect, then look again.

A look changes nothing. It reads the system, not a memory: so an executor that took over from a dead one, or came back
from a pause, finds how far the action is. Whatever an effect leaves in the target holds the action's id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from tocsin.pipeline.actions.executors.job_facts import SignedFact
from tocsin.pipeline.actions.executors.reasons import ExecutorReason
from tocsin.schemas.action_events import ActionEvent
from tocsin.schemas.actions import Action
from tocsin.schemas.verdicts import ActionKind


class Stage(StrEnum):
    """How far an action is in its target."""

    UNTOUCHED = "untouched"
    """Nothing of it is there; the look names its first effect."""
    BEGUN = "begun"
    """Some effect is there; the look names the next one."""
    WAITING = "waiting"
    """Begun, and the system itself has to go on."""
    BLOCKED = "blocked"
    """Something that may go away is against the next effect."""
    DONE = "done"
    """All of it is there; undone, if that was looked for."""
    REFUSED = "refused"
    """Nothing of it is there, and the target does not allow it."""
    EXPIRED = "expired"
    """Nothing of it is there, and the target is no longer the one of the evidence."""
    FAILED = "failed"
    """Some effect is there, and the rest cannot be done."""


@dataclass(frozen=True, slots=True)
class Look:
    """What a look at the target found.

    Attributes:
        stage: how far the action is.
        reason: why.
        step: name of the next effect, "" for none.
        host: machine of the next effect, "" for the job.
        detail: one sentence for people.
        effects: names of the effects that are there.
    """

    stage: Stage
    reason: ExecutorReason
    step: str = ""
    host: str = ""
    detail: str = ""
    effects: tuple[str, ...] = ()


class TargetSystem(Protocol):
    """A system on which actions are done.

    Attributes:
        kinds: kinds of actions that it can do.
    """

    kinds: frozenset[ActionKind]

    def look(self, action: Action) -> Look:
        """Return how far an action is.

        Raises:
            TargetError: the system is away, or its answer cannot be read.
        """
        ...

    def look_back(self, action: Action) -> Look:
        """Return how far the undoing of an action is. ``DONE``: nothing of it is left that is ours.

        Raises:
            TargetError: the system is away, or its answer cannot be read.
        """
        ...

    def make(self, action: Action, look: Look) -> None:
        """Make the one effect that a look named.

        Args:
            action: the action.
            look: what ``look`` or ``look_back`` has just returned.

        Raises:
            TargetAwayError: no answer; the effect may have been made.
            TargetRefusedError: the system refused it.
        """
        ...


@runtime_checkable
class ShowsProposals(Protocol):
    """A system that shows what is only proposed."""

    def on_action(self, action: Action) -> None:
        """Take one change of an action, whatever its state. Nothing is asked or changed by this."""
        ...

    def on_time(self) -> None:
        """Show what was proposed since, and take away what nobody will do. A failure is logged, and tried again."""
        ...


@runtime_checkable
class TellsFacts(Protocol):
    """A system of whose machines the controller is to know something."""

    def facts(self, cluster: str) -> Sequence[ActionEvent]:
        """Return what is to be said now, mostly nothing; called about once a second.

        Args:
            cluster: the cluster's name in verdicts.

        Returns:
            Facts of machines, who keeps work off them, and what people changed. A failure is logged, and tried again.
        """
        ...


@runtime_checkable
class HandsOnFacts(Protocol):
    """A system that signs what it says to the controller itself."""

    def signed_facts(self, now_ns: int) -> Sequence[SignedFact]:
        """Return what is to be handed on now, mostly nothing; called about once a second.

        Args:
            now_ns: the present time.

        Raises:
            TargetError: the system is away, or its answer cannot be read; it is asked again later.
        """
        ...
