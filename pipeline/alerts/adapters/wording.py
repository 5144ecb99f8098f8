"""Words of a notice for people: one line, one paragraph, and the whole page in plain text."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from tocsin.pipeline.alerts.notice import AlertSeverity, Notice, NoticeKind
from tocsin.pipeline.stores.rows import (
    FAULT_WORDS,
    cause_meaning,
    cause_text,
    evidence_text,
    one_line,
    who_text,
    witnesses_text,
    words,
)
from tocsin.schemas.causes import CAUSES
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import ActionKind, Verdict, VerdictState

MAX_TITLE_CHARACTERS: Final = 200
"""Longest title; the rest of it is cut."""
MAX_SUMMARY_CHARACTERS: Final = 1024
"""Longest summary; PagerDuty takes no longer one."""
MAX_SHOWN_EVIDENCE_COUNT: Final = 6
"""Sentences of evidence in a body; the rest are counted."""

_KIND_WORDS: Final = {
    NoticeKind.FIRING: "",
    NoticeKind.CHANGED: "Changed: ",
    NoticeKind.RESOLVED: "Resolved: ",
    NoticeKind.TAKEN_BACK: "Taken back: ",
    NoticeKind.LAPSED: "Lapsed: ",
    NoticeKind.TEST: "Test: ",
    NoticeKind.WATCHDOG: "Watchdog: ",
}
_KIND_SENTENCES: Final = {
    NoticeKind.FIRING: "",
    NoticeKind.CHANGED: "This was told before; what is known of it has changed.",
    NoticeKind.RESOLVED: "It is over.",
    NoticeKind.TAKEN_BACK: "It is taken back: it should not have been told.",
    NoticeKind.LAPSED: "Nobody renewed it, so nothing is known of its end. Look whether the job is well.",
    NoticeKind.TEST: "This is a test. Nothing is wrong, and there is nothing to do.",
    NoticeKind.WATCHDOG: (
        "This alert always fires while tocsin works. There is nothing to do while it comes; if it stays away, tocsin "
        "does not work."
    ),
}
_STATE_WORDS: Final = {
    VerdictState.OPEN: "seen, not confirmed yet",
    VerdictState.CONFIRMED: "confirmed",
    VerdictState.CANCELLED: "cancelled",
    VerdictState.EXPIRED: "expired",
    VerdictState.RESOLVED: "resolved",
}
_SEVERITY_WORDS: Final = {
    AlertSeverity.PAGE: "page",
    AlertSeverity.TICKET: "ticket",
    AlertSeverity.INFORMATION: "information",
}
_WITHOUT_INCIDENT: Final = frozenset({NoticeKind.TEST, NoticeKind.WATCHDOG})


def title_of(notice: Notice) -> str:
    """Return a notice on one line: ``Taken back: host n3 (rank 3) hangs in job job-1: process frozen``."""
    prefix = _KIND_WORDS[notice.kind]
    if notice.kind is NoticeKind.TEST:
        text = f"{prefix}route {one_line(notice.route)} works, nothing is wrong"
    elif notice.kind is NoticeKind.WATCHDOG:
        text = f"{prefix}tocsin works"
    else:
        text = f"{prefix}{_what(notice.verdict)} in job {one_line(notice.verdict.job.job_id)}{_why_in_short(notice)}"
    return cut(text, MAX_TITLE_CHARACTERS)


def summary_text(notice: Notice) -> str:
    """Return a notice as a paragraph of at most ``MAX_SUMMARY_CHARACTERS``: title, time, evidence, what it means."""
    parts = [f"{title_of(notice)}."]
    if notice.kind not in _WITHOUT_INCIDENT:
        parts[0] = f"{title_of(notice)}, since {moment_text(notice.verdict.onset_ns)}."
        parts += [_KIND_SENTENCES[notice.kind], *([_ending_reason(notice.verdict)] if notice.is_ending else [])]
        if not notice.is_ending and notice.verdict.evidence:
            parts.append(f"{_capital(evidence_text(notice.verdict.evidence[0]).rstrip('.'))}.")
    else:
        parts.append(_KIND_SENTENCES[notice.kind])
    parts.append(one_line(notice.note))
    return cut(" ".join(part for part in parts if part), MAX_SUMMARY_CHARACTERS)


def body_of(notice: Notice) -> str:
    """Return a notice in full, as lines of plain text without markup.

    It says what, since when, which machine and ranks, why, how sure, by which evidence, which action is proposed and
    what to do. An ending begins with how it ended; a test says only that it is one.
    """
    head = [title_of(notice), *_present(_KIND_SENTENCES[notice.kind], one_line(notice.note))]
    if notice.kind in _WITHOUT_INCIDENT:
        return "\n".join([*head, f"Route: {one_line(notice.route)}", f"Sent: {moment_text(notice.made_ns)}"])
    verdict = notice.verdict
    if notice.is_ending:
        head += _present(_capital(_ending_reason(verdict)))
    meaning = cause_meaning(verdict.cause)
    lines = [
        ("What", f"{_what(verdict)}: {cause_text(verdict)}" + (f" ({meaning})" if meaning else "")),
        ("Since", moment_text(verdict.onset_ns)),
        *([("Until", moment_text(verdict.detected_ns))] if notice.is_ending else []),
        ("Machine", who_text(verdict)),
        ("Job", job_text(verdict)),
        *([] if notice.is_ending else [("Why", reason_meaning(verdict.reason))]),
        ("How sure", f"{verdict.confidence:.0%}, {_STATE_WORDS[verdict.state]}"),
        ("Seen by", witnesses_text(verdict)),
        *_evidence_lines(verdict),
        *(
            []
            if notice.is_ending
            else [("Proposed action", proposal_text(verdict)), ("What to do", advice_text(verdict))]
        ),
        ("Urgency", _SEVERITY_WORDS[notice.severity]),
        ("Incident", f"{verdict.verdict_id} (tocsin incidents show {verdict.verdict_id})"),
    ]
    return "\n".join([*head, "", *(f"{name}: {value}" if name else f"- {value}" for name, value in lines)])


def proposal_text(verdict: Verdict) -> str:
    """Return the action that a verdict proposes, and where stands what became of it."""
    if verdict.action in {ActionKind.NONE, ActionKind.NOTIFY}:
        return "none"
    return f"{_action(verdict)} (proposed; tocsin actions list says what is done)"


def advice_text(verdict: Verdict) -> str:
    """Return what a person should do about a verdict that stands."""
    machine, job = who_text(verdict), f"job {one_line(verdict.job.job_id)}"
    match verdict.action:
        case ActionKind.EVICT | ActionKind.DRAIN | ActionKind.REPLAY:
            return f"Look at {machine}. If you agree, take it out of the scheduler and let {job} go on without it."
        case ActionKind.RESTART | ActionKind.ROLLBACK:
            where = f" of {machine}" if verdict.suspects else ""
            return (
                f"Look at the logs{where}. If you agree, {_action(verdict)}; no machine needs to be taken away for it."
            )
        case ActionKind.PROBE:
            return f"Check {machine} under load before anything is taken away."
    if verdict.suspects:
        return f"Look at {machine} when you have time; the evidence is not enough to take anything away."
    return f"Nobody is at fault. Look at what the ranks of {job} share."


def reason_meaning(reason: str) -> str:
    """Return what a named reason means, as a sentence; its words if it is not a reason of ``Reason``."""
    try:
        return Reason(reason).meaning
    except ValueError:
        return f"{_capital(words(reason))}."


def job_text(verdict: Verdict) -> str:
    """Return job, attempt and cluster of a verdict: ``job-1, attempt 2, cluster c1``."""
    job = verdict.job
    return f"{one_line(job.job_id)}, attempt {job.attempt}, cluster {one_line(job.cluster)}"


def moment_text(ts_ns: int) -> str:
    """Return a time in UTC to the second: ``2025-10-31 23:59:50 UTC``."""
    return f"{datetime.fromtimestamp(ts_ns // NS_PER_SECOND, UTC):%Y-%m-%d %H:%M:%S} UTC"


def rfc3339(ts_ns: int) -> str:
    """Return a time in UTC to the millisecond as machines read it: ``2025-10-31T23:59:50.000Z``."""
    seconds, rest_ns = divmod(ts_ns, NS_PER_SECOND)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest_ns // 1_000_000:03d}Z"


def cut(text: str, limit: int) -> str:
    """Return a text of at most ``limit`` characters, with an ellipsis where it was longer."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _what(verdict: Verdict) -> str:
    """Return suspects and fault as the begin of a sentence: ``host n3 (rank 3) hangs``."""
    fault = FAULT_WORDS[verdict.fault]
    if not verdict.suspects:
        return f"fault of nobody ({fault})"
    verb = {"slow": "is slow", "degraded": "is degraded"}.get(fault, fault)
    if len(verdict.suspects) > 1:
        verb = {
            "hangs": "hang",
            "is slow": "are slow",
            "is degraded": "are degraded",
            "computes wrongly": "compute wrongly",
        }.get(verb, verb)
    return f"{who_text(verdict)} {verb}"


