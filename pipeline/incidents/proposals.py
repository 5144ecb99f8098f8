"""What becomes of the actions that verdicts propose: proposed, replaced, taken back; and hard ones that wait first.

A verdict's ``action`` is advice, the same live, replayed and after a restart. Whether its row in ``actions`` is
proposed at once is a setting: what an engine says in its first minutes, or shortly after somebody moved a machine's
ranks or changed a model, should take no machine away. Only an engine knows that: ``tocsin sink`` proposes at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tocsin.pipeline.job.witnesses import HARD
from tocsin.pipeline.stores.base import ActionChange, ActionState
from tocsin.pipeline.stores.rows import Row, action_change, action_row
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND, JobKey
from tocsin.schemas.verdicts import Action, ActionKind, Component, Verdict, VerdictState


@dataclass(frozen=True, slots=True)
class HoldRules:
    """For how long a hard action waits; 0: not at all.

    Attributes:
        after_start_seconds: after an engine began without a snapshot.
        after_change_seconds: after the machine's ranks were moved, or the job's detectors given another model.
    """

    after_start_seconds: int = 300
    after_change_seconds: int = 600


ChangesOf = Callable[[JobKey, str], Sequence[tuple[int, Reason]]]
"""(job, machine) -> when something of them was changed the last time, and what."""


class ProposalBook:
    """What one engine proposes now, and what waits."""

    def __init__(self, rules: HoldRules, started_ns: int, changes_of_host: ChangesOf) -> None:
        """Start without proposals.

        Args:
            rules: how long hard actions wait.
            started_ns: when the engine began; 0: it goes on from a snapshot.
            changes_of_host: what was changed of a machine.
        """
        self._rules = rules
        self._changes_of_host = changes_of_host
        self.started_ns = started_ns
        self._proposed: dict[str, tuple[Action, ...]] = {}
        self._waiting: dict[str, list[tuple[Action, int]]] = {}
        """Verdict -> its actions that wait, each with when it is looked at again."""

    def take(self, verdict: Verdict) -> Iterator[ActionChange]:
        """What one update changes."""
        self._waiting.pop(verdict.verdict_id, None)
        before = self._proposed.pop(verdict.verdict_id, ())
        for change in changes_of(verdict, before):
            yield self._held(change) if change.state is ActionState.PROPOSED else change
        if standing := standing_after(verdict, before):
            self._proposed[verdict.verdict_id] = standing

    def due(self, now_ns: int) -> list[ActionChange]:
        """What has waited for long enough, unless something was changed meanwhile: then it waits on."""
        found = []
        for verdict_id, waiting in list(self._waiting.items()):
            ripe = [action for action, until_ns in waiting if until_ns <= now_ns]
            left = [entry for entry in waiting if entry[1] > now_ns]
            self._waiting[verdict_id] = left
            found += [self._held(ActionChange(action, ActionState.PROPOSED, now_ns)) for action in ripe]
            if not self._waiting[verdict_id]:
                del self._waiting[verdict_id]
        return found

    def clear(self) -> None:
        """Know of no proposals: the state is lost."""
        self._proposed.clear()
        self._waiting.clear()

    def to_state(self) -> dict[str, Any]:
        """JSON-able state; when it began is part of it, so that a start that goes on is none."""
        return {
            "started_ns": self.started_ns,
            "proposed": [[name, [_row_of(one) for one in actions]] for name, actions in self._proposed.items()],
            "waiting": [
                [name, [[_row_of(action), until_ns] for action, until_ns in entries]]
                for name, entries in self._waiting.items()
            ],
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take back what ``to_state`` gave."""
        self.started_ns = state["started_ns"]
        self._proposed = {name: tuple(action_change(row).action for row in rows) for name, rows in state["proposed"]}
        self._waiting = {
            name: [(action_change(row).action, until_ns) for row, until_ns in entries]
            for name, entries in state["waiting"]
        }

    def _held(self, change: ActionChange) -> ActionChange:
        """The same, or that it waits."""
        action = change.action
        until_ns, reason = self._hold(action)
        if until_ns <= change.changed_ns:
            return change
        self._waiting.setdefault(action.verdict_id, []).append((action, until_ns))
        return ActionChange(action, ActionState.WAITING, change.changed_ns, reason)

    def _hold(self, action: Action) -> tuple[int, str]:
        """Until when an action waits, and for what."""
        if action.kind not in HARD:
            return 0, ""
        host = "" if action.target is None else action.target.name
        changed = self._changes_of_host(action.job, host)
        changed_ns = self._rules.after_change_seconds * NS_PER_SECOND
        ends = [(at_ns + changed_ns, reason.value) for at_ns, reason in changed]
        if self.started_ns:
            young_ns = self.started_ns + self._rules.after_start_seconds * NS_PER_SECOND
            ends.append((young_ns, Reason.ENGINE_YOUNG.value))
        return max(ends, default=(0, ""))


_OPEN = (ActionState.WAITING, ActionState.PROPOSED)


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


def standing_after(verdict: Verdict, before: Sequence[Action]) -> tuple[Action, ...]:
    """What an update leaves proposed: what stood before and is proposed again is the same action, with a new deadline.

    Args:
        verdict: the update.
        before: what stood proposed until now.
    """
    known = {_name_of(old): old for old in reversed(before)}
    return tuple(
        action
        if (old := known.get(_name_of(action))) is None
        else replace(action, verdict_update=old.verdict_update, issued_ns=old.issued_ns)
        for action in proposals_of(verdict)
    )


def changes_of(verdict: Verdict, before: Sequence[Action]) -> Iterator[ActionChange]:
    """What one update changes: what it does not propose any more is taken back, in the row that proposed it.

    So of each action one row says what became of it. Two updates may be of the same second: the update's number is
    added to the time of a change, so that the later one stays.

    Args:
        verdict: the update.
        before: what stood proposed until now.
    """
    state = ActionState.EXPIRED if verdict.state is VerdictState.EXPIRED else ActionState.CANCELLED
    standing = standing_after(verdict, before)
    rows = {(_name_of(action), action.verdict_update) for action in standing}
    for old in before:
        if (_name_of(old), old.verdict_update) not in rows:
            taken_back = replace(old, deadline_ns=verdict.detected_ns)
            yield ActionChange(taken_back, state, _changed_ns(verdict), verdict.reason)
    for action in standing:
        yield ActionChange(action, ActionState.PROPOSED, _changed_ns(verdict))


def proposed_before(verdict: Verdict, changes: Iterable[ActionChange]) -> tuple[Action, ...]:
    """What stood proposed, or waited, before an update, by a verdict's rows, also where later updates changed them.

    Args:
        verdict: the update that comes now, perhaps again.
        changes: the latest change of each action of this verdict.
    """
    return tuple(
        change.action
        for change in sorted(changes, key=lambda one: one.action.verdict_update)
        if change.action.verdict_update < verdict.update
        and (change.state in _OPEN or change.changed_ns >= _changed_ns(verdict))
    )


def _name_of(action: Action) -> tuple[ActionKind, Component | None]:
    return action.kind, action.target


def _changed_ns(verdict: Verdict) -> int:
    return verdict.detected_ns + verdict.update


def _row_of(action: Action) -> Row:
    return action_row(ActionChange(action, ActionState.PROPOSED, 0))
