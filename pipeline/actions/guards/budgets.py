"""Budgets: how many machines or restarts within an hour, a day and a week, and how many machines out at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from tocsin.pipeline.actions.config import BudgetLimit, BudgetScope, ns
from tocsin.pipeline.actions.guards.guard import ActionCase, GuardOutcome, Ruling
from tocsin.pipeline.actions.reasons import ActionReason
from tocsin.pipeline.actions.shelves import Use, UseGroup, group_of
from tocsin.pipeline.actions.tracked import TrackedAction

_REASONS: Final = {
    BudgetScope.JOB: ActionReason.BUDGET_JOB,
    BudgetScope.LEAF: ActionReason.BUDGET_LEAF,
    BudgetScope.MINIPOD: ActionReason.BUDGET_MINIPOD,
    BudgetScope.FLEET: ActionReason.BUDGET_FLEET,
}
_WHOLE: Final = frozenset({BudgetScope.JOB, BudgetScope.FLEET})
"""Scopes in which an action takes its weight."""


class BudgetPlace(NamedTuple):
    """One scope of budgets: a job, a leaf, a minipod or the fleet.

    Attributes:
        name: its name, "" for the fleet.
        size: number of its machines, 0 if it is not known.
        needed: places of it that the action takes which is judged.
        uses: other actions that use places of it, with how many.
        most: places that all of them use together, whenever they used them: no window counts more.
        most_same: those among them of the action's class.
    """

    name: str
    size: int
    needed: int
    uses: list[tuple[Use, int]]
    most: int
    most_same: int


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
        group = group_of(kind)
        if group is UseGroup.NEITHER or (group is UseGroup.MACHINES and self._has_place(case)):
            return None
        limits = case.config.machine_budgets if group is UseGroup.MACHINES else case.config.restart_budgets
        by_scope: dict[BudgetScope, list[BudgetPlace]] = {}
        for limit in limits:
            places = by_scope.get(limit.scope)
            if places is None:
                names = self._scopes(case, limit.scope)
                places = by_scope[limit.scope] = [self._place(case, group, limit.scope, name) for name in names]
            for place in places:
                ruling = self._judge_one(case, limit, place)
                if ruling is not None:
                    return ruling
        return None

    def _place(self, case: ActionCase, group: UseGroup, scope: BudgetScope, name: str) -> BudgetPlace:
        """Return one scope with what uses it and what the action needs of it."""
        needed, mine = self._places(case, case.tracked, scope, name), case.action.budget_class
        uses = self._uses(case, group, scope, name)
        most = sum(places for _, places in uses)
        most_same = sum(places for use, places in uses if use.budget_class == mine)
        return BudgetPlace(name, self._size(case, scope, name), needed, uses, most, most_same)

    def _uses(self, case: ActionCase, group: UseGroup, scope: BudgetScope, name: str) -> list[tuple[Use, int]]:
        """Return the other actions of the same cluster that use places of one scope, and how many."""
        mine = case.tracked.action.action_id
        found = case.book.uses_of_group(case.cluster, group, name if scope is BudgetScope.JOB else None)
        others = [use for use in found if use.tracked.action.action_id != mine]
        if scope in _WHOLE:
            return [(use, use.weight) for use in others]
        counted = ((use, self._places(case, use.tracked, scope, name)) for use in others)
        return [(use, places) for use, places in counted if places]

    def _judge_one(self, case: ActionCase, limit: BudgetLimit, place: BudgetPlace) -> Ruling | None:
        """Return a hold if one limit of one scope has no place left."""
        allowed, needed = limit.allowed_count(place.size), place.needed
        if place.most + needed <= allowed and (allowed == 1 or place.most_same + needed < allowed):
            return None
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
        if case.tracked.is_leaf or not hosts:
            return False
        return all(any(one.is_standing for one in case.others_on(host)) for host in hosts)

    def _scopes(self, case: ActionCase, scope: BudgetScope) -> Iterator[str]:
        """Yield the names of one kind of scope that an action concerns."""
        if scope is BudgetScope.FLEET:
            yield ""
        elif scope is BudgetScope.JOB:
            yield case.action.target.job.job_id
        elif not case.tracked.is_leaf:
            yield from sorted({self._place_of(case, host, scope) for host in case.tracked.hosts} - {""})

    def _places(self, case: ActionCase, tracked: TrackedAction, scope: BudgetScope, name: str) -> int:
        """Return how many places of one scope an action takes."""
        target = tracked.action.target
        if scope is BudgetScope.FLEET:
            return tracked.weight()
        if scope is BudgetScope.JOB:
            return tracked.weight() if target.job.job_id == name else 0
        return sum(self._place_of(case, host, scope) == name for host in tracked.hosts)

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
