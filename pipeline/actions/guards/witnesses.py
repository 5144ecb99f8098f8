"""A machine is taken away only if enough hosts saw its fault, checked again where it counts."""

from __future__ import annotations

from tocsin.pipeline.actions.guards.guard import ActionCase, GuardOutcome, Ruling
from tocsin.pipeline.actions.reasons import ActionReason
from tocsin.pipeline.job.witnesses import FEW_MACHINES, may_take_away
from tocsin.schemas.actions import HARD_KINDS
from tocsin.schemas.job_key import FLEET_JOB_ID, IDLE_JOB_ID
from tocsin.schemas.verdicts import FaultKind

_UNKNOWN_COUNT = FEW_MACHINES + 1
"""Number of machines that a job is taken to have while nobody told it: the rules are strict for fewer."""
_SLOW = frozenset({FaultKind.FAIL_SLOW, FaultKind.DEGRADED})


class WitnessGuard:
    """Holds a hard action on whose machines the verdict's witnesses do not suffice.

    An action on a whole job (`replay`) accuses no machine: it is there to find one.
    """

    name = "witnesses"

    def judge(self, case: ActionCase) -> Ruling | None:
        """See ``Guard.judge``."""
        verdict = case.tracked.verdict
        if case.action.kind not in HARD_KINDS or case.action.target.component is None:
            return None
        if may_take_away(
            case.tracked.hosts, verdict.witnesses, self._machine_count(case), is_slowness=verdict.fault in _SLOW
        ):
            return None
        detail = f"{len(verdict.witnesses)} witnesses for {len(case.tracked.hosts)} machines"
        return Ruling(GuardOutcome.HOLD, ActionReason.NOT_HARD_ENOUGH, detail)

    def _machine_count(self, case: ActionCase) -> int | None:
        """Return the number of machines of the action's job, None for machines without a job."""
        job = case.action.target.job
        if job.job_id in {IDLE_JOB_ID, FLEET_JOB_ID}:
            return None
        facts = case.facts.job(case.cluster, job.job_id)
        return len(facts.hosts) if facts is not None and facts.hosts else _UNKNOWN_COUNT
