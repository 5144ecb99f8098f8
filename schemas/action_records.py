"""Changes of actions as records among the events of their job.

The controller of actions writes them where the operators of jobs run elsewhere. So each change reaches a job in one
order with all else. They change no verdict; only what accounts for a job's time listens to them.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from tocsin.schemas import events
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.actions import Action
from tocsin.schemas.job_key import JobKey
from tocsin.schemas.records import Event, EventSource, Severity
from tocsin.schemas.verdicts import ActionKind

RESTARTING: Final = frozenset(
    {ActionKind.RESTART, ActionKind.DRAIN, ActionKind.EVICT, ActionKind.REPLAY, ActionKind.ROLLBACK}
)
"""Kinds of actions after which a job starts again."""
SIGNATURE: Final = "signature"
"""Key of the payload with the controller's signature over the rest of the record."""


class ToldChange(NamedTuple):
    """One change of an action.

    Attributes:
        job: the attempt that the action is about.
        verdict_id: the verdict that asked for it.
        kind: its kind.
        state: its new state.
        changed_ns: time of the change.
    """

    job: JobKey
    verdict_id: str
    kind: ActionKind
    state: ActionState
    changed_ns: int


def action_event(action: Action, ts_ns: int) -> Event:
    """Return the record, not signed yet, that tells a job of a change of an action.

    Args:
        action: the action after the change.
        ts_ns: the record's stamp.
    """
    payload = {
        "id": action.action_id,
        "verdict_id": action.verdict_id,
        "kind": action.kind.value,
        "state": action.state.value,
        "changed_ns": action.changed_ns,
    }
    name, host = events.ACTION_CHANGE, events.CONTROL_HOST
    return Event(action.target.job, host, ts_ns, -1, EventSource.JOB, name, Severity.INFO, payload)


def told_change(event: Event) -> ToldChange | None:
    """Return what an event tells of an action; None if it is another event, or says something unknown."""
    if event.name != events.ACTION_CHANGE or event.host != events.CONTROL_HOST:
        return None
    payload = event.payload
    try:
        kind, state = ActionKind(str(payload.get("kind"))), ActionState(str(payload.get("state")))
    except ValueError:
        return None  # of a newer controller
    changed_ns = payload.get("changed_ns")
    if not isinstance(changed_ns, int):
        return None
    return ToldChange(event.job, str(payload.get("verdict_id") or ""), kind, state, changed_ns)
