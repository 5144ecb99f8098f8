"""Notices to send."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.pipeline.stores.samples import ONSET, SECOND, verdict
from tocsin.pipeline.alerts.notice import AlertSeverity, Notice, NoticeKind
from tocsin.schemas.verdicts import ActionKind, Verdict, VerdictState

NOW = ONSET + 60 * SECOND
"""When notices are sent."""

STATES = {
    NoticeKind.FIRING: (VerdictState.CONFIRMED, 0, "process_stopped_peers_wait"),
    NoticeKind.CHANGED: (VerdictState.CONFIRMED, 1, "process_stopped_peers_wait"),
    NoticeKind.RESOLVED: (VerdictState.RESOLVED, 2, "recovered"),
    NoticeKind.TAKEN_BACK: (VerdictState.CANCELLED, 2, "victim"),
    NoticeKind.LAPSED: (VerdictState.EXPIRED, 2, "expired"),
    NoticeKind.TEST: (VerdictState.CONFIRMED, 0, "process_stopped_peers_wait"),
    NoticeKind.WATCHDOG: (VerdictState.CONFIRMED, 0, "process_stopped_peers_wait"),
}


def notice(kind: NoticeKind = NoticeKind.FIRING, reference: str = "", note: str = "", **changes: Any) -> Notice:
    """A notice of the incident of host n3; ``changes`` are those of its verdict."""
    state, update, reason = STATES[kind]
    told: Verdict = verdict(
        "0123456789abcdef", update, **{"state": state, "reason": reason, "confidence": 0.9, **changes}
    )
    return Notice(
        route="sre",
        kind=kind,
        severity=AlertSeverity.PAGE,
        verdict=told,
        told_ns=ONSET + 10 * SECOND,
        made_ns=ONSET + (10 + 10 * update) * SECOND,
        reference=reference,
        note=note,
    )


def changed(one: Notice, **changes: Any) -> Notice:
    """The notice with other fields."""
    return replace(one, **changes)


HARD_ACTION = {"action": ActionKind.EVICT, "cause": "ecc_error"}
