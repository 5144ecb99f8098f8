"""An action is for the machine and the attempt that the evidence is about, not for their successors."""

from __future__ import annotations

from tocsin.pipeline.actions.guards.guard import ActionCase, GuardOutcome, Ruling
from tocsin.pipeline.actions.reasons import ActionReason
from tocsin.schemas.actions import Machine
from tocsin.schemas.job_key import FLEET_JOB_ID, IDLE_JOB_ID


class IncarnationGuard:
    """Expires an action whose machine booted, or whose job is in another attempt or on other machines."""

    name = "incarnation"

    def judge(self, case: ActionCase) -> Ruling | None:
        """See ``Guard.judge``."""
        target = case.action.target
        if any(self._is_other(case, machine) for machine in target.machines):
            return Ruling(GuardOutcome.EXPIRE, ActionReason.REBOOTED)
        if target.job.job_id in {IDLE_JOB_ID, FLEET_JOB_ID}:
            return None
        facts = case.facts.job(case.cluster, target.job.job_id)
        if facts is None:
            return None
        if facts.job.attempt != target.job.attempt:
            return Ruling(GuardOutcome.EXPIRE, ActionReason.ATTEMPT_OVER)
        if target.slurm_job_id and facts.slurm_job_id and facts.slurm_job_id != target.slurm_job_id:
            return Ruling(GuardOutcome.EXPIRE, ActionReason.ATTEMPT_OVER)
        if facts.hosts and not set(case.tracked.hosts) <= set(facts.hosts):
            return Ruling(GuardOutcome.EXPIRE, ActionReason.HOST_NOT_IN_ATTEMPT)
        return None

    def _is_other(self, case: ActionCase, machine: Machine) -> bool:
        """Return whether a machine is known to be another incarnation now."""
        known = case.facts.machine(case.cluster, machine.host)
        if known is None:
            return False
        pairs = ((machine.boot_id, known.boot_id), (machine.node_uid, known.node_uid))
        return any(then and now and then != now for then, now in pairs)
