"""A machine is evicted only if another can take its place, or the job can go on without."""

from __future__ import annotations

from tocsin.pipeline.actions.guards.guard import ActionCase, GuardOutcome, Ruling
from tocsin.pipeline.actions.reasons import ActionReason
from tocsin.schemas.job_key import FLEET_JOB_ID, IDLE_JOB_ID
from tocsin.schemas.verdicts import ActionKind


class SpareGuard:
    """Holds (and so pages) an eviction for which there is neither a spare nor a job that can shrink."""

    name = "spares"

    def judge(self, case: ActionCase) -> Ruling | None:
        """See ``Guard.judge``."""
        job = case.action.target.job
        if case.action.kind is not ActionKind.EVICT or job.job_id in {IDLE_JOB_ID, FLEET_JOB_ID}:
            return None
        facts = case.facts.job(job.cluster, job.job_id)
        may_shrink = None if facts is None else facts.may_shrink
        if case.config.may_shrink if may_shrink is None else may_shrink:
            return None
        told = None if facts is None else facts.spare_count
        spare_count = case.config.spare_count if told is None else told
        mine = case.action.action_id
        used = sum(
            len(other.hosts)
            for other in case.book.stopping(job.cluster, job.job_id)
            if other.kind is ActionKind.EVICT and other.action.action_id != mine
        )
        if len(case.tracked.hosts) <= spare_count - used:
            return None
        detail = f"{spare_count - used} spares for {len(case.tracked.hosts)} machines"
        return Ruling(GuardOutcome.HOLD, ActionReason.NO_SPARE, detail)
