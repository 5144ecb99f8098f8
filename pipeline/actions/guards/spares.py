"""A machine is evicted only if another can take its place, or the job can go on without."""

from __future__ import annotations

from collections.abc import Iterable

from tocsin.pipeline.actions.config import ns
from tocsin.pipeline.actions.facts import JobCapacity
from tocsin.pipeline.actions.guards.guard import ActionCase, GuardOutcome, Ruling
from tocsin.pipeline.actions.reasons import ActionReason
from tocsin.pipeline.actions.tracked import TrackedAction
from tocsin.schemas.actions import Action
from tocsin.schemas.job_key import FLEET_JOB_ID, IDLE_JOB_ID
from tocsin.schemas.verdicts import ActionKind


class SpareGuard:
    """Holds (and so pages) an eviction for which there is neither a spare nor a job that can shrink.

    The job controller's word counts as long as it is not older than ``job_silence_seconds``, else the settings.
    """

    name = "spares"

    def judge(self, case: ActionCase) -> Ruling | None:
        """See ``Guard.judge``."""
        job = case.action.target.job
        if case.action.kind is not ActionKind.EVICT or job.job_id in {IDLE_JOB_ID, FLEET_JOB_ID}:
            return None
        since_ns = case.now_ns - ns(case.config.job_silence_seconds)
        told = case.facts.capacity(job.cluster, job.job_id, since_ns)
        may_shrink = None if told is None else told.may_shrink
        if case.config.may_shrink if may_shrink is None else may_shrink:
            return None
        spare_count, used, source = _told_spares(case, told)
        if len(case.tracked.hosts) <= spare_count - used:
            return None
        detail = f"{spare_count - used} spares for {len(case.tracked.hosts)} machines, as {source} says"
        return Ruling(GuardOutcome.HOLD, ActionReason.NO_SPARE, detail)


def _told_spares(case: ActionCase, told: JobCapacity | None) -> tuple[int, int, str]:
    """Return the number of spares, how many of them other evictions use, and who says so.

    A job controller's number is of the time at which it said it: evictions that ended before are in it. The settings'
    number never changes, so each eviction of the cluster uses it until its machines come back.
    """
    job = case.action.target.job
    if told is None or told.spare_count is None:
        uses = case.book.uses(job.cluster, ActionKind.EVICT)
        taken = [use.tracked for use in uses if use.tracked.is_running or use.tracked.is_standing]
        return case.config.spare_count, _machines(case.action, taken), "the policy"
    uses = case.book.uses_of_job(job.cluster, job.job_id, ActionKind.EVICT)
    taken = [use.tracked for use in uses if use.tracked.is_running or use.tracked.done_ns > told.ts_ns]
    return told.spare_count, _machines(case.action, taken), "the job controller"


def _machines(mine: Action, taken: Iterable[TrackedAction]) -> int:
    """Return the number of machines of some actions, without those of one action."""
    return sum(len(one.hosts) for one in taken if one.action.action_id != mine.action_id)
