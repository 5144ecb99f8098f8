"""Incidents as text: a table with a line each, and one incident in full."""

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
"""Sentences of evidence shown; --json has all."""
MIN_ID_CHARACTERS: Final = 8
"""A shortened id keeps at least so many characters."""
_STANDING: Final = ("open", "confirmed")
_MAX_CELL_CHARACTERS: Final = 80
_TIMES: Final = ("since", "opened", "detected")
_UNITS: Final = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def is_over(incident: Incident, now: datetime) -> bool:
    """Whether an incident has ended, or nobody renewed it before it expired."""
    return incident["state"] not in _STANDING or _time(incident["expires"]) <= now


def state_of(incident: Incident, now: datetime) -> str:
    """The state in words: a verdict that nobody renewed in time is expired, whatever its row says."""
    return "expired" if incident["state"] in _STANDING and is_over(incident, now) else str(incident["state"])


def ended_at(incident: Incident, now: datetime) -> datetime | None:
    """When it ended, None: it has not."""
    if incident["state"] not in _STANDING:
        return _time(incident["detected"])
    return _time(incident["expires"]) if is_over(incident, now) else None


def length_text(seconds: float) -> str:
    """A time span in its two largest units."""
    left = max(0, round(seconds))
    shown: list[str] = []
    for unit, unit_seconds in _UNITS:
        count, left = divmod(left, unit_seconds)
        if count or shown or unit == "s":
            shown.append(f"{count} {unit}")
    return " ".join(shown[:2])


def action_text(incident: Incident) -> str:
    """What is proposed, of what, and what became of it.

    A restart or a rollback names the job or its process. Where the cause blames the program, no machine is named as
    the target: taking it away would change nothing.
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
    """One line an incident; with the end and the length where one of them is over."""
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
    """What the command prints: how many there are, and the table.

    Args:
        incidents: newest first.
        now: the time to which ages and expiries are compared.
        everything: whether also what is over was asked for.
        job_id: the only job that was asked for.
        limit: as many as were asked for at most, 0: no limit.
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
    """One incident as a block of lines."""
    ranks = f"  rank {incident['ranks']}" if incident["ranks"] else ""
    evidence = list(incident["evidence_list"])
    more_count = len(evidence) - MAX_EVIDENCE_COUNT
    shown = evidence[:MAX_EVIDENCE_COUNT] + ([f"… and {more_count} more: --json"] if more_count > 0 else [])
    end = ended_at(incident, now)
    lines = [
        plain(incident["summary"]),
        *_field("what", f"{incident['what']} ({state_of(incident, now)})"),
        *_field("since", _shown(_time(incident["since"]))),
        *([] if end is None else _field("ended", f"{_shown(end)}, after {_length(incident, end)}")),
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
    """Each id's shortest beginning that no other of these has, of eight characters or more."""
    found = {}
    for one in ids:
        lengths = range(min(MIN_ID_CHARACTERS, len(one)), len(one) + 1)
        found[one] = next(
            (one[:length] for length in lengths if not any(o != one and o.startswith(one[:length]) for o in ids)), one
        )
    return found


def _cells(one: Incident, now: datetime) -> list[str]:
    ranks = str(one["ranks"])
    machine = str(one["machine"]) + (f" (rank{'s' if ',' in ranks else ''} {ranks})" if ranks else "")
    age = length_text((now - _time(one["since"])).total_seconds())
    return [age, state_of(one, now), str(one["job"]), machine, f"{one['what']}: {one['cause']}", action_text(one)]


def _end_cells(one: Incident, now: datetime) -> list[str]:
    end = ended_at(one, now)
    return ["-", "-"] if end is None else [_shown(end), _length(one, end)]


def _length(one: Incident, end: datetime) -> str:
    return length_text((end - _time(one["since"])).total_seconds())


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_CELL_CHARACTERS else text[: _MAX_CELL_CHARACTERS - 1] + "…"


def _shown(moment: datetime) -> str:
    """A time in UTC to the second, by ISO 8601."""
    return f"{moment:%Y-%m-%dT%H:%M:%SZ}"


def _time(text: object) -> datetime:
    """A time as the database writes it: in UTC, with up to nine digits after the point."""
    try:
        return datetime.fromisoformat(str(text)[:26]).replace(tzinfo=UTC)
    except ValueError:
        raise StoreError(f"the database gave {str(text)[:40]!r} where a time was expected: is it tocsin's?") from None


def _field(name: str, *values: str) -> list[str]:
    """One labelled value, or several below each other."""
    return [f"  {name if index == 0 else '':<11}{plain(value)}" for index, value in enumerate(values)]
