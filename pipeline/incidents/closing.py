"""Ways to close incidents: by a person, with what the verdict keeps of it, and by the end of the job."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tocsin.pipeline.incidents.incident import Incident
from tocsin.schemas import events
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import Event, EventSource, JobKey, Severity, Slice
from tocsin.schemas.verdicts import Evidence, FaultKind, VerdictState

_NO_SIGNS: Final = frozenset({events.INCIDENT_CLOSE, events.ACTION_CHANGE})
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
    """Return a slice without what is said of incidents and actions, and the events that close incidents.

    Neither is a sign of the job.
    """
    found = [one for one in fast.records if isinstance(one, Event) and one.name in _NO_SIGNS]
    if not found:
        return fast, found
    left = replace(fast, records=tuple(one for one in fast.records if one not in found))
    return left, [one for one in found if one.name == events.INCIDENT_CLOSE]


def said_by(event: Event) -> Evidence:
    """Return who closed an incident, and why, as evidence of its last verdict line."""
    text = f"closed by {event.payload.get('actor', '')}: {event.payload.get('note', '')}"
    return Evidence("human", Reason.CLOSED_BY_HUMAN.value, 0.0, event.ts_ns, event.ts_ns, text)


def state_at_end(incident: Incident, reason: Reason) -> VerdictState:
    """Return the last state of an incident whose job ended or goes on in another attempt.

    Unconfirmed slowdowns and hangs are cancelled when the job ended. An unconfirmed hang that only a hardware event
    explains is always cancelled: the job stood because it was started again. All others are resolved.

    Args:
        incident: the incident.
        reason: ``job_ended`` or ``new_attempt``.
    """
    verdict = incident.verdict
    unsure = not incident.was_confirmed and verdict.state is VerdictState.OPEN
    by_log = verdict.fault is FaultKind.HANG and verdict.reason == Reason.HARDWARE_EVENT.value
    ended = verdict.fault in (FaultKind.FAIL_SLOW, FaultKind.HANG) and reason is Reason.JOB_ENDED
    return VerdictState.CANCELLED if unsure and (ended or by_log) else VerdictState.RESOLVED
