"""The page of one incident: what, since when, where, why, how sure, what was excluded, its history, what to do."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from tocsin.cli.incident_source import IncidentParts, Row
from tocsin.cli.incident_text import Incident, action_text, ended_at, length_text, moment_text, state_of, time_of
from tocsin.pipeline.incidents.transitions import actor_of
from tocsin.schemas.causes import CAUSES
from tocsin.schemas.printable import counted, plain
from tocsin.schemas.reasons import Reason
from tocsin.schemas.runbooks import ACTION_BY_HAND, RUNBOOKS, HandStep, telling_steps
from tocsin.schemas.verdicts import ActionKind

MAX_LINES_COUNT: Final = 12
"""Most lines of one section on a terminal; the HTML page has all."""
_SURE: Final = ((0.9, "almost sure"), (0.75, "likely"), (0.5, "more likely than not"), (0.0, "a guess"))
_SAW: Final = {
    "hardware_event": "its own driver or kernel reports it",
    "peers_wait": "its ranks wait for the suspect's",
    "connection_lost": "the connection was lost",
    "check": "a check under load failed on it",
    "steps": "its steps are longer since then, or end no more",
}
_SHELL_WORD: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
"""Names that may stand in a command for a person to copy."""
_BY_TOCSIN: Final = ("waiting", "proposed", "cancelled", "expired")
"""States of actions that tocsin itself sets."""
_MEANINGS: Final = {reason.value: reason.meaning for reason in Reason}


@dataclass(frozen=True, slots=True)
class Section:
    """One section of a page.

    Attributes:
        name: its heading.
        lines: its lines of text, as the database has them: not escaped yet.
    """

    name: str
    lines: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class IncidentPage:
    """All that is known of one incident, as text.

    Attributes:
        title: the incident in one sentence.
        sections: the sections in their order; none is empty.
        points: rows of ``incident_evidence``, for plots.
        onset: begin of the fault.
    """

    title: str
    sections: tuple[Section, ...]
    points: Sequence[Row]
    onset: datetime


class _Glossary:
    """Reasons as words, each with its meaning where it comes first on a page."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def reason(self, name: object) -> str:
        """Return a reason in words; with its meaning the first time, if it is known."""
        meaning = "" if str(name) in self._told else _MEANINGS.get(str(name), "")
        self._told.add(str(name))
        return f"{_words(name)} ({meaning.rstrip('.')})" if meaning else _words(name)


def page_of(incident: Incident, parts: IncidentParts, now: datetime) -> IncidentPage:
    """Return the page of an incident.

    Args:
        incident: its row.
        parts: what the database holds beside it.
        now: the time for which states are computed.
    """
    end, glossary = ended_at(incident, now), _Glossary()
    since = time_of(incident["since"])
    job = f"{incident['job']}, attempt {incident['attempt']}, cluster {incident['cluster']}"
    lasted = length_text((end - since).total_seconds()) if end is not None else ""
    sections = (
        ("what", [f"{incident['what']} ({state_of(incident, now)})"]),
        ("since", [moment_text(since)]),
        ("ended", [] if end is None else [f"{moment_text(end)}, after {lasted}"]),
        ("machine", _machine(incident, parts)),
        ("why", [str(incident["why"])]),
        ("evidence", list(_evidence(incident, parts))),
        ("stands for", [_cover_line(row) for row in parts.covers]),
        (
            "covered by",
            [f"the fleet's incident {row['incident_id']}: this one pages nobody" for row in parts.covered_by],
        ),
        ("confidence", list(_confidence(incident, parts))),
        ("feedback", [_feedback_line(row) for row in parts.feedback]),
        ("excluded", list(_excluded(incident, parts, glossary))),
        ("action", [f"{action_text(incident)}: {glossary.reason(_why(incident, parts))}"]),
        ("history", list(_history(parts, glossary))),
        ("done", [_action_line(row, glossary) for row in reversed(parts.actions)] or ["nothing was asked for"]),
        ("by hand", by_hand_lines(incident)),
        ("job", [job]),
        ("verdict", [f"{incident['verdict_id']}, update {incident['update_number']}"]),
    )
    found = tuple(Section(name, tuple(lines)) for name, lines in sections if lines)
    return IncidentPage(str(incident["summary"]), found, parts.points, since)


