"""Convert verdicts, evidence, actions and host health to rows of the incident database; no database is used here.

Times are ``TimeNs`` (Unix nanoseconds), so that each database's module can tell them from other numbers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from tocsin.pipeline.stores.base import ActionChange, EvidencePoint, HostHealth, JobStatus
from tocsin.pipeline.stores.opening import VerdictOpening
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.actions import HARD_KINDS
from tocsin.schemas.causes import CAUSES
from tocsin.schemas.records import NS_PER_SECOND, JobKey
from tocsin.schemas.verdicts import (
    ActionKind,
    Advice,
    Component,
    ComponentKind,
    Evidence,
    FaultKind,
    Suspect,
    Verdict,
    VerdictState,
    WitnessKind,
    evidence_ids,
)

Cell = str | int | float | bool | Sequence[str] | Sequence[Sequence[int]]
"""One value of a row."""

Row = Mapping[str, Cell]
"""Column name -> value."""

MAX_NAMED_SUSPECTS = 8
"""Maximum number of suspects (or ranks) named in a sentence; the rest are counted."""
MAX_NAMED_WITNESSES = 3
"""Maximum number of witnesses named in a sentence; the rest are counted."""
MAX_TEXT_CHARACTERS = 1000
"""Maximum length of a sentence of evidence, which may quote a long stderr tail."""

FAULT_WORDS: Mapping[FaultKind, str] = {
    FaultKind.FAIL_STOP: "stopped",
    FaultKind.HANG: "hangs",
    FaultKind.FAIL_SLOW: "slow",
    FaultKind.SILENT_CORRUPTION: "computes wrongly",
    FaultKind.DEGRADED: "degraded",
}
"""Word for each fault in a sentence (and in ``incidents_all.what``)."""


class TimeNs(int):
    """Unix nanoseconds, as a type distinct from other integers."""

    __slots__ = ()


def incident_row(verdict: Verdict, opening: VerdictOpening) -> Row:
    """Return one update of a verdict as a row of ``incidents``.

    Args:
        verdict: the update.
        opening: the verdict's opening; it chooses the partition, and it keeps the detector that raised the alarm.
    """
    line = verdict.to_line()
    ids = evidence_ids(verdict)
    return {
        "verdict_id": verdict.verdict_id,
        "update_number": verdict.update,
        "cluster": verdict.job.cluster,
        "job_id": verdict.job.job_id,
        "attempt": verdict.job.attempt,
        "state": verdict.state.value,
        "fault": verdict.fault.value,
        "cause": verdict.cause,
        "cause_meaning": cause_meaning(verdict.cause),
        "reason": verdict.reason,
        "action": verdict.action.value,
        "confidence": verdict.confidence,
        "suspects": [suspect.component.name for suspect in verdict.suspects],
        "suspect_ranks": [list(suspect.ranks) for suspect in verdict.suspects],
        "suspects_json": to_json(line["suspects"]),
        "common": "" if verdict.common is None else component_text(verdict.common),
        "machine": machine_text(verdict),
        "onset": TimeNs(verdict.onset_ns),
        "opened": TimeNs(opening.opened_ns),
        "detected": TimeNs(verdict.detected_ns),
        "expires": TimeNs(verdict.expires_ns),
        "evidence_json": to_json([{"id": one, **entry} for one, entry in zip(ids, line["evidence"], strict=True)]),
        "evidence_text": [evidence_text(evidence) for evidence in verdict.evidence],
        "summary": summary_of(verdict),
        "detector": opening.detector,
        "model_version": opening.model_version,
    }


def update_row(verdict: Verdict) -> Row:
    """Return one update of a verdict as a row of ``incident_updates``."""
    return {
        "verdict_id": verdict.verdict_id,
        "update_number": verdict.update,
        "cluster": verdict.job.cluster,
        "job_id": verdict.job.job_id,
        "attempt": verdict.job.attempt,
        "state": verdict.state.value,
        "reason": verdict.reason,
        "fault": verdict.fault.value,
        "cause": verdict.cause,
        "machine": machine_text(verdict),
        "action": verdict.action.value,
        "confidence": verdict.confidence,
        "evidence": _telling_sentence(verdict),
        "evidence_ids": list(evidence_ids(verdict)),
        "witnesses": [f"{one_line(one.host)}:{one.kind.value}" for one in verdict.witnesses],
        "detected": TimeNs(verdict.detected_ns),
    }


def _telling_sentence(verdict: Verdict) -> str:
    """Return what the update's reason rests on: who closed it and why, else the strongest evidence; "" for none."""
    by_reason = [one for one in verdict.evidence if one.metric == verdict.reason]
    return next((evidence_text(one) for one in (*by_reason, *verdict.evidence[:1])), "")


def evidence_row(point: EvidencePoint) -> Row:
    """Return one evidence point as a row of ``incident_evidence``."""
    return {
        "verdict_id": point.verdict_id,
        "metric": point.metric,
        "component_kind": point.component.kind.value,
        "component": point.component.name,
        "ts": TimeNs(point.ts_ns),
        "suspect_value": point.suspect_value,
        "peer_median": point.peer_median_value,
        "peer_p05": point.peer_p05_value,
        "peer_p95": point.peer_p95_value,
        "peer_count": point.peer_count,
    }


