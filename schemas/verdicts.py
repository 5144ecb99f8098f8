"""The output of the operators: anomalies, verdicts, advice.

``Verdict.to_line`` is the line of ``verdicts.jsonl``. It is a contract (recording format), which outside programs
read to the letter.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from tocsin.schemas.records import JobKey


class ComponentKind(StrEnum):
    """Kind of a component that can be at fault."""

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
    """A component that can be at fault, addressed by kind and name.

    Attributes:
        kind: kind of the component.
        name: its name, unique among its kind in a job.
    """

    kind: ComponentKind
    name: str


class FaultKind(StrEnum):
    """Kind of a fault, by its effect on the job."""

    FAIL_STOP = "fail_stop"
    HANG = "hang"
    FAIL_SLOW = "fail_slow"
    SILENT_CORRUPTION = "silent_corruption"
    DEGRADED = "degraded"


class VerdictState(StrEnum):
    """State in the life of a verdict."""

    OPEN = "open"
    CONFIRMED = "confirmed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    RESOLVED = "resolved"


class ActionKind(StrEnum):
    """What can be done about a verdict, roughly from mild to hard."""

    NONE = "none"
    NOTIFY = "notify"
    PROBE = "probe"
    RESTART = "restart"
    DRAIN = "drain"
    EVICT = "evict"
    REPLAY = "replay"
    ROLLBACK = "rollback"
    RESET_GPU = "reset_gpu"
    REBOOT = "reboot"


@dataclass(frozen=True, slots=True)
class Suspect:
    """A component that the evidence singles out.

    Attributes:
        component: usually a host; a rank where the topology names no hosts.
        ranks: ranks on it that the evidence singles out, ascending; empty for the whole host.
    """

    component: Component
    ranks: tuple[int, ...] = ()


class WitnessKind(StrEnum):
    """Observation of a host about a fault of another host (for ``hardware_event`` and ``check``, of its own)."""

    HARDWARE_EVENT = "hardware_event"
    """Its own driver or kernel reports that a part of it broke."""
    PEERS_WAIT = "peers_wait"
    """Its ranks wait for exactly the suspect's ranks, or its machine waits since the onset."""
    CONNECTION_LOST = "connection_lost"
    """Its ranks lost their connection to the suspect's. For the suspect itself: its agent fell silent."""
    CHECK = "check"
    """A check under load failed on it."""
    STEPS = "steps"
    """Its steps are longer since the onset, or end no more."""


@dataclass(frozen=True, slots=True, order=True)
class Witness:
    """A host that saw the fault of a verdict, listed once with its most conclusive observation.

    Attributes:
        host: name of the host.
        kind: what it saw.
    """

    host: str
    kind: WitnessKind


MAX_WITNESSES = 16
"""Most witnesses that a verdict lists: the suspects' own first (at most two fewer), then others, both by name."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One piece of evidence for a verdict.

    Attributes:
        detector: name of the detector.
        metric: what was measured: a metric column, a step phase, an event name, a group.
        score: at least 0, high is bad, 1.0 is the detector's alarm line.
        start_ns: begin of the span.
        end_ns: end of the span.
        text: one sentence for people.
        suspect_value: value of the suspect in the metric's unit, None if it is no number.
        peer_value: median of the peers in the metric's unit, None without peers.
        model_version: version of the model that the detector used, "" for none. The recording format leaves it out.
    """

    detector: str
    metric: str
    score: float
    start_ns: int
    end_ns: int
    text: str = ""
    suspect_value: float | None = None
    peer_value: float | None = None
    model_version: str = ""


