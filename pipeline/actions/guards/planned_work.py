"""Nothing acts on machines, leaves or jobs under planned work."""

from __future__ import annotations

from tocsin.pipeline.actions.guards.guard import ActionCase, GuardOutcome, Ruling
from tocsin.pipeline.actions.reasons import ActionReason
from tocsin.pipeline.incidents.maintenance import MaintenanceBook, Scope
from tocsin.schemas.verdicts import Component, ComponentKind


class PlannedWorkGuard:
    """Holds an action while work covers its job, its leaf or any of its machines."""

    name = "planned_work"

    def __init__(self, maintenance: MaintenanceBook) -> None:
        """Use a book of planned work."""
        self._maintenance = maintenance

    def judge(self, case: ActionCase) -> Ruling | None:
        """See ``Guard.judge``."""
        if not self._maintenance.has_works:
            return None
        target = case.action.target
        common = target.component if case.tracked.is_leaf else case.tracked.verdict.common
        scopes = [Scope(target.job, (), common)]
        scopes += [Scope(target.job, (Component(ComponentKind.HOST, host),), None) for host in case.tracked.hosts]
        for scope in scopes:
            work = self._maintenance.covering_scope(scope, case.now_ns)
            if work is not None:
                return Ruling(GuardOutcome.HOLD, ActionReason.UNDER_MAINTENANCE, f"{work.target.name}: {work.reason}")
        return None
