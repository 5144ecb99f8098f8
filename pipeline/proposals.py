"""What becomes of the actions that verdicts propose: proposed, replaced, taken back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from tocsin.pipeline.stores.base import ActionChange, ActionState
from tocsin.schemas.verdicts import Action, ActionKind, Component, Verdict, VerdictState


def proposals_of(verdict: Verdict) -> tuple[Action, ...]:
    """One action a suspect; one for the whole job where nobody is accused; none where nothing is proposed."""
    if verdict.action is ActionKind.NONE:
        return ()
    targets: list[Component | None] = [suspect.component for suspect in verdict.suspects] or [None]
    return tuple(
        Action(
            verdict.verdict_id,
            verdict.update,
            verdict.job,
            verdict.action,
            target,
            verdict.reason,
            f"{verdict.job.cluster}/{verdict.action.value}",
            verdict.detected_ns,
            verdict.expires_ns,
            dry_run=True,
        )
        for target in targets
    )


def changes_of(verdict: Verdict, before: Sequence[Action]) -> Iterator[ActionChange]:
    """What one update changes: a later proposal replaces the earlier, a verdict that closes takes them back.

    Args:
        verdict: the update.
        before: what the verdict proposed until now.
    """
    proposed = proposals_of(verdict)
    state = ActionState.EXPIRED if verdict.state is VerdictState.EXPIRED else ActionState.CANCELLED
    for old in () if proposed else before:
        taken_back = replace(old, verdict_update=verdict.update, deadline_ns=verdict.detected_ns)
        yield ActionChange(taken_back, state, verdict.detected_ns, verdict.reason)
    for action in proposed:
        yield ActionChange(action, ActionState.PROPOSED, verdict.detected_ns)


def proposed_before(update: int, changes: Iterable[ActionChange]) -> tuple[Action, ...]:
    """What stood proposed before an update, from a verdict's rows: the latest earlier update's actions.

    Args:
        update: the update that comes now.
        changes: the latest change of each action of this verdict.
    """
    earlier = [change for change in changes if change.action.verdict_update < update]
    latest = max((change.action.verdict_update for change in earlier), default=-1)
    states = {
        (change.action.kind, change.action.target): change
        for change in earlier
        if change.action.verdict_update == latest
    }
    return tuple(change.action for change in states.values() if change.state is ActionState.PROPOSED)
