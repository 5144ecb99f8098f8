"""Notices that tell no incident: the watchdog's, and those of a test."""

from __future__ import annotations

import hashlib

from tocsin.pipeline.alerts.notice import AlertSeverity, Notice, NoticeKind
from tocsin.schemas.job_key import OWN_CLUSTER
from tocsin.schemas.records import NS_PER_SECOND, JobKey
from tocsin.schemas.verdicts import ActionKind, FaultKind, Verdict, VerdictState


def empty_notice(route: str, kind: NoticeKind, severity: AlertSeverity, now_ns: int) -> Notice:
    """Return a notice without an incident.

    Args:
        route: name of the route.
        kind: ``TEST`` or ``WATCHDOG``.
        severity: how urgent it is.
        now_ns: the present time.
    """
    name = hashlib.sha256(f"{kind.value}/{route}".encode()).hexdigest()[:16]
    verdict = Verdict(
        verdict_id=name,
        job=JobKey(OWN_CLUSTER, kind.value),
        fault=FaultKind.DEGRADED,
        cause="unknown",
        suspects=(),
        onset_ns=now_ns,
        detected_ns=now_ns,
        confidence=0.0,
        action=ActionKind.NONE,
        reason=kind.value,
        evidence=(),
        state=VerdictState.CONFIRMED,
        update=0,
        expires_ns=now_ns + 3600 * NS_PER_SECOND,
    )
    return Notice(route, kind, severity, verdict, now_ns, now_ns)
