"""The states of an action and the transitions between them, in one table; ``docs/actions.md`` shows the same table.

The controller obeys it: a change that the table does not have is a defect and raises.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tocsin.pipeline.actions.reasons import ActionReason as R
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.errors import FieldError

PROPOSED, WAITING, APPROVED = ActionState.PROPOSED, ActionState.WAITING, ActionState.APPROVED
WAITING_APPROVAL, CLAIMED, STARTED = ActionState.WAITING_APPROVAL, ActionState.CLAIMED, ActionState.STARTED
DONE, FAILED, REFUSED, EXPIRED = ActionState.DONE, ActionState.FAILED, ActionState.REFUSED, ActionState.EXPIRED
CANCELLED, BLOCKED, UNDOING, UNDONE = (
    ActionState.CANCELLED,
    ActionState.BLOCKED,
    ActionState.UNDOING,
    ActionState.UNDONE,
)
_OPEN: Final = (PROPOSED, WAITING, WAITING_APPROVAL, APPROVED)
_UNBEGUN: Final = (*_OPEN, CLAIMED, BLOCKED)
_LAPSED: Final = (EXPIRED, CANCELLED)
"""States that an action leaves if it was never held, ended with its verdict, and the verdict holds again."""


class ActionTrigger(StrEnum):
    """Who causes a transition."""

    GUARDS = "guards"
    EXECUTOR = "executor"
    PERSON = "person"
    VERDICT = "verdict"
    TIME = "time"
    FACTS = "facts"


@dataclass(frozen=True, slots=True)
class ActionTransition:
    """One kind of change in an action's life.

    Attributes:
        before: states from which it leads; empty: the action is new.
        after: state to which it leads.
        reasons: reasons that it may carry.
        trigger: who causes it.
        meaning: when it happens, as one sentence.
    """

    before: tuple[ActionState, ...]
    after: ActionState
    reasons: tuple[R, ...]
    trigger: ActionTrigger
    meaning: str


_T, _By = ActionTransition, ActionTrigger

ASKING: Final = (R.POLICY_ASKS, R.KIND_ASKS, R.JOB_RUNS, R.CLASS_UNPROVEN, R.LEAF_ASKS)
"""Reasons for which a person has to approve an action."""
HOLDING: Final = (
    R.NOT_HARD_ENOUGH,
    R.VERDICT_OPEN,
    R.EVIDENCE_GROWS,
    R.ENGINE_SILENT,
    R.PLACES_CHANGED,
    R.MODEL_CHANGED,
    R.UNDER_MAINTENANCE,
    R.VETOED,
    R.NO_EXECUTOR,
    R.NO_SPARE,
    R.BREAKER_OPEN,
    R.BUDGET_JOB,
    R.BUDGET_LEAF,
    R.BUDGET_MINIPOD,
    R.BUDGET_FLEET,
    R.BUDGET_CONCURRENT,
    R.BUDGET_OF_OTHERS,
    R.HOST_BUSY,
    R.JOB_BUSY,
    R.ALREADY_OUT,
    R.CORDONED_BY_OTHER,
    R.COVERED_BY_LEAF,
)
"""Reasons for which a guard holds an action."""
EXPIRING: Final = (R.DEADLINE, R.VERDICT_STALE, R.REBOOTED, R.ATTEMPT_OVER, R.HOST_NOT_IN_ATTEMPT, R.NOT_TO_CHECK)
"""Reasons for which an action that was not begun expires."""
RELEASING: Final = (R.CHECK_PASSED, R.QUIET_STEPS, R.FEEDBACK_FALSE, R.CANCELLED_BY_PERSON, R.EFFECT_AFTER_END)
"""Reasons for which what was taken away comes back; there are no others.

