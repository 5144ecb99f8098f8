"""What may happen to a job, in an order that nobody would expect: slices, verdict lines, actions, gaps, restarts."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import strategies as st

from tocsin.pipeline.stores.base import ActionChange
from tocsin.schemas import events
from tocsin.schemas.action_states import ActionState
from tocsin.schemas.records import (
    NS_PER_SECOND,
    Event,
    EventSource,
    JobKey,
    JobRecord,
    RankPlace,
    Severity,
    Slice,
    StepBatch,
    StepRecord,
    Topology,
)
from tocsin.schemas.verdicts import ActionKind, Advice, FaultKind, Verdict, VerdictState

START_NS = 1_700_000_000 * NS_PER_SECOND
NAMES = (
    *(events.HELLO, events.STAGE, events.PHASE, events.STOPPED, events.STALL),
    *(events.EXIT, events.BYE, events.PROCESS_GONE),
)
GAPS = st.one_of(st.integers(1, 40), st.integers(1, 40), st.sampled_from((61, 600, 3_599, 3_600, 3_700, 90_000)))


@dataclass(frozen=True)
class Happening:
    """One second of one attempt.

    Attributes:
        data: its records.
        verdicts: lines of that second.
        change: a change of an action, None = none.
    """

    data: Slice
    verdicts: tuple[Verdict, ...]
    change: ActionChange | None = None


@st.composite
def happenings(draw: st.DrawFn, job: JobKey, *, has_actions: bool = True, most: int = 10) -> list[Happening]:
    """Draw what happens to up to three attempts of a job; the ends of the slices ascend."""
    found: list[Happening] = []
    attempt, second = 0, 0
    for _ in range(draw(st.integers(1, most))):
        second += draw(GAPS)
        attempt = min(2, attempt + draw(st.sampled_from((0, 0, 0, 0, 1))))
        key = replace(job, attempt=draw(st.sampled_from((attempt, attempt, max(0, attempt - 1)))))
        records = (*draw(_events(key, second)), *draw(_steps(key, second)))
        verdicts = tuple(draw(st.lists(_verdicts(key, second), max_size=2)))
        change = draw(st.none() | _changes(key, second)) if has_actions else None
        found.append(Happening(Slice(key, at(second - 1), at(second), records), verdicts, change))
    return found


def at(second: float) -> int:
    """The time of a second of the job."""
    return START_NS + int(second * NS_PER_SECOND)


@st.composite
def _events(draw: st.DrawFn, job: JobKey, second: int) -> list[JobRecord]:
    found: list[JobRecord] = []
    if draw(st.sampled_from((False, False, True))):
        found.append(Topology(job, "n", at(second) - 1, tuple(RankPlace(rank, "n") for rank in range(3))))
    for rank in range(draw(st.integers(0, 3))):
        edge, phase = draw(st.sampled_from(("begin", "end"))), draw(st.sampled_from(("checkpoint", "evaluation")))
        payload = {"edge": edge, "phase": phase, "code": draw(st.integers(0, 1))}
        payload |= {"step": draw(st.integers(-1, 20)), "elapsed_seconds": draw(st.floats(0, 90))}
        ts_ns = at(second) - draw(st.integers(1, NS_PER_SECOND))
        name = draw(st.sampled_from(NAMES))
        found.append(Event(job, "n", ts_ns, rank, EventSource.PROCESS, name, Severity.INFO, payload))
    return found


@st.composite
def _steps(draw: st.DrawFn, job: JobKey, second: int) -> list[JobRecord]:
    rows = [
        StepRecord(at(second) - draw(st.integers(1, 10**9)), rank, draw(st.integers(0, 20)), draw(st.floats(0, 90)))
        for rank in range(draw(st.integers(0, 3)))
    ]
    return [StepBatch(job, "n", at(second) - 1, tuple(rows))] if rows else []


@st.composite
def _verdicts(draw: st.DrawFn, job: JobKey, second: int) -> Verdict:
    onset_ns = at(second - draw(st.integers(0, 60)))
    fault, state = draw(st.sampled_from(FaultKind)), draw(st.sampled_from(VerdictState))
    name, update = f"{draw(st.integers(0, 3))}", draw(st.integers(0, 1))
    action = ActionKind.NONE
    return Verdict(name, job, fault, "unknown", (), onset_ns, at(second), 1.0, action, "", (), state, update, 0)


@st.composite
def _changes(draw: st.DrawFn, job: JobKey, second: int) -> ActionChange:
    kind = draw(st.sampled_from(ActionKind))
    action = Advice("0", 0, job, kind, None, "x", "job", at(second), at(second + 60), dry_run=draw(st.booleans()))
    return ActionChange(action, draw(st.sampled_from(ActionState)), at(second) - draw(st.integers(0, 10**9)), "")
