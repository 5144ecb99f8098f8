"""On a fresh installation actions are shown and not executed."""

from __future__ import annotations

from tocsin.pipeline.actions.guards.guard import ActionCase, GuardOutcome, Ruling
from tocsin.pipeline.actions.reasons import ActionReason


class DryRunGuard:
    """Shows instead of acting while dry-run is on."""

    name = "dry_run"

    def judge(self, case: ActionCase) -> Ruling | None:
        """See ``Guard.judge``."""
        return Ruling(GuardOutcome.SHOW, ActionReason.DRY_RUN) if case.config.is_dry_run else None
