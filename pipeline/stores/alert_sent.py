"""A notice to people whose delivery ended, as the incident database stores it."""

from __future__ import annotations

from dataclasses import dataclass

from tocsin.schemas.records import JobKey


@dataclass(frozen=True, slots=True)
class AlertSent:
    """A notice that a receiver took, or that is not tried again.

    Attributes:
        job: job of the verdict.
        verdict_id: the verdict that was told, or the summary of several.
        verdict_update: its update.
        route: name of the route.
        receiver: name of the receiver.
        receiver_kind: kind of the receiver: ``pagerduty``, ``slack`` and so on.
        kind: what was said: ``firing``, ``changed``, ``resolved`` and so on.
        severity: ``page``, ``ticket`` or ``information``.
        outcome: named reason of the delivery's end.
        detail: one sentence of the adapter, without secrets.
        tries_count: how often it was tried.
        made_ns: when the notice was made.
        sent_ns: when its delivery ended.
    """

    job: JobKey
    verdict_id: str
    verdict_update: int
    route: str
    receiver: str
    receiver_kind: str
    kind: str
    severity: str
    outcome: str
    detail: str
    tries_count: int
    made_ns: int
    sent_ns: int
