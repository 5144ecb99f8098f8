"""States of an action on the bus, and of the rows in which an engine proposes one."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class ActionState(StrEnum):
    """State of an action; ``docs/actions.md`` has the transitions between them."""

    PROPOSED = "proposed"
    """Shown only: nothing executes it. Rows of an engine, and everything during a dry run."""
    WAITING = "waiting"
    """Held by a guard, which its reason names; it is judged anew at each update and tick."""
    WAITING_APPROVAL = "waiting_approval"
    """No guard is against it, and a person has to approve it before its approval deadline."""
    APPROVED = "approved"
    """Executors may claim it."""
    CLAIMED = "claimed"
    """One executor holds the lease and may begin; nothing has been changed yet."""
    STARTED = "started"
    """Its executor said that it changes something."""
    DONE = "done"
    """Carried out. What it took away stays away until it is undone."""
    FAILED = "failed"
    """Its executor could not carry it out."""
    REFUSED = "refused"
    """A guard, a person or the executor decided against it for good."""
    EXPIRED = "expired"
    """Its deadline passed, or its target is no longer the one of the evidence."""
    CANCELLED = "cancelled"
    """Taken back before anything was changed."""
    BLOCKED = "blocked"
    """Held up for long, and paged; it goes on when what holds it up goes away."""
    UNDOING = "undoing"
    """An executor is to take back what this action changed, and nothing else."""
    UNDONE = "undone"
    """What it changed was taken back, or a person took it back."""


FINAL_STATES: Final = frozenset(
    {
        ActionState.FAILED,
        ActionState.REFUSED,
        ActionState.EXPIRED,
        ActionState.CANCELLED,
        ActionState.UNDONE,
    }
)
"""States that an action never leaves, except that late effects of a cancelled or expired one are undone."""
BEGUN_STATES: Final = frozenset({ActionState.STARTED, ActionState.DONE, ActionState.UNDOING})
"""States in which a target may have been changed and not been changed back."""
OPEN_STATES: Final = frozenset(
    {ActionState.PROPOSED, ActionState.WAITING, ActionState.WAITING_APPROVAL, ActionState.APPROVED}
)
"""States in which no executor holds the action."""
