"""What a machine shows soon after it, or the job's detectors, were changed may be the change and no fault."""

from __future__ import annotations

from typing import Final

from tocsin.pipeline.actions.config import ns
from tocsin.pipeline.actions.guards.guard import ActionCase, GuardOutcome, Ruling
from tocsin.pipeline.actions.reasons import ActionReason
from tocsin.schemas.action_events import AttemptChangeKind
from tocsin.schemas.actions import HARD_KINDS
from tocsin.schemas.records import NS_PER_SECOND

_REASONS: Final = {
    AttemptChangeKind.PLACES: ActionReason.PLACES_CHANGED,
    AttemptChangeKind.MODEL: ActionReason.MODEL_CHANGED,
}


class RecentChangeGuard:
    """Holds a hard action for ``after_change_seconds`` after ranks of its machines moved or a model was changed.

    It is the rule that rows of proposals obey, too (``HoldRules.after_change_seconds`` of
    ``tocsin.pipeline.incidents.proposals``). A change after the evidence counts like one before it.
    """

    name = "recent_changes"

    def judge(self, case: ActionCase) -> Ruling | None:
        """See ``Guard.judge``."""
        target, held_ns = case.action.target, ns(case.config.after_change_seconds)
        facts = case.facts.job(case.cluster, target.job.job_id)
        if case.action.kind not in HARD_KINDS or facts is None or facts.job.attempt != target.job.attempt:
            return None
        for change in facts.changes:
            age_ns = case.now_ns - change.at_ns
            if age_ns < held_ns and (not change.host or change.host in case.tracked.hosts):
                where = change.host or target.job.job_id
                detail = f"{where}: {max(0, age_ns) // NS_PER_SECOND} s ago, at least {held_ns // NS_PER_SECOND}"
                return Ruling(GuardOutcome.HOLD, _REASONS[change.kind], detail)
        return None
