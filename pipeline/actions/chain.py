"""The chain of guards: the first that has something against an action decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tocsin.pipeline.actions.guards.approvals import ApprovalGuard, LeafGuard, UnprovenClassGuard
from tocsin.pipeline.actions.guards.breaker import BreakerGuard
from tocsin.pipeline.actions.guards.budgets import BudgetGuard
from tocsin.pipeline.actions.guards.confirmation import ConfirmationGuard
from tocsin.pipeline.actions.guards.conflicts import ConflictGuard
from tocsin.pipeline.actions.guards.dry_run import DryRunGuard
from tocsin.pipeline.actions.guards.engine_heartbeat import EngineHeartbeatGuard
from tocsin.pipeline.actions.guards.executors import ExecutorGuard
from tocsin.pipeline.actions.guards.guard import ActionCase, Guard, Ruling
from tocsin.pipeline.actions.guards.human_words import VetoGuard, WrongDetectorGuard
from tocsin.pipeline.actions.guards.incarnation import IncarnationGuard
from tocsin.pipeline.actions.guards.planned_work import PlannedWorkGuard
from tocsin.pipeline.actions.guards.recent_changes import RecentChangeGuard
from tocsin.pipeline.actions.guards.return_checks import ReturnCheckGuard
from tocsin.pipeline.actions.guards.running_jobs import RunningJobGuard
from tocsin.pipeline.actions.guards.spares import SpareGuard
from tocsin.pipeline.actions.guards.staleness import StalenessGuard
from tocsin.pipeline.actions.guards.witnesses import WitnessGuard
from tocsin.pipeline.incidents.maintenance import MaintenanceBook


class GuardChain:
    """All guards in their order, and those of them that remember something by name.

    Attributes:
        guards: the chain: first what ends an action, then what holds it, then who has to approve it.
        vetoes: what people said of machines.
        wrong_detectors: detectors that were proved wrong.
        breaker: the breakers of the classes.
        classes: unproven actions of the classes.
        running_jobs: jobs that have failed.
    """

    def __init__(self, maintenance: MaintenanceBook) -> None:
        """Build the chain.

        Args:
            maintenance: the planned work.
        """
        self.vetoes = VetoGuard()
        self.wrong_detectors = WrongDetectorGuard()
        self.breaker = BreakerGuard()
        self.classes = UnprovenClassGuard()
        self.running_jobs = RunningJobGuard()
        self.guards: Sequence[Guard] = (
            StalenessGuard(),
            IncarnationGuard(),
            ReturnCheckGuard(),
            self.wrong_detectors,
            self.vetoes,
            PlannedWorkGuard(maintenance),
            EngineHeartbeatGuard(),
            RecentChangeGuard(),
            WitnessGuard(),
            ConfirmationGuard(),
            ConflictGuard(),
            SpareGuard(),
            self.breaker,
            BudgetGuard(),
            ExecutorGuard(),
            DryRunGuard(),
            ApprovalGuard(),
            self.running_jobs,
            LeafGuard(),
            self.classes,
        )

    def judge(self, case: ActionCase) -> Ruling | None:
        """Return what the first guard that has something against the action says, None if none has."""
        for guard in self.guards:
            ruling = guard.judge(case)
            if ruling is not None:
                return ruling
        return None

    def allowed(self, case: ActionCase) -> None:
        """Note that an action may be begun now."""
        self.breaker.allowed(case)
        self.classes.allowed(case)

    def to_state(self) -> dict[str, Any]:
        """Return the state of the guards that have one, as JSON-able values."""
        return {
            "vetoes": self.vetoes.to_state(),
            "wrong_detectors": self.wrong_detectors.to_state(),
            "breaker": self.breaker.to_state(),
            "classes": self.classes.to_state(),
            "running_jobs": self.running_jobs.to_state(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Replace the state by what ``to_state`` returned."""
        self.vetoes.load_state(state["vetoes"])
        self.wrong_detectors.load_state(state["wrong_detectors"])
        self.breaker.load_state(state["breaker"])
        self.classes.load_state(state["classes"])
        self.running_jobs.load_state(state.get("running_jobs", ()))  # a state of before has none