def _why_in_short(notice: Notice) -> str:
    """Return the cause for the end of a title, for an ending its reason."""
    if notice.is_ending:
        return f" ({words(notice.verdict.reason)})"
    return ": cause unknown" if notice.verdict.cause == "unknown" else f": {words(notice.verdict.cause)}"


def _ending_reason(verdict: Verdict) -> str:
    """Return why an incident ended, as a sentence."""
    return f"Why: {reason_meaning(verdict.reason)}"


def _action(verdict: Verdict) -> str:
    """Return the proposed action and its target; no machine where the cause blames the program."""
    cause = CAUSES.get(verdict.cause)
    names_machine = cause is None or cause.blames == "machine"
    job = f"job {one_line(verdict.job.job_id)}"
    match verdict.action:
        case ActionKind.ROLLBACK:
            return f"roll {job} back to its last checkpoint"
        case ActionKind.RESTART:
            ranks = sorted({rank for suspect in verdict.suspects for rank in suspect.ranks})
            if ranks and len(ranks) <= 8:
                shown = ", ".join(map(str, ranks))
                return f"restart rank{'s' if len(ranks) > 1 else ''} {shown} of {job}"
            return f"restart {job}"
    if names_machine and verdict.suspects:
        return f"{verdict.action.value} {who_text(verdict)}"
    return verdict.action.value


def _evidence_lines(verdict: Verdict) -> Sequence[tuple[str, str]]:
    """Return the heading and the sentences of the evidence; nothing if there is none."""
    if not verdict.evidence:
        return []
    shown = [("", evidence_text(one)) for one in verdict.evidence[:MAX_SHOWN_EVIDENCE_COUNT]]
    more_count = len(verdict.evidence) - len(shown)
    return [("Evidence", ""), *shown, *([("", f"and {more_count} more")] if more_count else [])]


def _present(*texts: str) -> list[str]:
    """Return those texts that are not empty."""
    return [text for text in texts if text]


def _capital(text: str) -> str:
    """Return a text that begins with a capital letter."""
    return text[:1].upper() + text[1:]
