"""What a guard sees, what it may say, and its protocol."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from tocsin.pipeline.actions.book import ActionBook
from tocsin.pipeline.actions.config import ControllerConfig
from tocsin.pipeline.actions.facts import FactBook
from tocsin.pipeline.actions.reasons import ActionReason
from tocsin.pipeline.actions.tracked import TrackedAction
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.actions import Action


class GuardOutcome(StrEnum):
    """What a guard says against an action; the worst of the chain counts."""

    EXPIRE = "expire"
    """It must not be begun any more."""
    REFUSE = "refuse"
    """It must never be begun."""
    HOLD = "hold"
    """Not now; it is judged anew at the next update or tick."""
    ASK = "ask"
    """Only with a person's approval."""
    SHOW = "show"
    """It is shown and not executed: a dry run."""

    @property
    def state(self) -> ActionState:
        """State of an action of which a guard says this."""
        return _STATES[self]


_STATES = {
    GuardOutcome.EXPIRE: ActionState.EXPIRED,
    GuardOutcome.REFUSE: ActionState.REFUSED,
    GuardOutcome.HOLD: ActionState.WAITING,
    GuardOutcome.ASK: ActionState.WAITING_APPROVAL,
    GuardOutcome.SHOW: ActionState.PROPOSED,
}


@dataclass(frozen=True, slots=True)
class Ruling:
    """What a guard says against an action.

    Attributes:
        outcome: how much it is against it.
        reason: why.
        detail: one sentence with numbers, for people; "" for none.
    """

    outcome: GuardOutcome
    reason: ActionReason
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ActionCase:
    """One action that is judged, with all that is known.

    Attributes:
        tracked: the action.
        now_ns: the present time.
        book: all actions, this one included unless it is new.
        facts: machines, jobs, executors, engines.
        config: settings.
        cluster: cluster of the action.
    """

    tracked: TrackedAction
    now_ns: int
    book: ActionBook
    facts: FactBook
    config: ControllerConfig
    cluster: str = field(init=False)

    def __post_init__(self) -> None:
        """Read the cluster once: nearly every guard asks for it."""
        object.__setattr__(self, "cluster", self.tracked.action.target.job.cluster)

    @property
    def action(self) -> Action:
        """The action that is judged."""
        return self.tracked.action

    def others_on(self, host: str) -> list[TrackedAction]:
        """Return the other hard actions that have a machine, will have it soon or ask for its whole leaf."""
        mine = self.action.action_id
        return [one for one in self.book.in_the_way(self.cluster, host) if one.action.action_id != mine]


class Guard(Protocol):
    """One reason for which an action may have to wait."""

    @property
    def name(self) -> str:
        """Short name for logs and metrics."""
        ...

    def judge(self, case: ActionCase) -> Ruling | None:
        """Return what is against an action at this time, None for nothing."""
        ...
