"""What stops a whole job waits for a short time while its verdict may still ask for something harder."""

from __future__ import annotations

from typing import Final

from tocsin.pipeline.actions.config import ns
from tocsin.pipeline.actions.guards.guard import ActionCase, GuardOutcome, Ruling
from tocsin.pipeline.actions.reasons import ActionReason
from tocsin.pipeline.incidents.proposed_action import is_withheld
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import ActionKind, VerdictState

_MILD: Final = frozenset({ActionKind.RESTART, ActionKind.ROLLBACK})
"""Kinds that stop a job on the machines that it has; an eviction that is asked for later comes too late."""


class ConfirmationGuard:
    """Holds a restart or rollback while its verdict is not confirmed, or lacks witnesses for something harder.

    It holds for ``evidence_seconds`` at most, and for one checkpoint of the engine more, after which the engine's lines
    may come together. A verdict that nothing confirms until then is acted on as it is.
    """

    name = "confirmation"

    def judge(self, case: ActionCase) -> Ruling | None:
        """See ``Guard.judge``."""
        if case.action.kind not in _MILD:
            return None
        verdict = case.tracked.verdict
        is_open = verdict.state is VerdictState.OPEN
        if not is_open and not is_withheld(verdict):
            return None
        beat = case.facts.heartbeat(case.cluster)
        limit_seconds = case.config.evidence_seconds + (0.0 if beat is None else beat.checkpoint_seconds)
        age_ns = case.now_ns - case.tracked.opened_ns
        if not 0 <= age_ns < ns(limit_seconds):
            return None
        detail = f"for {age_ns / NS_PER_SECOND:.0f} s, at most {limit_seconds:g}"
        return Ruling(GuardOutcome.HOLD, ActionReason.VERDICT_OPEN if is_open else ActionReason.EVIDENCE_GROWS, detail)