def render_page(page: IncidentPage) -> str:
    """Return the page for a terminal; nothing in it can move the cursor or begin a line of its own."""
    lines = [plain(page.title)]
    for section in page.sections:
        shown = list(section.lines[:MAX_LINES_COUNT])
        if section.name == "history":  # the newest say how it stands now
            shown = list(section.lines[-MAX_LINES_COUNT:])
        left_count = len(section.lines) - len(shown)
        shown += [f"… and {left_count} more: --html FILE has all"] if left_count else []
        lines += [f"  {section.name if at == 0 else '':<11}{plain(one)}" for at, one in enumerate(shown)]
    return "\n".join(lines)


def _machine(incident: Incident, parts: IncidentParts) -> list[str]:
    """Return the suspects: names, ranks, and kinds other than a host."""
    ranks = f"  rank {incident['ranks']}" if incident["ranks"] else ""
    lines = [f"{incident['machine']}{ranks}"]
    suspects = _json(parts.told, "suspects_json")
    for one in suspects if len(suspects) > 1 or any(one.get("kind") != "host" for one in suspects) else ():
        told = ", ".join(map(str, one.get("ranks", ())))
        lines.append(f"{one.get('kind', '')} {one.get('name', '')}{f', rank {told}' if told else ''}")
    return lines


def _evidence(incident: Incident, parts: IncidentParts) -> Iterator[str]:
    """Yield each piece of evidence as a sentence with its id, and its numbers below it."""
    told = _json(parts.told, "evidence_json")
    for at, sentence in enumerate(incident["evidence_list"]):
        one = told[at] if at < len(told) else {}
        yield f"{sentence} [{one['id']}]" if "id" in one else str(sentence)
        if one.get("suspect_value") is not None:
            peers = f", its peers {one['peer_value']:.6g}" if one.get("peer_value") is not None else ""
            yield f"    {one.get('metric', '')}: {one['suspect_value']:.6g}{peers} ({one.get('detector', '')})"


def _confidence(incident: Incident, parts: IncidentParts) -> Iterator[str]:
    """Yield how sure the verdict is in words, what that rests on, and who saw it."""
    value = float(incident["confidence"])
    detectors = sorted({str(one.get("detector", "")) for one in _json(parts.told, "evidence_json")})
    count = len(incident["evidence_list"])
    rests = f"{counted(count, 'piece')} of evidence" if count else "no evidence"
    by = f" by {', '.join(detectors)}" if detectors else ""
    yield f"{value:.0%}, {next(word for least, word in _SURE if value >= least)}: {rests}{by}"
    if not parts.updates:
        return
    witnesses = [str(one).rpartition(":") for one in parts.updates[0]["witnesses"]]
    for kind, meaning in _SAW.items():
        hosts = [host for host, _, seen in witnesses if seen == kind]
        if hosts:
            yield f"seen by {', '.join(hosts)}: {meaning}"
    if not witnesses:
        yield "no other host saw it: no machine is taken away for it"


def _excluded(incident: Incident, parts: IncidentParts, glossary: _Glossary) -> Iterator[str]:
    """Yield whom and what the verdict named before, and the cancelled incidents of the same job and time."""
    machine, cause = str(incident["machine"]), str(incident["cause"])
    seen = {(machine, cause)}
    for at, row in enumerate(parts.updates):
        before = (str(row["machine"]), str(row["cause"]))
        if before in seen or at == 0:
            continue
        seen.add(before)
        until = moment_text(time_of(parts.updates[at - 1]["detected"]))
        yield f"{'' if before[0] == machine else f'{before[0]}, '}cause {_words(before[1])}: named until {until}"
    for row in parts.others:
        freed = f"taken back at {moment_text(time_of(row['detected']))}, {glossary.reason(row['reason'])}"
        yield f"{row['machine']}: {_words(row['fault'])}, cause {_words(row['cause'])}; {freed} [{row['verdict_id']}]"


