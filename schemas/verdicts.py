"""What the operators say: anomalies, verdicts, actions.

``Verdict.to_line`` is the line of ``verdicts.jsonl``: a contract (recording format),
outside programs read it to the letter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tocsin.schemas.records import JobKey


class ComponentKind(StrEnum):
    """What can be to blame."""

    JOB = "job"
    RANK = "rank"
    GPU = "gpu"
    NIC = "nic"
    HOST = "host"
    LEAF = "leaf"
    MINIPOD = "minipod"
    GROUP = "group"
    LOADER = "loader"
    SERVICE = "service"


@dataclass(frozen=True, slots=True, order=True)
class Component:
    """The address of what can be to blame.

    Attributes:
        kind: what it is.
        name: its name, unique among its kind in a job.
    """

    kind: ComponentKind
    name: str


class FaultKind(StrEnum):
    """What is wrong, seen from the job."""

    FAIL_STOP = "fail_stop"
    HANG = "hang"
    FAIL_SLOW = "fail_slow"
    SILENT_CORRUPTION = "silent_corruption"
    DEGRADED = "degraded"


class VerdictState(StrEnum):
    """Life of a verdict."""

    OPEN = "open"
    CONFIRMED = "confirmed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    RESOLVED = "resolved"


class ActionKind(StrEnum):
    """What the scheduler is asked to do, from mild to hard."""

    NONE = "none"
    NOTIFY = "notify"
    PROBE = "probe"
    RESTART = "restart"
    DRAIN = "drain"
    EVICT = "evict"
    REPLAY = "replay"
    ROLLBACK = "rollback"


@dataclass(frozen=True, slots=True)
class Suspect:
    """A component that the evidence singles out.

    Attributes:
        component: usually a host; a rank where the topology names no hosts.
        ranks: the ranks on it that the evidence singles out, ascending; () = the whole host.
    """

    component: Component
    ranks: tuple[int, ...] = ()


class WitnessKind(StrEnum):
    """How a host saw that another one (or, of ``hardware_event`` and ``check``, it itself) is at fault."""

    HARDWARE_EVENT = "hardware_event"
    """Its own driver or kernel says that a part of it broke."""
    PEERS_WAIT = "peers_wait"
    """Its ranks wait for exactly the suspect's ranks, or its machine waits since then."""
    CONNECTION_LOST = "connection_lost"
    """Its ranks lost their connection to the suspect's; of the suspect itself: its agent fell silent."""
    CHECK = "check"
    """A check under load failed on it."""
    STEPS = "steps"
    """Its steps are longer since then, or end no more."""


@dataclass(frozen=True, slots=True, order=True)
class Witness:
    """Who saw what a verdict says: one host, once, by the most telling thing that it saw.

    Attributes:
        host: its name.
        kind: what it saw.
    """

    host: str
    kind: WitnessKind


MAX_WITNESSES = 16
"""A verdict lists so many: the suspects' own first (two fewer), then others, both by name."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One reason to believe a verdict.

    Attributes:
        detector: who says it.
        metric: what it is about: a metric column, a step phase, an event name, a group.
        score: >= 0, high is bad, 1.0 is that detector's alarm line.
        start_ns: begin of the span.
        end_ns: end of the span.
        text: one sentence for a human.
        suspect_value: the suspect's value in the metric's unit, None: not a number.
        peer_value: the peers' median in the metric's unit, None: no peers.
    """

    detector: str
    metric: str
    score: float
    start_ns: int
    end_ns: int
    text: str = ""
    suspect_value: float | None = None
    peer_value: float | None = None


