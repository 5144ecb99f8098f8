"""Convert notices that were sent to people to rows of the incident database."""

from __future__ import annotations

from tocsin.pipeline.stores.alert_sent import AlertSent
from tocsin.pipeline.stores.rows import Row, TimeNs, one_line


def alert_sent_row(alert: AlertSent) -> Row:
    """Return a notice whose delivery ended as a row of ``alerts_sent``."""
    return {
        "cluster": alert.job.cluster,
        "job_id": alert.job.job_id,
        "attempt": alert.job.attempt,
        "verdict_id": alert.verdict_id,
        "update_number": alert.verdict_update,
        "route": alert.route,
        "receiver": alert.receiver,
        "receiver_kind": alert.receiver_kind,
        "kind": alert.kind,
        "severity": alert.severity,
        "outcome": alert.outcome,
        "detail": one_line(alert.detail),
        "tries": alert.tries_count,
        "made": TimeNs(alert.made_ns),
        "sent": TimeNs(alert.sent_ns),
    }
