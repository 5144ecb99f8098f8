"""Replays verdicts and events through a judge, and yields every decision.

The replay stands for a cluster in which dry-run is off, every action that may be done is done at once, and nobody
approves anything.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from tocsin.schemas.records import Event
from tocsin.schemas.verdicts import ActionKind, Component, Verdict


class DecisionOutcome(StrEnum):
    """What becomes of a proposal."""

    ACT = "act"
    """It is done."""
    WAIT_APPROVAL = "wait_approval"
    """It waits for a person."""
    REFUSED = "refused"
    """A guard refuses it."""
    NOTIFY = "notify"
    """People are told, and nothing else is done."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided about one proposal.

    Attributes:
        at_ns: when.
        verdict_id: id of the verdict, "" where none tells of it.
        job_id: the job.
        target: what it is about, None for the whole job.
        kind: what was proposed.
        outcome: what becomes of it.
        by: name of the rule or of the guard that decided.
    """

    at_ns: int
    verdict_id: str
    job_id: str
    target: Component | None
    kind: ActionKind
    outcome: DecisionOutcome
    by: str

    def to_line(self) -> dict[str, object]:
        """Return the JSON object that ``tocsin policy replay`` prints; the job is the target where nothing else is."""
        return {
            "at_ns": self.at_ns,
            "verdict_id": self.verdict_id,
            "target": self.job_id if self.target is None else self.target.name,
            "kind": self.kind.value,
            "outcome": self.outcome.value,
            "by": self.by,
        }


class Judge(Protocol):
    """What decides about verdicts: a ladder with its guards."""

    def on_verdict(self, verdict: Verdict, now_ns: int) -> Sequence[Decision]:
        """Return the decisions that an update of a verdict leads to; what was decided before is not repeated."""
        ...

    def on_event(self, event: Event, now_ns: int) -> Sequence[Decision]:
        """Return the decisions that an event leads to."""
        ...

    def on_time(self, now_ns: int) -> Sequence[Decision]:
        """Return the decisions that the passing of time leads to."""
        ...

    def end(self) -> Sequence[Decision]:
        """Return the decisions that are due soon after the last record."""
        ...


def replay(verdicts: Iterable[Verdict], events: Iterable[Event], judge: Judge) -> Iterator[Decision]:
    """Yield the decisions about verdicts and events, in order of time.

    Of one time the events come first: a verdict rests on what was seen before it.

    Args:
        verdicts: updates in order of ``detected_ns``.
        events: events in order of ``ts_ns``.
        judge: what decides.
    """
    now_ns = 0
    records: Iterator[tuple[int, int, Verdict | Event]] = heapq.merge(
        ((one.ts_ns, 0, one) for one in events),
        ((one.detected_ns, 1, one) for one in verdicts),
        key=lambda entry: entry[:2],
    )
    for at_ns, _, record in records:
        if at_ns > now_ns:
            now_ns = at_ns
            yield from judge.on_time(now_ns)
        yield from judge.on_event(record, now_ns) if isinstance(record, Event) else judge.on_verdict(record, now_ns)
    yield from judge.end()