@dataclass(frozen=True, slots=True)
class Anomaly:
    """A component looked unlike its peers or its past over a span.

    Attributes:
        job: whose.
        slice_end_ns: end of the slice that completed it.
        component: who deviates.
        metric: in what.
        start_ns: begin of the span.
        end_ns: end of the span.
        score: >= 0, high is bad, 1.0 is that detector's alarm line.
        detector: who says it.
        model_version: version of the model, "" = none.
        detail: numbers and names that diagnose uses (JSON values only).
    """

    job: JobKey
    slice_end_ns: int
    component: Component
    metric: str
    start_ns: int
    end_ns: int
    score: float
    detector: str
    model_version: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Who is at fault, why, and what to do.

    ``verdict_id`` is fixed at opening (``verdict_id_of``) and kept in state; fault,
    suspects, cause and onset may change in updates.

    Attributes:
        verdict_id: stable id.
        job: whose.
        fault: what is wrong.
        cause: a word of ``tocsin.schemas.causes``.
        suspects: whom the evidence singles out; () = nobody.
        onset_ns: when the fault began.
        detected_ns: stream time: end of the slice that completed this line.
        confidence: 0 to 1.
        action: what is proposed.
        reason: the named reason of the decision (``tocsin.schemas.reasons``).
        evidence: strongest first.
        state: open, confirmed, cancelled, expired, resolved.
        update: counts from 0.
        expires_ns: an action proposed by it must not be executed after this.
        common: the component that several suspects share, None: none.
        witnesses: who saw it, at most ``MAX_WITNESSES``; (): nobody but the suspects.
    """

    verdict_id: str
    job: JobKey
    fault: FaultKind
    cause: str
    suspects: tuple[Suspect, ...]
    onset_ns: int
    detected_ns: int
    confidence: float
    action: ActionKind
    reason: str
    evidence: tuple[Evidence, ...]
    state: VerdictState
    update: int
    expires_ns: int
    common: Component | None = None
    witnesses: tuple[Witness, ...] = ()

    def to_line(self) -> dict[str, Any]:
        """The object of ``verdicts.jsonl``, keys in the contract's order."""
        line: dict[str, Any] = {
            "id": self.verdict_id,
            "job_id": self.job.job_id,
            "fault": self.fault.value,
            "cause": self.cause,
            "suspects": [_suspect_line(s) for s in self.suspects],
            "onset_ns": self.onset_ns,
            "detected_ns": self.detected_ns,
            "confidence": round(self.confidence, 4),
            "action": self.action.value,
            "reason": self.reason,
            "evidence": [_evidence_line(e) for e in self.evidence],
            "state": self.state.value,
            "update": self.update,
        }
        if self.common is not None:
            line["common"] = {"kind": self.common.kind.value, "name": self.common.name}
        if self.witnesses:
            line["witnesses"] = [{"host": one.host, "kind": one.kind.value} for one in self.witnesses]
        return line


def suspect_object(suspect: Suspect) -> dict[str, Any]:
    """All of a suspect."""
    found: dict[str, Any] = {"kind": suspect.component.kind.value, "name": suspect.component.name}
    if suspect.ranks:
        found["ranks"] = list(suspect.ranks)
    return found


def _suspect_line(suspect: Suspect) -> dict[str, Any]:
    """As the recording format says: a rank's name says which rank."""
    line = suspect_object(suspect)
    if suspect.component.kind is ComponentKind.RANK:
        line.pop("ranks", None)
    return line


def _evidence_line(evidence: Evidence) -> dict[str, Any]:
    line: dict[str, Any] = {
        "detector": evidence.detector,
        "metric": evidence.metric,
        "score": round(evidence.score, 4),
        "start_ns": evidence.start_ns,
        "end_ns": evidence.end_ns,
    }
    if evidence.text:
        line["text"] = evidence.text
    if evidence.suspect_value is not None:
        line["suspect_value"] = evidence.suspect_value
    if evidence.peer_value is not None:
        line["peer_value"] = evidence.peer_value
    return line


def verdict_id_of(job: JobKey, suspects: tuple[Suspect, ...], fault: FaultKind, onset_ns: int) -> str:
    """The id of a verdict that opens now.

    Args:
        job: cluster, job and attempt.
        suspects: the first suspects.
        fault: the first fault.
        onset_ns: the first onset.

    Returns:
        16 hexadecimal digits.
    """
    names = ",".join(sorted(f"{s.component.kind.value}={s.component.name}:{list(s.ranks)}" for s in suspects))
    text = "\n".join((job.cluster, job.job_id, str(job.attempt), names, fault.value, str(onset_ns)))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Action:
    """What the scheduler is asked to do.

    Attributes:
        verdict_id: the verdict that asks.
        verdict_update: its update number: a later update replaces the action.
        job: whose.
        kind: what to do.
        target: with whom; None for the whole job.
        reason: the named reason.
        budget: budget class that it draws from.
        issued_ns: when it was proposed.
        deadline_ns: must not be executed after this.
        dry_run: True: shown, not executed.
    """

    verdict_id: str
    verdict_update: int
    job: JobKey
    kind: ActionKind
    target: Component | None
    reason: str
    budget: str
    issued_ns: int
    deadline_ns: int
    dry_run: bool = True
