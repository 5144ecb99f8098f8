"""Incidents that a person closes: the event that says so, and what the verdict keeps of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tocsin.schemas import events
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import Event, EventSource, JobKey, Severity, Slice
from tocsin.schemas.verdicts import Evidence

CLOSED_BY_HUMAN_MARK: Final = 2
"""The value of ``ClosedVerdict.had_suspects`` of a verdict that a person closed."""


def close_event(job: JobKey, verdict_id: str, note: str, actor: str, ts_ns: int) -> Event:
    """Return the event that closes an incident.

    Args:
        job: the incident's job.
        verdict_id: the incident's whole id.
        note: why it is closed.
        actor: who closes it.
        ts_ns: when.
    """
    payload = {"id": verdict_id, "note": note, "actor": actor}
    name, host = events.INCIDENT_CLOSE, events.CONTROL_HOST
    return Event(job, host, ts_ns, -1, EventSource.JOB, name, Severity.INFO, payload)


def without_closings(fast: Slice) -> tuple[Slice, list[Event]]:
    """Return a slice without the events that close incidents, and these events."""
    found = [one for one in fast.records if isinstance(one, Event) and one.name == events.INCIDENT_CLOSE]
    if not found:
        return fast, found
    return replace(fast, records=tuple(one for one in fast.records if one not in found)), found


def said_by(event: Event) -> Evidence:
    """Return who closed an incident, and why, as evidence of its last verdict line."""
    text = f"closed by {event.payload.get('actor', '')}: {event.payload.get('note', '')}"
    return Evidence("human", Reason.CLOSED_BY_HUMAN.value, 0.0, event.ts_ns, event.ts_ns, text)
