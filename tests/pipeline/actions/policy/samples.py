"""Verdicts, events and files for tests of the policy."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tocsin.pipeline.actions.policy.ladder import PolicyLadder
from tocsin.pipeline.actions.policy.policy_file import load_policy
from tocsin.schemas.kinds import EventSource, Severity
from tocsin.schemas.records import NS_PER_SECOND, Event, JobKey
from tocsin.schemas.verdicts import (
    ActionKind,
    Component,
    ComponentKind,
    Evidence,
    FaultKind,
    Suspect,
    Verdict,
    VerdictState,
    Witness,
    WitnessKind,
)

START_NS = 1_790_000_000 * NS_PER_SECOND
JOB = JobKey("default", "j1", 0)
A = ActionKind
_SEEN = (WitnessKind.PEERS_WAIT, WitnessKind.PEERS_WAIT, WitnessKind.PEERS_WAIT)


def at(seconds: float) -> int:
    """Return a time of the tests."""
    return START_NS + int(seconds * NS_PER_SECOND)


def host(name: str) -> Component:
    """Return a host."""
    return Component(ComponentKind.HOST, name)


def seen(metric: str, text: str = "", detector: str = "hardware") -> Evidence:
    """Return a piece of evidence."""
    return Evidence(detector, metric, 2.0, at(0), at(0), text)


def verdict(
    cause: str = "gpu_card_drop", hosts: Iterable[str] = ("n1",), seconds: float = 0.0, **changes: Any
) -> Verdict:
    """Return a confirmed verdict that proposes an eviction, with witnesses; ``changes`` are fields of it."""
    name = changes.pop("name", None) or f"{cause}-{'-'.join(hosts)}-{seconds:g}"
    fault = changes.pop("fault", FaultKind.FAIL_STOP)
    suspects = tuple(Suspect(host(one)) for one in hosts)
    own = [Witness(one, WitnessKind.HARDWARE_EVENT) for one in hosts]
    others = [Witness(f"w{index}", kind) for index, kind in enumerate(_SEEN)]
    base = Verdict(
        verdict_id=name,
        job=JOB,
        fault=fault,
        cause=cause,
        suspects=suspects,
        onset_ns=at(seconds),
        detected_ns=at(seconds + 2),
        confidence=0.95,
        action=A.EVICT,
        reason="hardware_event",
        evidence=(seen("steps", detector="waits"),),
        state=VerdictState.CONFIRMED,
        update=0,
        expires_ns=at(seconds + 602),
        witnesses=(*own, *others),
    )
    return replace(base, **changes)


def event(name: str, payload: Mapping[str, Any], seconds: float = 0.0, on: str = "n1") -> Event:
    """Return an event of a host."""
    return Event(JOB, on, at(seconds), -1, EventSource.KERNEL, name, Severity.ERROR, payload)


def ladder(path: Path | None = None) -> PolicyLadder:
    """Return a ladder of a policy file; None: of the one that ships."""
    return PolicyLadder(load_policy() if path is None else load_policy(path))


def asked(of: PolicyLadder, one: Verdict) -> list[tuple[str, str, str]]:
    """Return what a ladder asks for about a verdict: (kind, target, rule or reason) each."""
    return [
        (each.kind.value, "" if each.component is None else each.component.name, each.rule)
        for each in of.on_verdict(one, one.detected_ns)
    ]


def write_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> Path:
    """Write objects as lines of JSON, and return the file."""
    path.write_text("".join(json.dumps(one) + "\n" for one in lines))
    return path


def event_line(one: Event) -> dict[str, Any]:
    """Return an event as a line with the columns of the recording format."""
    return {
        "ts_ns": one.ts_ns,
        "host": one.host,
        "rank": one.rank,
        "source": one.source.value,
        "name": one.name,
        "severity": one.severity.value,
        "payload": json.dumps(one.payload),
    }
