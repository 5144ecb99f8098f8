"""Changes of actions as rows of the table ``actions``."""

from __future__ import annotations

from tocsin.pipeline.stores.base import ActionChange
from tocsin.schemas.actions import Action
from tocsin.schemas.verdicts import Advice


def change_of(action: Action, *, is_dry_run: bool) -> ActionChange:
    """Return one change of an action as a row; all changes of an action have one row, of which the latest stays.

    The row's ``update_number`` is 0: an action outlives the update of the verdict that asked for it.
    """
    target = action.target
    advice = Advice(
        verdict_id=action.verdict_id,
        verdict_update=0,
        job=target.job,
        kind=action.kind,
        target=target.component,
        reason=action.rule,
        budget=action.budget_class,
        issued_ns=action.issued_ns,
        deadline_ns=action.deadline_ns,
        dry_run=is_dry_run,
    )
    who = [f"by {action.actor}" if action.actor else "", f"executor {action.holder}" if action.holder else ""]
    said = ": ".join(one for one in (action.reason, action.detail) if one)
    detail = ", ".join(one for one in (said, *who) if one)
    return ActionChange(advice, action.state, action.changed_ns, detail)
