"""One incident that people were told of: what was told, and its form in a state."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tocsin.pipeline.alerts.notice import AlertSeverity
from tocsin.schemas.cloudevents import decode_verdict, encode_verdict
from tocsin.schemas.verdicts import Verdict


@dataclass(slots=True)
class ToldIncident:
    """What was told of one incident.

    Attributes:
        verdict_id: its id.
        detected_ns: stream time of the last line that was taken.
        update: number of that line.
        content: ``content_of`` the last line that was news.
        severity: how urgent it was told.
        expires_ns: when that line expires, if no renewal comes.
        verdict: the last line that was news, None where only summaries tell it.
        routes: route -> when it was told there first.
        summaries: route -> key of the summary that stands for it there.
    """

    verdict_id: str
    detected_ns: int
    update: int
    content: str
    severity: AlertSeverity
    expires_ns: int = 0
    verdict: Verdict | None = None
    routes: dict[str, int] = field(default_factory=dict)
    summaries: dict[str, str] = field(default_factory=dict)


def content_of(verdict: Verdict, severity: AlertSeverity) -> str:
    """Return a digest of what is news where it changes: state, fault, cause, suspects, action and severity."""
    suspects = ",".join(f"{one.component.kind.value}:{one.component.name}:{one.ranks}" for one in verdict.suspects)
    words = (verdict.state.value, verdict.fault.value, verdict.cause, suspects, verdict.action.value, severity.value)
    return hashlib.sha256("|".join(words).encode()).hexdigest()[:16]


def named_by(verdict: Verdict) -> str:
    """Return kind and name of each suspect of a verdict as one text."""
    return ",".join(sorted({f"{one.component.kind.value}:{one.component.name}" for one in verdict.suspects}))


def attempt_key(verdict: Verdict) -> str:
    """Return cause and attempt of a verdict as one text."""
    job = verdict.job
    return "\n".join((job.cluster, job.job_id, str(job.attempt), verdict.cause))


def told_state(told: ToldIncident) -> list[Any]:
    """Return a told incident as JSON values."""
    event = "" if told.verdict is None else encode_verdict(told.verdict).decode()
    head = [told.verdict_id, told.detected_ns, told.update, told.content, told.severity.value, told.expires_ns]
    return [*head, event, told.routes, told.summaries]


def told_of(fields: Sequence[Any]) -> ToldIncident:
    """Return the told incident of ``_told_state``."""
    name, detected_ns, update, content, severity, expires_ns, event, routes, summaries = fields
    verdict = decode_verdict(event.encode()) if event else None
    level = AlertSeverity(severity)
    return ToldIncident(name, detected_ns, update, content, level, expires_ns, verdict, dict(routes), dict(summaries))
