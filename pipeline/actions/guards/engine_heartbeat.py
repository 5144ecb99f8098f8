"""Verdicts of an engine that fell silent are not acted on: what they said may not hold any more."""

from __future__ import annotations

from tocsin.pipeline.actions.config import ns
from tocsin.pipeline.actions.guards.guard import ActionCase, GuardOutcome, Ruling
from tocsin.pipeline.actions.reasons import ActionReason
from tocsin.schemas.action_events import EngineWay
from tocsin.schemas.records import NS_PER_SECOND


class EngineHeartbeatGuard:
    """Holds everything of a cluster while its engine's last heartbeat is older than its way allows."""

    name = "engine_heartbeat"

    def judge(self, case: ActionCase) -> Ruling | None:
        """See ``Guard.judge``."""
        beat = case.facts.heartbeat(case.cluster)
        if beat is None:
            return Ruling(GuardOutcome.HOLD, ActionReason.ENGINE_SILENT, "no heartbeat was heard")
        is_flink = beat.way is EngineWay.FLINK
        limit_seconds = case.config.flink_silence_seconds if is_flink else case.config.embedded_silence_seconds
        limit_seconds += beat.checkpoint_seconds
        age_ns = case.now_ns - beat.ts_ns
        if abs(age_ns) <= ns(limit_seconds):
            return None
        detail = f"{age_ns / NS_PER_SECOND:.1f} s old, at most {limit_seconds:g}"
        return Ruling(GuardOutcome.HOLD, ActionReason.ENGINE_SILENT, detail)
