"""Rows of the actions that verdicts propose: proposed, replaced, cancelled, expired, or waiting if hard.

A verdict's ``action`` is advice: the same live, replayed and after a restart. Whether its row in ``actions`` is
proposed at once is a setting of the engine. Hard actions can be made to wait in an engine's first minutes, and after a
machine's ranks moved or a model changed. All actions of a verdict wait while planned work covers it. Only an engine
knows that: ``tocsin sink`` proposes at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tocsin.pipeline.incidents.maintenance import MaintenanceBook, Scope, scope_of
from tocsin.pipeline.stores.base import ActionChange
from tocsin.pipeline.stores.rows import Row, action_change, action_row
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.actions import HARD_KINDS
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND, JobKey
from tocsin.schemas.verdicts import ActionKind, Advice, Component, ComponentKind, Verdict, VerdictState


@dataclass(frozen=True, slots=True)
class HoldRules:
    """Times for which hard actions wait before they are proposed; 0: they do not wait.

    Attributes:
        after_start_seconds: after the engine started without a snapshot.
        after_change_seconds: after the machine's ranks were moved, or the job's detectors got another model.
    """

    after_start_seconds: int = 300
    after_change_seconds: int = 600


ChangesOf = Callable[[JobKey, str], Sequence[tuple[int, Reason]]]
"""Function (job, machine) -> the latest changes of either, each as (time in ns, reason)."""


class ProposalBook:
    """The proposed and waiting actions of one engine.

    Attributes:
        started_ns: when the engine started; 0: it continues from a snapshot.
        maintenance: the planned work under which actions wait, None: there is none.
        is_replaced: whether a controller of actions writes rows in place of these.
    """

    def __init__(self, rules: HoldRules, started_ns: int, changes_of_host: ChangesOf) -> None:
        """Start without proposals.

        Args:
            rules: how long hard actions wait.
            started_ns: when the engine started; 0: it continues from a snapshot.
            changes_of_host: returns the latest changes of a job and machine.
        """
        self._rules = rules
        self._changes_of_host = changes_of_host
        self.started_ns = started_ns
        self.maintenance: MaintenanceBook | None = None
        self.is_replaced = False
        self._active: frozenset[str] | None = None
        """The planned work that went on at the last look, None: nobody looked."""
        self.clear()

    def is_settled(self, now_ns: int) -> bool:
        """Return whether the engine went on from a snapshot, or has judged for the time after a start."""
        return now_ns - self.started_ns >= self._rules.after_start_seconds * NS_PER_SECOND

    def take(self, verdict: Verdict) -> Iterator[ActionChange]:
        """Yield the action rows that one update of a verdict changes; they may be set to wait."""
        name = verdict.verdict_id
        self._waiting.pop(name, None)
        before, changed_ns = self._proposed.pop(name, ()), self._changed_ns.pop(name, 0)
        planned = self._planned(scope_of(verdict), verdict.detected_ns)
        for change in changes_of(verdict, before):
            # a row that changed at a later tick keeps the later of two changes: this one has to be it
            later = replace(change, changed_ns=max(change.changed_ns, changed_ns + 1))
            yield self._held(later, planned) if change.state is ActionState.PROPOSED else later
        self._forget(name)
        if standing := standing_after(verdict, before):
            self._proposed[name] = standing
            if changed_ns:
                self._changed_ns[name] = changed_ns + 1
            if planned:
                self._under_work.add(name)
            if verdict.common is not None:
                self._commons[name] = verdict.common

    def due(self, now_ns: int) -> list[ActionChange]:
        """Return the rows of actions that change without an update of their verdict.

        They are those whose waiting time is over: proposed, or waiting again after a new change. Where planned work
        begins, all actions of the verdicts that it covers wait; where it ends, they are proposed.
        """
        found = [*self._due_of_work(now_ns), *self._due_of_rules(now_ns)]
        for change in found:
            self._changed_ns[change.action.verdict_id] = now_ns
        return found

    def _due_of_work(self, now_ns: int) -> list[ActionChange]:
        """Return the rows of actions that planned work holds from now on, or holds no more."""
        active = frozenset() if self.maintenance is None else self.maintenance.active(now_ns)
        if active == self._active:
            return []
        self._active = active
        found: list[ActionChange] = []
        for name, actions in self._proposed.items():
            targets = tuple(action.target for action in actions if action.target is not None)
            planned = self._planned(Scope(actions[0].job, targets, self._commons.get(name)), now_ns)
            if bool(planned) == (name in self._under_work):
                continue
            self._waiting.pop(name, None)
            (self._under_work.add if planned else self._under_work.discard)(name)
            found += [self._held(ActionChange(action, ActionState.PROPOSED, now_ns), planned) for action in actions]
        return found

    def _due_of_rules(self, now_ns: int) -> list[ActionChange]:
        """Return the rows of actions whose waiting time is over."""
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
        """Forget all proposed and waiting actions, because the engine's state was lost."""
        self._proposed: dict[str, tuple[Advice, ...]] = {}
        self._waiting: dict[str, list[tuple[Advice, int]]] = {}
        """Verdict id -> its waiting actions, each with the time until which it waits."""
        self._under_work: set[str] = set()
        """Ids of the verdicts whose actions wait for the end of planned work."""
        self._commons: dict[str, Component] = {}
        self._changed_ns: dict[str, int] = {}
        """Verdict id -> when its rows were last changed without an update of it."""
        self._active = None

    def to_state(self) -> dict[str, Any]:
        """Return the state as JSON-able values.

        It contains the start time, so that a restored engine is not taken as new.
        """
        return {
            "started_ns": self.started_ns,
            "proposed": [[name, [_row_of(one) for one in actions]] for name, actions in self._proposed.items()],
            "waiting": [
                [name, [[_row_of(action), until_ns] for action, until_ns in entries]]
                for name, entries in self._waiting.items()
            ],
            "under_work": sorted(self._under_work),
            "commons": {name: [one.kind.value, one.name] for name, one in self._commons.items()},
            "changed_ns": self._changed_ns,
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Replace the state by what ``to_state`` returned."""
        self.started_ns = state["started_ns"]
        self._proposed = {name: tuple(action_change(row).action for row in rows) for name, rows in state["proposed"]}
        self._waiting = {
            name: [(action_change(row).action, until_ns) for row, until_ns in entries]
            for name, entries in state["waiting"]
        }
        # .get: a snapshot of before there was planned work has none of these
        self._under_work = set(state.get("under_work", ()))
        commons = state.get("commons", {})
        self._commons = {name: Component(ComponentKind(kind), one) for name, (kind, one) in commons.items()}
        self._changed_ns = dict(state.get("changed_ns", {}))
        self._active = None

    def _planned(self, scope: Scope, now_ns: int) -> str:
        """Return the named reason for which planned work holds the actions of a verdict, "" = it does not."""
        return "" if self.maintenance is None else self.maintenance.hold(scope, now_ns)

    def _forget(self, name: str) -> None:
        """Forget what was noted beside a verdict's proposals."""
        self._under_work.discard(name)
        self._commons.pop(name, None)

    def _held(self, change: ActionChange, planned: str = "") -> ActionChange:
        """Return the change itself, or, if its action must wait, a change to state ``waiting``.

        Args:
            change: a proposal.
            planned: reason for which planned work holds it, "" = it does not.
        """
        action = change.action
        if planned:
            return ActionChange(action, ActionState.WAITING, change.changed_ns, planned)
        until_ns, reason = self._hold(action)
        if until_ns <= change.changed_ns:
            return change
        self._waiting.setdefault(action.verdict_id, []).append((action, until_ns))
        return ActionChange(action, ActionState.WAITING, change.changed_ns, reason)

    def _hold(self, action: Advice) -> tuple[int, str]:
        """Return until when an action must wait (ns) and the reason; (0, "") if it need not."""
        if action.kind not in HARD_KINDS:
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
"""States of actions that are neither cancelled nor expired."""


def proposals_of(verdict: Verdict) -> tuple[Advice, ...]:
    """Return the actions that a verdict proposes: one per suspect, or one for the whole job without suspects.

    A verdict whose action is ``none`` proposes nothing.
    """
    if verdict.action is ActionKind.NONE:
        return ()
    targets: list[Component | None] = [suspect.component for suspect in verdict.suspects] or [None]
    return tuple(
        Advice(
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


def standing_after(verdict: Verdict, before: Sequence[Advice]) -> tuple[Advice, ...]:
    """Return the actions that are proposed after a verdict's update.

    An action that was proposed before keeps its row and issue time, with a new deadline.

    Args:
        verdict: the update.
        before: the actions proposed before it.
    """
    known = {_name_of(old): old for old in reversed(before)}
    return tuple(
        action
        if (old := known.get(_name_of(action))) is None
        else replace(action, verdict_update=old.verdict_update, issued_ns=old.issued_ns)
        for action in proposals_of(verdict)
    )


def changes_of(verdict: Verdict, before: Sequence[Advice]) -> Iterator[ActionChange]:
    """Yield the changes of action rows that one update of a verdict makes.

    An action that is no longer proposed is cancelled or expired in the row that proposed it. Two updates may fall in
    one second, so the update's number is added to the time of change: the later one wins.

    Args:
        verdict: the update.
        before: the actions proposed before it.
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


def proposed_before(verdict: Verdict, changes: Iterable[ActionChange]) -> tuple[Advice, ...]:
    """Return the actions that were proposed or waiting before an update, from a verdict's stored rows.

    Changes that later updates made to these rows are ignored, so that an update can be processed twice.

    Args:
        verdict: the update to be processed, perhaps for the second time.
        changes: the latest change of each action of this verdict.
    """
    return tuple(
        change.action
        for change in sorted(changes, key=lambda one: one.action.verdict_update)
        if change.action.verdict_update < verdict.update
        and (change.state in _OPEN or change.changed_ns >= _changed_ns(verdict))
    )


def _name_of(action: Advice) -> tuple[ActionKind, Component | None]:
    """Return the action's kind and target, which identify it within its verdict."""
    return action.kind, action.target


def _changed_ns(verdict: Verdict) -> int:
    """Return the time of change of an update's rows: its detection time plus its update number."""
    return verdict.detected_ns + verdict.update


def _row_of(action: Advice) -> Row:
    """Return an action as a database row, for the snapshot."""
    return action_row(ActionChange(action, ActionState.PROPOSED, 0))