@dataclass(frozen=True, slots=True)
class Anomaly:
    """A span in which a component was unlike its peers or its past.

    Attributes:
        job: the job of the component.
        slice_end_ns: end of the slice that completed the anomaly.
        component: the component that deviates.
        metric: the metric in which it deviates.
        start_ns: begin of the span.
        end_ns: end of the span.
        score: at least 0, high is bad, 1.0 is the detector's alarm line.
        detector: name of the detector.
        model_version: version of the detector's model, "" for none.
        detail: numbers and names for the diagnosis (JSON values only).
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
    """A decision: which components are at fault, why, and what to do.

    ``verdict_id`` is fixed at opening (``verdict_id_of``) and kept in state; fault, suspects, cause and onset may
    change in updates.

    Attributes:
        verdict_id: stable id.
        job: the job concerned.
        fault: kind of the fault.
        cause: a word of ``tocsin.schemas.causes``.
        suspects: components that the evidence singles out; empty for none.
        onset_ns: begin of the fault.
        detected_ns: stream time of this update: end of the slice that completed it.
        confidence: 0 to 1.
        action: proposed action.
        reason: named reason of the decision (``tocsin.schemas.reasons``).
        evidence: evidence, strongest first.
        state: state in the verdict's life.
        update: number of the update, from 0.
        expires_ns: time after which its action must not be executed.
        common: component that several suspects share, None for none.
        witnesses: hosts that saw it, at most ``MAX_WITNESSES``; empty if only the suspects did.
        costs_ratio: share of the job's step time that a slowness costs by its newest steps, 0 to 1; None: unknown.
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
    costs_ratio: float | None = None

    def to_line(self) -> dict[str, Any]:
        """Return the JSON object of ``verdicts.jsonl``, keys in the contract's order."""
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
        if self.costs_ratio is not None:
            line["costs_ratio"] = round(self.costs_ratio, 4)
        return line


def suspect_object(suspect: Suspect) -> dict[str, Any]:
    """Return the JSON object of a suspect with all its fields."""
    found: dict[str, Any] = {"kind": suspect.component.kind.value, "name": suspect.component.name}
    if suspect.ranks:
        found["ranks"] = list(suspect.ranks)
    return found


def _suspect_line(suspect: Suspect) -> dict[str, Any]:
    """Return the JSON object of a suspect as the recording format has it: without ``ranks`` for a rank."""
    line = suspect_object(suspect)
    if suspect.component.kind is ComponentKind.RANK:
        line.pop("ranks", None)
    return line


def _evidence_line(evidence: Evidence) -> dict[str, Any]:
    """Return the JSON object of an evidence in ``verdicts.jsonl``; unset fields are left out."""
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
    """Return the id of a verdict at its opening, a hash of its first content.

    Args:
        job: cluster, job and attempt.
        suspects: suspects at opening.
        fault: fault at opening.
        onset_ns: onset at opening.

    Returns:
        16 hexadecimal digits.
    """
    names = ",".join(sorted(f"{s.component.kind.value}={s.component.name}:{list(s.ranks)}" for s in suspects))
    text = "\n".join((job.cluster, job.job_id, str(job.attempt), names, fault.value, str(onset_ns)))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def evidence_ids(verdict: Verdict) -> tuple[str, ...]:
    """Return a stable id for each piece of a verdict's evidence, in its order: 16 hexadecimal digits each.

    An id is a hash of job, suspects, detector, metric and begin. So it stays in later updates, while score, end and
    sentence go on. Pieces that have all of these in common are told apart by their order.
    """
    names = ",".join(sorted(f"{s.component.kind.value}={s.component.name}" for s in verdict.suspects))
    seen: dict[str, int] = {}
    found = []
    for one in verdict.evidence:
        parts = (verdict.job.cluster, verdict.job.job_id, names, one.detector, one.metric, str(one.start_ns))
        text = "\n".join(parts)
        seen[text] = seen.get(text, -1) + 1
        found.append(hashlib.sha256(f"{text}\n{seen[text]}".encode()).hexdigest()[:16])
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Advice:
    """An action as an engine proposes it: a row for people. What is executed is ``tocsin.schemas.actions.Action``.

    Attributes:
        verdict_id: id of the verdict.
        verdict_update: update number of the verdict; a later update replaces the action.
        job: the job concerned.
        kind: what to do.
        target: component to act on, None for the whole job.
        reason: named reason of the verdict.
        budget: budget class that the action is counted in.
        issued_ns: time when it was proposed.
        deadline_ns: time after which it must not be executed.
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
