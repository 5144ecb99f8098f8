"""Formats incidents as text: a table with one line each, and one incident in full."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from tocsin.schemas.causes import CAUSES
from tocsin.schemas.errors import StoreError
from tocsin.schemas.printable import plain
from tocsin.schemas.verdicts import ActionKind

Incident = Mapping[str, Any]
"""A row of the query of ``tocsin incidents``."""

MAX_EVIDENCE_COUNT: Final = 6
"""Number of sentences of evidence shown; ``--json`` has all."""
MIN_ID_CHARACTERS: Final = 8
"""Smallest number of characters of a shortened ID."""
_ACTIVE_STATES: Final = ("open", "confirmed")
_MAX_CELL_CHARACTERS: Final = 80
_TIMES: Final = ("since", "opened", "detected")
_UNITS: Final = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def is_over(incident: Incident, now: datetime) -> bool:
    """Return whether an incident has ended, or has expired without being renewed."""
    return incident["state"] not in _ACTIVE_STATES or time_of(incident["expires"]) <= now


def state_of(incident: Incident, now: datetime) -> str:
    """Return the state.

    An open or confirmed verdict that was not renewed in time is "expired", whatever its row says.
    """
    return "expired" if incident["state"] in _ACTIVE_STATES and is_over(incident, now) else str(incident["state"])


def ended_at(incident: Incident, now: datetime) -> datetime | None:
    """Return when the incident ended, None: it has not."""
    if incident["state"] not in _ACTIVE_STATES:
        return time_of(incident["detected"])
    return time_of(incident["expires"]) if is_over(incident, now) else None


def length_text(seconds: float) -> str:
    """Return a duration in its two largest units."""
    left = max(0, round(seconds))
    shown: list[str] = []
    for unit, unit_seconds in _UNITS:
        count, left = divmod(left, unit_seconds)
        if count or shown or unit == "s":
            shown.append(f"{count} {unit}")
    return " ".join(shown[:2])


def action_text(incident: Incident) -> str:
    """Return the proposed action, its target and its state.

    A restart or a rollback names the job or its processes. If the cause blames the program, no machine is named as the
    target, because isolating it would not help.
    """
    words, bracket, state = str(incident["action"]).rpartition(" (")
    if not bracket:  # nothing is proposed
        return state
    kind, _, target = words.partition(" ")
    cause = CAUSES.get(str(incident["cause"]))
    on_machine = f" on {target}" if target and (cause is None or cause.blames == "machine") else ""
    ranks, job = str(incident["ranks"]), incident["job"]
    if kind == ActionKind.ROLLBACK:
        what = f"rollback job {job}"
    elif kind == ActionKind.RESTART and ranks:
        many = "," in ranks
        processes = f"processes of ranks {ranks}" if many else f"process of rank {ranks}"
        what = f"restart {processes} of job {job}{on_machine}"
    elif kind == ActionKind.RESTART:
        what = f"restart processes of job {job}{on_machine}" if on_machine else f"restart job {job}"
    else:
        what = f"{kind} {target}" if on_machine else kind
    return what + bracket + state


def as_json(incident: Incident) -> dict[str, Any]:
    """Return what JSON says of an incident: the table's action, times by ISO 8601 in UTC, and not when it expires."""
    shown = {name: value for name, value in incident.items() if name != "expires"}
    times = {name: f"{str(incident[name]).replace(' ', 'T')}Z" for name in _TIMES if name in incident}
    return {**shown, **times, "action": action_text(incident)}


