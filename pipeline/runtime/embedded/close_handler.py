"""Closes incidents over the control socket, which belongs to the engine's user alone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from tocsin.pipeline.core.slices import RecordOutcome
from tocsin.pipeline.incidents.closing import close_event
from tocsin.pipeline.runtime.embedded.control_socket import ACTOR, EngineRefusedError, Handler, Message
from tocsin.schemas.errors import ClockAheadError, SchemaError
from tocsin.schemas.job_key import FLEET_JOB_ID, IDLE_JOB_ID
from tocsin.schemas.records import Record
from tocsin.schemas.verdicts import Verdict

MAX_NOTE_CHARACTERS: Final = 1000
_MAX_NAMED_COUNT: Final = 8


def close_handler(
    live: Callable[[], Sequence[Verdict]],
    take: Callable[[Record], RecordOutcome],
    now_ns: Callable[[], int],
    commit: Callable[[], bool] = lambda: True,
) -> Handler:
    """Return the handler of ``incident_close``: ``{"id", "note"}`` in, ``{"verdict_id", "job", "actor"}`` out.

    The beginning of an id is enough where no other incident that stands has it. The incident ends with the second
    in which it is closed, as soon as that is judged.

    Args:
        live: returns the verdicts that stand.
        take: takes the event that closes one, as any record.
        now_ns: the engine's clock.
        commit: puts what was taken into the journal; False: the disk refuses for now.
    """

    def answer(request: Message) -> Message:
        note, actor = close_note(request), str(request[ACTOR])
        standing = {one.verdict_id: one for one in live()}
        verdict = standing[standing_id(standing, close_text(request, "id"))]
        try:
            # the fleet is no job: its incidents are closed among the records of hosts without one
            job = replace(verdict.job, job_id=IDLE_JOB_ID) if verdict.job.job_id == FLEET_JOB_ID else verdict.job
            taken = take(close_event(job, verdict.verdict_id, note, actor, now_ns()))
        except (SchemaError, ClockAheadError) as error:
            raise EngineRefusedError(str(error), error.reason) from error
        if taken is not RecordOutcome.OK:
            raise EngineRefusedError("the engine's clock was set a moment ago: try again", taken.value)
        if not commit():
            raise EngineRefusedError("the journal cannot be written: it is closed until the engine ends", "not_kept")
        return {"verdict_id": verdict.verdict_id, "job": verdict.job.job_id, "actor": actor}

    return answer


def close_note(request: Mapping[str, Any]) -> str:
    """Return why an incident is to be closed.

    Raises:
        EngineRefusedError: it is missing or too long.
    """
    note = close_text(request, "note")
    if len(note) > MAX_NOTE_CHARACTERS:
        raise EngineRefusedError(f"a note has at most {MAX_NOTE_CHARACTERS} characters", "bad_request")
    return note


def close_text(request: Mapping[str, Any], key: str) -> str:
    """Return a text of the request that closes an incident.

    Raises:
        EngineRefusedError: it is missing.
    """
    value = request.get(key)
    if not isinstance(value, str) or not value.strip():
        raise EngineRefusedError(f'incident_close needs "{key}" as text', "bad_request")
    return value.strip()


def standing_id(standing: Collection[str], wanted: str) -> str:
    """Return the one id of a standing incident that a beginning means.

    Args:
        standing: the ids of the incidents that stand.
        wanted: the beginning, or a whole id.

    Raises:
        EngineRefusedError: there is none, or there are several.
    """
    if wanted in standing:
        return wanted
    found = [one for one in standing if one.startswith(wanted)]
    if len(found) == 1:
        return found[0]
    if not found:
        text = (
            f"no incident that stands now begins with {wanted[:80]!r}: it is over, or was never told (incidents --all)"
        )
        raise EngineRefusedError(text, "not_found")
    several = ", ".join(sorted(found)[:_MAX_NAMED_COUNT])
    raise EngineRefusedError(f"{wanted[:80]!r} begins several incidents: {several}", "ambiguous")
