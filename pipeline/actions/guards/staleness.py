"""An action is not begun after its deadline, nor a verdict acted on after its expiry."""

from __future__ import annotations

from tocsin.pipeline.actions.guards.guard import ActionCase, GuardOutcome, Ruling
from tocsin.pipeline.actions.reasons import ActionReason


class StalenessGuard:
    """Expires what came too late or waited for too long: a consumer that starts again executes nothing old."""

    name = "staleness"

    def judge(self, case: ActionCase) -> Ruling | None:
        """See ``Guard.judge``."""
        if case.now_ns >= case.tracked.verdict.expires_ns:
            return Ruling(GuardOutcome.EXPIRE, ActionReason.VERDICT_STALE)
        if case.now_ns >= case.action.deadline_ns:
            return Ruling(GuardOutcome.EXPIRE, ActionReason.DEADLINE)
        return None
