"""An action waits, and pages at once, while no executor that is alive carries out its kind."""

from __future__ import annotations

from tocsin.pipeline.actions.config import ns
from tocsin.pipeline.actions.guards.guard import ActionCase, GuardOutcome, Ruling
from tocsin.pipeline.actions.reasons import ActionReason


class ExecutorGuard:
    """Holds what nobody could carry out."""

    name = "executors"

    def judge(self, case: ActionCase) -> Ruling | None:
        """See ``Guard.judge``."""
        if case.config.is_dry_run:
            return None
        since_ns = case.now_ns - ns(case.config.executor_silence_seconds)
        if case.facts.has_executor(case.action, since_ns):
            return None
        return Ruling(GuardOutcome.HOLD, ActionReason.NO_EXECUTOR, f"nobody carries out {case.action.kind.value}")