def action_row(change: ActionChange) -> Row:
    """Return one change of an action as a row of ``actions``."""
    action = change.action
    return {
        "verdict_id": action.verdict_id,
        "update_number": action.verdict_update,
        "cluster": action.job.cluster,
        "job_id": action.job.job_id,
        "attempt": action.job.attempt,
        "kind": action.kind.value,
        "target_kind": "" if action.target is None else action.target.kind.value,
        "target": "" if action.target is None else action.target.name,
        "reason": action.reason,
        "budget": action.budget,
        "issued": TimeNs(action.issued_ns),
        "deadline": TimeNs(action.deadline_ns),
        "state": change.state.value,
        "changed": TimeNs(change.changed_ns),
        "detail": change.detail,
        "dry_run": action.dry_run,
    }


def action_change(row: Mapping[str, Any]) -> ActionChange:
    """Rebuild the change of an action from its row of ``actions``, with times in Unix nanoseconds."""
    kind, target = str(row["target_kind"]), str(row["target"])
    action = Advice(
        verdict_id=str(row["verdict_id"]),
        verdict_update=int(row["update_number"]),
        job=JobKey(str(row["cluster"]), str(row["job_id"]), int(row["attempt"])),
        kind=ActionKind(row["kind"]),
        target=Component(ComponentKind(kind), target) if kind else None,
        reason=str(row["reason"]),
        budget=str(row["budget"]),
        issued_ns=int(row["issued"]),
        deadline_ns=int(row["deadline"]),
        dry_run=bool(row["dry_run"]),
    )
    return ActionChange(action, ActionState(row["state"]), int(row["changed"]), str(row["detail"]))


def host_health_row(minute: HostHealth) -> Row:
    """Return one minute of a host as a row of ``host_health``."""
    seconds = minute.minute_ns // NS_PER_SECOND
    return {
        "cluster": minute.job.cluster,
        "job_id": minute.job.job_id,
        "host": minute.host,
        "minute": seconds - seconds % 60,
        "attempt": minute.job.attempt,
        "samples": minute.sample_count,
        "late": minute.late_count,
        "gaps": minute.gap_count,
        "worst_score": minute.worst_score,
        "worst_metric": minute.worst_metric,
    }


def job_status_row(status: JobStatus) -> Row:
    """Return the state of an attempt as a row of ``job_status``."""
    state = status.state
    return {
        "cluster": status.job.cluster,
        "job_id": status.job.job_id,
        "attempt": status.job.attempt,
        "ts": TimeNs(status.ts_ns),
        "known": status.is_known,
        "ended": bool(state.get("ended")),
        "hosts": int(state.get("host_count", 0)),
        "ranks": int(state.get("rank_count", 0)),
        "stepping_ranks": int(state.get("stepping_rank_count", 0)),
        "max_step": int(state.get("max_step", -1)),
        "abstained": [f"{reason} {count}" for reason, count in sorted(dict(state.get("abstained", {})).items())],
        "open_verdicts": len(state.get("verdicts", ())),
        "status_json": to_json(state, sort=True),
        "models_json": to_json(status.models, sort=True),
    }


def summary_of(verdict: Verdict) -> str:
    """Return a verdict as one sentence: suspects, cause, onset and the first evidence.

    For example ``host n3 (rank 3): process frozen since 03:07:12 UTC; 7 peers wait in all_reduce #41 of group dp0``.
    """
    text = f"{who_text(verdict)}: {cause_text(verdict)} since {clock_text(verdict.onset_ns)}"
    if verdict.evidence:
        text += f"; {evidence_text(verdict.evidence[0]).rstrip('.')}"
    if verdict.costs_ratio is not None:
        text += costs_text(verdict)
    if verdict.action in HARD_KINDS:
        text += f" (seen by {witnesses_text(verdict)})"
    if verdict.state not in {VerdictState.OPEN, VerdictState.CONFIRMED}:
        text += f" ({verdict.state.value}: {words(verdict.reason)})"
    return text


def costs_text(verdict: Verdict) -> str:
    """Return what a slowness costs: ``; costs the job 7.4 % now``, of a closed verdict ``; cost the job 7.4 %``."""
    share = f"the job {100.0 * (verdict.costs_ratio or 0.0):.1f} %"
    is_live = verdict.state in {VerdictState.OPEN, VerdictState.CONFIRMED}
    return f"; costs {share} now" if is_live else f"; cost {share}"


def witnesses_text(verdict: Verdict) -> str:
    """Return the witnesses as a short list: ``its own driver, n01, n02 and 5 more``; ``nobody else``."""
    accused = {suspect.component.name for suspect in verdict.suspects}
    others = [one_line(one.host) for one in verdict.witnesses if one.host not in accused]
    own = {one.kind for one in verdict.witnesses if one.host in accused}
    names = [*(["its own driver"] if WitnessKind.HARDWARE_EVENT in own else []), *others[:MAX_NAMED_WITNESSES]]
    if len(others) > MAX_NAMED_WITNESSES:
        names[-1] += f" and {len(others) - MAX_NAMED_WITNESSES} more"
    return ", ".join(names) or "nobody else"


