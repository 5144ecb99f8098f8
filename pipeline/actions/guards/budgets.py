"""Budgets: how many machines or restarts within an hour, a day and a week, and how many machines out at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from tocsin.pipeline.actions.config import BudgetLimit, BudgetScope, ns
from tocsin.pipeline.actions.guards.guard import ActionCase, GuardOutcome, Ruling
from tocsin.pipeline.actions.reasons import ActionReason
from tocsin.pipeline.actions.shelves import Use
from tocsin.pipeline.actions.tracked import TrackedAction
from tocsin.schemas.actions import HARD_KINDS
from tocsin.schemas.verdicts import ActionKind

_REASONS: Final = {
    BudgetScope.JOB: ActionReason.BUDGET_JOB,
    BudgetScope.LEAF: ActionReason.BUDGET_LEAF,
    BudgetScope.MINIPOD: ActionReason.BUDGET_MINIPOD,
    BudgetScope.FLEET: ActionReason.BUDGET_FLEET,
}
_WHOLE: Final = frozenset({BudgetScope.JOB, BudgetScope.FLEET})
"""Scopes in which an action takes its weight."""
_RESTARTS: Final = frozenset({ActionKind.RESTART, ActionKind.ROLLBACK})


class _Place(NamedTuple):
    """One scope of budgets: a job, a leaf, a minipod or the fleet.

    Attributes:
        name: its name, "" for the fleet.
        size: number of its machines, 0 if it is not known.
        needed: places of it that the action takes which is judged.
        uses: other actions that use places of it, with how many.
    """

    name: str
    size: int
    needed: int
    uses: list[tuple[Use, int]]


class BudgetGuard:
    """Holds an action for which a budget has no place left.

    An action takes its place when it may be begun, and gives it back only if it ends without having been begun. A
    machine that is out already, as one that was drained and is to be rebooted, has its place and needs no second. One
    place of each window is left to other classes of evidence, where there is more than one. An action on a whole leaf
    needs approval instead, and takes one place of the fleet.
    """

    name = "budgets"

    def judge(self, case: ActionCase) -> Ruling | None:
        """See ``Guard.judge``."""
        kind = case.action.kind
        if kind in HARD_KINDS:
            limits, counted = case.config.machine_budgets, HARD_KINDS
        elif kind in _RESTARTS:
            limits, counted = case.config.restart_budgets, _RESTARTS
        else:
            return None
        if kind in HARD_KINDS and self._has_place(case):
            return None
        by_scope: dict[BudgetScope, list[_Place]] = {}
        for limit in limits:
            places = by_scope.get(limit.scope)
            if places is None:
                names = self._scopes(case, limit.scope)
                places = by_scope[limit.scope] = [self._place(case, counted, limit.scope, name) for name in names]
            for place in places:
                ruling = self._judge_one(case, limit, place)
                if ruling is not None:
                    return ruling
        return None

    def _place(self, case: ActionCase, counted: frozenset[ActionKind], scope: BudgetScope, name: str) -> _Place:
        """Return one scope with what uses it and what the action needs of it."""
        needed = self._places(case, case.tracked, scope, name)
        return _Place(name, self._size(case, scope, name), needed, list(self._uses(case, counted, scope, name)))

    def _uses(
        self, case: ActionCase, counted: frozenset[ActionKind], scope: BudgetScope, name: str
    ) -> Iterator[tuple[Use, int]]:
        """Yield the other actions of the same cluster that use places of one scope, and how many."""
        mine, cluster, book = case.tracked.action.action_id, case.cluster, case.book
        for kind in counted:
            is_job = scope is BudgetScope.JOB
            for use in book.uses_of_job(cluster, name, kind) if is_job else book.uses(cluster, kind):
                if use.tracked.action.action_id == mine:
                    continue
                if scope in _WHOLE:
                    yield use, use.weight
                elif places := self._places(case, use.tracked, scope, name):
                    yield use, places

    def _judge_one(self, case: ActionCase, limit: BudgetLimit, place: _Place) -> Ruling | None:
        """Return a hold if one limit of one scope has no place left."""
        allowed, needed = limit.allowed_count(place.size), place.needed
        now_ns, window_ns, mine = case.now_ns, ns(limit.window_seconds), case.action.budget_class
        since_ns = now_ns - window_ns
        used = same = 0
        for use, places in place.uses:
            if (use.used_ns or now_ns) > since_ns if window_ns else use.tracked.is_out(now_ns):
                used += places
                if use.budget_class == mine:
                    same += places
        if used + needed > allowed:
            where = f"{limit.scope.value} {place.name}".strip()
            reason = _REASONS[limit.scope] if limit.window_seconds else ActionReason.BUDGET_CONCURRENT
            return Ruling(GuardOutcome.HOLD, reason, f"{where}: {used} of {allowed} in {limit.window_seconds} s")
        if limit.window_seconds and allowed > 1 and same + needed > allowed - 1:
            where = f"{limit.scope.value} {place.name}".strip()
            detail = f"{where}: {same} of {allowed} in {limit.window_seconds} s, all of one class"
            return Ruling(GuardOutcome.HOLD, ActionReason.BUDGET_OF_OTHERS, detail)
        return None

    def _has_place(self, case: ActionCase) -> bool:
        """Return whether all machines of an action are out by others, which use their places."""
        hosts = case.tracked.hosts
        if case.action.target.is_leaf() or not hosts:
            return False
        return all(any(one.is_standing for one in case.others_on(host)) for host in hosts)

    def _scopes(self, case: ActionCase, scope: BudgetScope) -> Iterator[str]:
        """Yield the names of one kind of scope that an action concerns."""
        if scope is BudgetScope.FLEET:
            yield ""
        elif scope is BudgetScope.JOB:
            yield case.action.target.job.job_id
        elif not case.action.target.is_leaf():
            yield from sorted({self._place_of(case, host, scope) for host in case.tracked.hosts} - {""})

    def _places(self, case: ActionCase, tracked: TrackedAction, scope: BudgetScope, name: str) -> int:
        """Return how many places of one scope an action takes."""
        target = tracked.action.target
        if scope is BudgetScope.FLEET:
            return tracked.weight()
        if scope is BudgetScope.JOB:
            return tracked.weight() if target.job.job_id == name else 0
        return sum(self._place_of(case, host, scope) == name for host in target.hosts)

    def _place_of(self, case: ActionCase, host: str, scope: BudgetScope) -> str:
        """Return the leaf or minipod of a machine, "" if it is not known."""
        if scope is BudgetScope.LEAF:
            return case.facts.leaf_of(case.action.target.job, host)
        return case.facts.minipod_of(case.cluster, host)

    def _size(self, case: ActionCase, scope: BudgetScope, name: str) -> int:
        """Return the number of machines of a scope, 0 if it is not known."""
        if scope is BudgetScope.JOB:
            facts = case.facts.job(case.cluster, name)
            return 0 if facts is None else len(facts.hosts)
        return case.facts.size(case.cluster, scope.value, name)