def _why(incident: Incident, parts: IncidentParts) -> str:
    """Return the reason of the newest line that was no renewal."""
    return str(parts.updates[0]["reason"] if parts.updates else incident["reason"])


def _history(parts: IncidentParts, glossary: _Glossary) -> Iterator[str]:
    """Yield each update, oldest first: time, state, action, reason, and who."""
    for row in reversed(parts.updates):
        reason = str(row["reason"])
        said = f" ({row['evidence']})" if reason == Reason.CLOSED_BY_HUMAN.value else ""
        when = moment_text(time_of(row["detected"]))
        yield f"{when}  {row['state']:<9}  {row['action']}, by the {actor_of(reason)}: {glossary.reason(reason)}{said}"


def _action_line(row: Row, glossary: _Glossary) -> str:
    """Return one row of ``actions``: when, what, on which target, its state, by whom and why."""
    target = f" {row['target']}" if row["target"] else ""
    who = "tocsin" if row["state"] in _BY_TOCSIN else "the executor"
    dry = " (dry run: nothing is executed)" if row["dry_run"] in (True, 1, "true") else ""
    detail = f": {glossary.reason(row['detail'])}" if row["detail"] else ""
    return f"{moment_text(time_of(row['changed']))}  {row['kind']}{target}: {row['state']} by {who}{dry}{detail}"


def _cover_line(row: Row) -> str:
    """Return one verdict for which an incident of the fleet stands."""
    what = f"{_words(row['fault'])}, cause {_words(row['cause'])}"
    return f"{row['machine']}, job {row['job']}: {what} ({row['state']}) [{row['verdict_id']}]"


def _feedback_line(row: Row) -> str:
    """Return a person's judgement: upheld or denied, by whom, when and why."""
    word = "upheld" if row["is_true"] in (True, 1, "true") else "denied"
    said = f": {row['note']}" if row["note"] else ""
    return f"{word} by {row['actor']}{said} ({moment_text(time_of(row['ts']))})"


def by_hand_lines(incident: Incident) -> list[str]:
    """Return what a person does, by the proposed action and the cause's runbook, and where the runbook lies."""
    cause = CAUSES.get(str(incident["cause"]))
    kind = str(incident["action"]).partition(" ")[0]
    proposed = cause.action if kind == ActionKind.NONE and cause is not None else kind
    lines = [meaning for action, meaning in ACTION_BY_HAND.items() if action == proposed]
    if cause is not None and cause.blames != "machine":
        lines.append(
            {"program": "the program or its data is to blame: no machine", "nobody": "nobody is at fault"}[cause.blames]
        )
    if cause is not None:
        steps = enumerate(RUNBOOKS[cause.name].steps, 1)
        lines += [f"{number}. {_step(incident, step)}" for number, step in steps]
        lines.append(f"runbook: docs/runbooks/{cause.name}.md")
    lines += [_step(incident, step) for step in telling_steps("nobody" if cause is None else cause.blames)]
    return lines


def _step(incident: Incident, step: HandStep) -> str:
    """Return a step of a runbook, with the incident's names in its command.

    A name that a shell could read as more than one word is left out: its placeholder stays.
    """
    names = {"HOST": incident["machine"], "JOB": incident["job"], "ID": str(incident["verdict_id"])[:8]}
    safe = {word: str(name) for word, name in names.items() if _SHELL_WORD.fullmatch(str(name))}
    command = re.sub(r"\b(?:HOST|JOB|ID)\b", lambda found: safe.get(found[0], found[0]), step.command)
    return f"{step.text}{f' {command}' if command else ''}"


def _json(rows: Sequence[Row], column: str) -> list[dict[str, Any]]:
    """Return the JSON list in a column of the first row; empty where there is none."""
    if not rows:
        return []
    found = json.loads(str(rows[0][column]) or "[]")
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _words(name: object) -> str:
    """Return a name with spaces for underscores."""
    return str(name).replace("_", " ")