Where other actions keep the machines out then, it comes back with the last of them (``OTHERS_LET_GO``).
"""

TRANSITIONS: Final = (
    _T((), PROPOSED, (R.DRY_RUN,), _By.GUARDS, "Nothing but the dry run is against it."),
    _T((), WAITING, HOLDING, _By.GUARDS, "A guard holds it."),
    _T((), WAITING_APPROVAL, ASKING, _By.GUARDS, "A person has to approve it."),
    _T((), APPROVED, (R.ALLOWED,), _By.GUARDS, "No guard is against it."),
    _T((), EXPIRED, EXPIRING, _By.GUARDS, "The verdict is old, or the target is not the same any more."),
    _T((), REFUSED, (R.DETECTOR_WRONG, R.TOO_MANY), _By.GUARDS, "A guard is against it for good."),
    _T((), DONE, tuple(R), _By.GUARDS, "A page: it is done when it is written."),
    _T((DONE,), DONE, tuple(R), _By.GUARDS, "A page again, for another reason."),
    _T(_LAPSED, PROPOSED, (R.DRY_RUN,), _By.VERDICT, "Its verdict holds again; nothing had been begun."),
    _T(_LAPSED, WAITING, HOLDING, _By.VERDICT, "Its verdict holds again, and a guard holds it."),
    _T(_LAPSED, WAITING_APPROVAL, ASKING, _By.VERDICT, "Its verdict holds again."),
    _T(_LAPSED, APPROVED, (R.ALLOWED,), _By.VERDICT, "Its verdict holds again."),
    _T((*_OPEN, BLOCKED), PROPOSED, (R.DRY_RUN,), _By.GUARDS, "It is judged anew: only the dry run is left."),
    _T((*_OPEN, BLOCKED), WAITING, HOLDING, _By.GUARDS, "It is judged anew: a guard holds it."),
    _T((*_OPEN, BLOCKED), WAITING_APPROVAL, ASKING, _By.GUARDS, "It is judged anew: a person has to approve it."),
    _T(
        (*_OPEN, BLOCKED),
        APPROVED,
        (R.ALLOWED, R.APPROVED_BY_PERSON),
        _By.GUARDS,
        "It is judged anew: no guard is against it, and a person approved it where one has to.",
    ),
    _T((*_OPEN, CLAIMED, BLOCKED), EXPIRED, EXPIRING, _By.TIME, "It must not be begun any more."),
    _T((*_OPEN, BLOCKED), REFUSED, (R.DETECTOR_WRONG,), _By.GUARDS, "It is judged anew: refused for good."),
    _T((WAITING_APPROVAL,), BLOCKED, (R.NO_APPROVER,), _By.TIME, "Its approval deadline passed; paged."),
    _T((WAITING,), BLOCKED, (R.HELD_FOR_LONG,), _By.TIME, "A guard holds it for long; paged."),
    _T((APPROVED,), CLAIMED, (R.CLAIMED,), _By.EXECUTOR, "The first claim wins."),
    _T((CLAIMED,), CLAIMED, (R.CLAIMED, R.TAKEN_OVER), _By.EXECUTOR, "The lease is prolonged or passes on."),
    _T((CLAIMED,), APPROVED, (R.LEASE_OVER,), _By.TIME, "Its executor fell silent before it began."),
    _T((CLAIMED,), STARTED, (R.STARTED,), _By.EXECUTOR, "Its executor begins."),
    _T((STARTED,), STARTED, (R.STARTED, R.TAKEN_OVER), _By.EXECUTOR, "The lease is prolonged or passes on."),
    _T((*_UNBEGUN, STARTED), DONE, (R.DONE,), _By.EXECUTOR, "Carried out."),
    _T((CLAIMED, STARTED, BLOCKED), FAILED, (R.FAILED,), _By.EXECUTOR, "It could not be carried out."),
    _T((CLAIMED, STARTED, BLOCKED), REFUSED, (R.REFUSED_BY_EXECUTOR,), _By.EXECUTOR, "The executor may not do that."),
    _T((CLAIMED, STARTED, BLOCKED), EXPIRED, (R.TARGET_CHANGED,), _By.EXECUTOR, "The target is another one now."),
    _T((CLAIMED, STARTED), BLOCKED, (R.BLOCKED_BY_TARGET,), _By.TIME, "The target holds it up for long; paged."),
    _T((BLOCKED,), STARTED, (R.STARTED,), _By.EXECUTOR, "What held it up is gone."),
    _T(_UNBEGUN, REFUSED, (R.DENIED,), _By.PERSON, "A person denied it before it was begun."),
    _T(_UNBEGUN, CANCELLED, (R.CANCELLED_BY_PERSON,), _By.PERSON, "A person took it back before it was begun."),
    _T(_UNBEGUN, CANCELLED, (R.FEEDBACK_FALSE, R.RETURNED_BY_PERSON), _By.PERSON, "A person said that it is wrong."),
    _T(_UNBEGUN, CANCELLED, (R.CHECK_PASSED,), _By.FACTS, "The machine passed a check under load."),
    _T(
        _UNBEGUN,
        CANCELLED,
        (R.VERDICT_CLOSED, R.VERDICT_CHANGED),
        _By.VERDICT,
        "The verdict was closed or asks for something else before it was begun.",
    ),
    _T((STARTED, DONE, BLOCKED, FAILED), UNDOING, RELEASING, _By.FACTS, "What it took away is to come back."),
    _T(
        (CANCELLED, EXPIRED, REFUSED),
        UNDOING,
        (R.EFFECT_AFTER_END,),
        _By.EXECUTOR,
        "It was carried out although it had ended.",
    ),
    _T(
        (STARTED, DONE, BLOCKED, FAILED),
        UNDONE,
        (R.HELD_BY_OTHER_ACTION,),
        _By.FACTS,
        "Its machines may come back, and others keep them out.",
    ),
    _T((UNDONE,), UNDOING, (R.OTHERS_LET_GO,), _By.FACTS, "What else kept its machines out is gone."),
    _T(
        (STARTED, DONE, BLOCKED, UNDOING),
        UNDONE,
        (R.RETURNED_BY_PERSON,),
        _By.PERSON,
        "A person gave the machine back.",
    ),
    _T((UNDOING,), UNDOING, (*RELEASING, R.CLAIMED, R.TAKEN_OVER), _By.EXECUTOR, "An executor undoes it."),
    _T((UNDOING,), UNDONE, (R.UNDONE,), _By.EXECUTOR, "What it changed was taken back."),
    _T((UNDOING,), UNDOING, (R.UNDO_FAILED,), _By.EXECUTOR, "It could not be undone; paged."),
)
"""All transitions, in the order of an action's life."""

_ALLOWED: Final = {
    (before, one.after, reason) for one in TRANSITIONS for before in (one.before or (None,)) for reason in one.reasons
}


def check_transition(before: ActionState | None, after: ActionState, reason: str) -> None:
    """Check one change of an action against the table; a change of the deadline alone is none.

    Args:
        before: its state before, None: it is new.
        after: its state after.
        reason: named reason of the change.

    Raises:
        FieldError: the table does not have it.
    """
    if (before, after, reason) not in _ALLOWED:
        was = "new" if before is None else before.value
        raise FieldError("action.state", f"{was} -> {after.value} ({reason})", "a transition of the table")