def table(incidents: Sequence[Incident], now: datetime) -> str:
    """Return a table with one line per incident; with end and duration if at least one of them has ended."""
    with_ends = any(is_over(one, now) for one in incidents)
    head = ["ID", "AGE", "STATE", "JOB", "MACHINE", "WHAT", "ACTION"]
    ids = short_ids([str(one["verdict_id"]) for one in incidents])
    rows = [[ids[str(one["verdict_id"])], *_cells(one, now)] for one in incidents]
    if with_ends:
        head[3:3] = ["ENDED", "LENGTH"]
        for row, one in zip(rows, incidents, strict=True):
            row[3:3] = _end_cells(one, now)
    rows = [[plain(_cut(cell)) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (head, *rows))
    return "\n".join(line.rstrip() for line in lines)


def render(
    incidents: Sequence[Incident], now: datetime, *, everything: bool = False, job_id: str | None = None, limit: int = 0
) -> str:
    """Return what the command prints: the number of incidents and their table.

    Args:
        incidents: the incidents, newest first.
        now: time that ages and expiries are computed for.
        everything: whether ended incidents were asked for, too.
        job_id: the job that was asked for, None: all jobs.
        limit: greatest number that was asked for, 0: no limit.
    """
    of_job = "" if job_id is None else f" in job {plain(job_id)}"
    if not incidents:
        return f"nothing was ever wrong{of_job}" if everything else f"nothing is wrong now{of_job}"
    count = f"{len(incidents)} incident{'s' if len(incidents) > 1 else ''}"
    if len(incidents) == limit:
        count = f"the newest {count}"
    head = f"{count}{of_job}" if everything else f"{count} now{of_job}"
    return f"{head}\n\n{table(incidents, now)}"


def render_one(incident: Incident, now: datetime) -> str:
    """Return one incident in full, as several lines."""
    ranks = f"  rank {incident['ranks']}" if incident["ranks"] else ""
    evidence = list(incident["evidence_list"])
    more_count = len(evidence) - MAX_EVIDENCE_COUNT
    shown = evidence[:MAX_EVIDENCE_COUNT] + ([f"… and {more_count} more: --json"] if more_count > 0 else [])
    end = ended_at(incident, now)
    lines = [
        plain(incident["summary"]),
        *_field("what", f"{incident['what']} ({state_of(incident, now)})"),
        *_field("since", moment_text(time_of(incident["since"]))),
        *([] if end is None else _field("ended", f"{moment_text(end)}, after {_length(incident, end)}")),
        *_field("machine", f"{incident['machine']}{ranks}"),
        *_field("why", incident["why"]),
        *_field("evidence", *shown),
        *_field("confidence", f"{float(incident['confidence']):.0%}"),
        *_field("action", f"{action_text(incident)}: {str(incident['reason']).replace('_', ' ')}"),
        *_field("job", f"{incident['job']}, attempt {incident['attempt']}, cluster {incident['cluster']}"),
        *_field("verdict", f"{incident['verdict_id']}, update {incident['update_number']}"),
    ]
    return "\n".join(lines)


def short_ids(ids: Sequence[str]) -> dict[str, str]:
    """Return for each ID its shortest unique beginning, of at least eight characters."""
    found = {}
    for one in ids:
        lengths = range(min(MIN_ID_CHARACTERS, len(one)), len(one) + 1)
        found[one] = next(
            (one[:length] for length in lengths if not any(o != one and o.startswith(one[:length]) for o in ids)), one
        )
    return found


def _cells(one: Incident, now: datetime) -> list[str]:
    """Return an incident's cells of the table, without ID and end."""
    ranks = str(one["ranks"])
    machine = str(one["machine"]) + (f" (rank{'s' if ',' in ranks else ''} {ranks})" if ranks else "")
    age = length_text((now - time_of(one["since"])).total_seconds())
    return [age, state_of(one, now), str(one["job"]), machine, f"{one['what']}: {one['cause']}", action_text(one)]


def _end_cells(one: Incident, now: datetime) -> list[str]:
    """Return an incident's cells with end and duration, "-" if it has not ended."""
    end = ended_at(one, now)
    return ["-", "-"] if end is None else [moment_text(end), _length(one, end)]


def _length(one: Incident, end: datetime) -> str:
    """Return the duration from the incident's onset to its end, as text."""
    return length_text((end - time_of(one["since"])).total_seconds())


def _cut(text: str) -> str:
    """Return the text shortened to the width of a cell."""
    return text if len(text) <= _MAX_CELL_CHARACTERS else text[: _MAX_CELL_CHARACTERS - 1] + "…"


def moment_text(moment: datetime) -> str:
    """A time in UTC to the second, by ISO 8601."""
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


def time_of(text: object) -> datetime:
    """Parse a time as the database writes it: in UTC, with up to nine digits after the point."""
    try:
        return datetime.fromisoformat(str(text)[:26]).replace(tzinfo=UTC)
    except ValueError:
        raise StoreError(f"the database gave {str(text)[:40]!r} where a time was expected: is it tocsin's?") from None


def _field(name: str, *values: str) -> list[str]:
    """Return the lines of a labelled value; further values follow below it."""
    return [f"  {name if index == 0 else '':<11}{plain(value)}" for index, value in enumerate(values)]
