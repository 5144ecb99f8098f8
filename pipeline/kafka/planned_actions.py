"""Which rows of proposed actions wait because work is planned, for the sink of verdicts.

Rows follow from the verdict, the stored rows and the notes that count, never from what this process did before.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from tocsin.pipeline.alerts.planned_work import PlannedWork
from tocsin.pipeline.incidents.maintenance import MaintenanceReason, scope_of
from tocsin.pipeline.stores.base import ActionChange
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.verdicts import Verdict

_WAITS: Final = MaintenanceReason.UNDER_MAINTENANCE.value


class PlannedActions:
    """Lets the actions of a verdict wait while planned work covers it."""

    def __init__(self, work: PlannedWork, now_ns: Callable[[], int]) -> None:
        """Ask planned work, which another thread may add to.

        Args:
            work: the planned work.
            now_ns: Unix time in nanoseconds.
        """
        self._work = work
        self._now_ns = now_ns
        self._active: frozenset[str] = frozenset()

    def held(self, change: ActionChange, verdict: Verdict) -> ActionChange:
        """Return a row of a verdict's update, waiting if work covers the verdict when it is told."""
        if change.state is not ActionState.PROPOSED:
            return change
        reason = self._work.book.hold(scope_of(verdict), verdict.detected_ns)
        return change if not reason else ActionChange(change.action, ActionState.WAITING, change.changed_ns, reason)

    def is_due(self) -> bool:
        """Return whether work began or ended since ``done``."""
        return self._work.book.active(self._now_ns()) != self._active

    def due(
        self, standing: Sequence[Verdict], actions_of: Callable[[Sequence[str]], Sequence[ActionChange]]
    ) -> list[ActionChange]:
        """Return the rows that change because work began or ended.

        Args:
            standing: the verdicts that stand.
            actions_of: returns the stored rows of verdicts by their ids, the latest change of each.
        """
        now_ns = self._now_ns()
        reasons = {one.verdict_id: self._work.book.hold(scope_of(one), now_ns) for one in standing}
        found = []
        for change in actions_of(sorted(reasons)) if reasons else ():
            reason, is_held = reasons[change.action.verdict_id], change.detail == _WAITS
            if reason and change.state is ActionState.PROPOSED:
                found.append(ActionChange(change.action, ActionState.WAITING, now_ns, reason))
            elif not reason and change.state is ActionState.WAITING and is_held:
                found.append(ActionChange(change.action, ActionState.PROPOSED, now_ns))
        return found

    def done(self) -> None:
        """Note that the rows of ``due`` are written."""
        self._active = self._work.book.active(self._now_ns())