def cause_text(verdict: Verdict) -> str:
    """Return the cause as words; if it is unknown, the fault and "cause unknown"."""
    if verdict.cause == "unknown":
        return f"{FAULT_WORDS[verdict.fault]}, cause unknown"
    return words(verdict.cause)


def cause_meaning(cause: str) -> str:
    """Return the documented meaning of a cause, "" for an unlisted cause."""
    known = CAUSES.get(cause)
    return "" if known is None else known.meaning


def who_text(verdict: Verdict) -> str:
    """Return the suspects with kinds and ranks: ``hosts n1 (rank 1), n2 behind leaf leaf3``."""
    if not verdict.suspects:
        return "nobody at fault"
    kinds = {suspect.component.kind for suspect in verdict.suspects}
    if len(kinds) > 1:
        return _listed(verdict, [component_text(s.component) + _ranks_text(s) for s in verdict.suspects])
    plural = "s" if len(verdict.suspects) > 1 else ""
    names = [one_line(s.component.name) + _ranks_text(s) for s in verdict.suspects]
    return f"{kinds.pop().value}{plural} {_listed(verdict, names)}"


def machine_text(verdict: Verdict) -> str:
    """Return the suspects' names as short as possible: ``n1, n2 behind leaf leaf3``; ``nobody``."""
    if not verdict.suspects:
        return "nobody"
    return _listed(
        verdict,
        [
            one_line(s.component.name) if s.component.kind is ComponentKind.HOST else component_text(s.component)
            for s in verdict.suspects
        ],
    )


def _listed(verdict: Verdict, names: Sequence[str]) -> str:
    """Join names with commas; add how many more there are beyond the maximum, and the verdict's common component."""
    text = ", ".join(names[:MAX_NAMED_SUSPECTS])
    if len(names) > MAX_NAMED_SUSPECTS:
        text += f" and {len(names) - MAX_NAMED_SUSPECTS} more"
    if verdict.common is not None:
        text += f" behind {component_text(verdict.common)}"
    return text


def _ranks_text(suspect: Suspect) -> str:
    """Return a suspect's ranks in brackets with a leading space, "" if it has none."""
    if not suspect.ranks:
        return ""
    shown = ", ".join(map(str, suspect.ranks[:MAX_NAMED_SUSPECTS]))
    more = ", …" if len(suspect.ranks) > MAX_NAMED_SUSPECTS else ""
    return f" (rank{'s' if len(suspect.ranks) > 1 else ''} {shown}{more})"


def component_text(component: Component) -> str:
    """Return a component's kind and name: ``leaf leaf3``."""
    return f"{component.kind.value} {one_line(component.name)}"


def evidence_text(evidence: Evidence) -> str:
    """Return the sentence of an evidence; built from its numbers if the detector wrote none."""
    if evidence.text:
        return one_line(evidence.text)
    text = f"{evidence.metric} at {evidence.score:.3g} times the alarm line of {evidence.detector}"
    if evidence.suspect_value is not None:
        text += f": {evidence.suspect_value:.6g}"
        if evidence.peer_value is not None:
            text += f", its peers {evidence.peer_value:.6g}"
    return one_line(text)


def clock_text(ts_ns: int) -> str:
    """Return the time of day in UTC of a time in Unix nanoseconds: ``03:07:12 UTC``."""
    return f"{datetime.fromtimestamp(ts_ns // NS_PER_SECOND, UTC):%H:%M:%S} UTC"


def words(name: str) -> str:
    """Return a name with spaces for underscores: ``process_frozen`` -> ``process frozen``."""
    return one_line(name).replace("_", " ")


def one_line(text: str) -> str:
    """Return text on one line without control characters, cut to the maximum length.

    Evidence may quote a training process. Its control characters (colours, cursor moves, line ends) become spaces.
    """
    plain = "".join(character if character.isprintable() else " " for character in text)
    short = " ".join(plain.split())
    return short if len(short) <= MAX_TEXT_CHARACTERS else short[: MAX_TEXT_CHARACTERS - 1] + "…"


def to_json(value: object, *, sort: bool = False) -> str:
    """Return compact JSON; NaN and infinities, which JSON cannot express, become strings.

    Args:
        value: the value.
        sort: whether objects are written with their keys ascending, so that equal values give equal texts.
    """
    return json.dumps(_finite(value), ensure_ascii=False, separators=(",", ":"), sort_keys=sort)


def _finite(value: object) -> object:
    """Return a JSON-able value with its NaNs and infinities replaced by strings, at any depth."""
    match value:
        case float() if not math.isfinite(value):
            return str(value)
        case Mapping():
            return {key: _finite(item) for key, item in value.items()}
        case list() | tuple():
            return [_finite(item) for item in value]
    return value
