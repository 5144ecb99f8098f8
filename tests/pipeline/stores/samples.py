"""Verdicts to write."""

from dataclasses import replace
from typing import Any

from tocsin.schemas.records import JobKey
from tocsin.schemas.verdicts import (
    ActionKind,
    Component,
    ComponentKind,
    Evidence,
    FaultKind,
    Suspect,
    Verdict,
    VerdictState,
)

SECOND = 1_000_000_000
# 2025-10-31 23:59:50 UTC: an update half a minute later falls into the next month.
ONSET = 1_761_955_190 * SECOND
JOB = JobKey("c1", "job-1", 2)
WAITING = Evidence("hang", "group dp0", 3.5, ONSET, ONSET + SECOND, "7 peers wait in all_reduce #41 of group dp0")


def verdict(verdict_id: str, update: int = 0, **changes: Any) -> Verdict:
    base = Verdict(
        verdict_id=verdict_id,
        job=JOB,
        fault=FaultKind.HANG,
        cause="process_frozen",
        suspects=(Suspect(Component(ComponentKind.HOST, "n3"), (3,)),),
        onset_ns=ONSET,
        detected_ns=ONSET + (5 + 30 * update) * SECOND,
        confidence=0.5 + 0.1 * update,
        action=ActionKind.RESTART,
        reason="process_stopped_peers_wait",
        evidence=(WAITING,),
        state=VerdictState.OPEN,
        update=update,
        expires_ns=ONSET + 600 * SECOND,
    )
    return replace(base, **changes)
