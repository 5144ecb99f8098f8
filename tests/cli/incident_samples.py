"""A database with one incident that has a history, witnesses, actions, series, and a neighbour that was freed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tests.pipeline.stores.samples import JOB, ONSET, SECOND, WAITING, verdict
from tocsin.pipeline.incidents.proposals import changes_of, standing_after
from tocsin.pipeline.stores.base import EvidencePoint
from tocsin.pipeline.stores.chdb_store import ChdbStore
from tocsin.schemas.covers import Cover
from tocsin.schemas.operator_notes import Feedback
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
    Witness,
    WitnessKind,
)

FAR_NS = 7_000_000_000 * SECOND
EVIL = "n3\x1b[2J<script>alert(1)</script>"
_SLOW = Evidence("steps", "own_seconds", 4.0, ONSET, ONSET + SECOND, f"rank 3 on {EVIL} is slow", 0.4, 0.2)


def _host(name: str, *ranks: int) -> tuple[Suspect, ...]:
    return (Suspect(Component(ComponentKind.HOST, name), ranks),)


def lines() -> list[Verdict]:
    """The lines of the incident and of its neighbour, in their order."""
    witnesses = (Witness("n3", WitnessKind.HARDWARE_EVENT), *(Witness(f"n{at}", WitnessKind.STEPS) for at in (1, 2)))
    first = verdict(
        "story",
        fault=FaultKind.FAIL_SLOW,
        cause="unknown",
        action=ActionKind.PROBE,
        reason="same_rank_slowest_every_window",
        evidence=(_SLOW,),
        expires_ns=FAR_NS,
    )
    named = replace(first, update=1, cause="thermal_throttle", detected_ns=first.detected_ns + 9 * SECOND)
    named = replace(named, state=VerdictState.CONFIRMED, witnesses=witnesses, confidence=0.93)
    hard = replace(named, update=2, action=ActionKind.DRAIN, detected_ns=first.detected_ns + 40 * SECOND)
    renewed = replace(hard, update=3, reason="still_true", detected_ns=first.detected_ns + 600 * SECOND)
    other = verdict("other", suspects=_host("n5"), fault=FaultKind.FAIL_SLOW, cause="unknown", evidence=(WAITING,))
    freed = replace(other, update=1, state=VerdictState.CANCELLED, reason="works_harder", action=ActionKind.NONE)
    return [first, other, named, freed, hard, renewed]


def _points() -> Iterator[EvidencePoint]:
    component = Component(ComponentKind.HOST, EVIL)
    for second in range(-60, 60):
        value = 0.4 if second > 0 else float("nan") if second == -5 else 0.2
        yield EvidencePoint("story", "own_seconds", component, ONSET + second * SECOND, value, 0.2, 0.19, 0.21, 7)


def fill(folder: Path) -> None:
    """Write the samples into the database of a data folder."""
    store = ChdbStore(folder / "chdb")
    store.migrate()
    store.write_verdicts(lines())
    before: tuple[Advice, ...] = ()
    for line in (one for one in lines() if one.verdict_id == "story"):
        store.write_actions(list(changes_of(line, before)))
        before = standing_after(line, before)
    store.write_evidence(list(_points()))
    said = Feedback(JOB.cluster, "story", is_true=False, note="not yet", actor="uid:1000", ts_ns=ONSET)
    store.write_notes([said, replace(said, is_true=True, note="the fan was \x1b[31mdead", ts_ns=ONSET + SECOND)])
    store.write_covers([Cover(JOB.cluster, "other", "story", ONSET)])
    store.close()


if __name__ == "__main__":
    fill(Path(sys.argv[1]))
