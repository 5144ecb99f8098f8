"""One recording under several detector sets: what each says, and what that is worth."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from tocsin.pipeline.lab.backtest.runner import Opinion, Runner
from tocsin.pipeline.recording.score import (
    FolderScore,
    accusations_of,
    host_count_of,
    machine_days_of,
    score_lines,
)
from tocsin.pipeline.recording.tables import Recording
from tocsin.schemas.reasons import Reason

Worth = Literal["hit", "again", "false", "unscored"]
"""``again``: a further verdict on a fault that was hit; ``unscored``: nobody knows the truth."""


@dataclass(frozen=True, slots=True)
class TrialAccusation:
    """One verdict that accuses somebody.

    Attributes:
        suspects: names.
        detected_ns: when they were first named.
        onset_ns: since when, by the verdict's own opinion.
        cause: what it calls it.
        why: the named reason, "" = the detector names none.
        metrics: what convicted.
        worth: what the truth says to it.
        delay_seconds: of a hit, from the fault's onset; else None.
    """

    suspects: tuple[str, ...]
    detected_ns: int
    onset_ns: int
    cause: str
    why: str
    metrics: tuple[str, ...]
    worth: Worth
    delay_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class TrialAnswer:
    """One set's answer.

    Attributes:
        name: the set.
        accusations: in order of time.
        score: against the truth, None: there is none.
        reason: why the set could not judge, None: it could.
    """

    name: str
    accusations: tuple[TrialAccusation, ...]
    score: FolderScore | None
    reason: Reason | None = None

    @property
    def missed_count(self) -> int:
        """Faults that it did not find."""
        return 0 if self.score is None else sum(fault.delay_seconds is None for fault in self.score.faults)

    @property
    def false_count(self) -> int:
        """Accusations that hit no fault."""
        return 0 if self.score is None else self.score.false_count


@dataclass(frozen=True, slots=True)
class Trial:
    """What became of one recording.

    Attributes:
        job_id: whose.
        start_ns: its begin.
        end_ns: its end.
        host_count: machines.
        faults: the truth, None: nobody knows.
        told: a set's answer each, in the order of the sets.
    """

    job_id: str
    start_ns: int
    end_ns: int
    host_count: int
    faults: tuple[Mapping[str, Any], ...] | None
    told: tuple[TrialAnswer, ...]


def fault_name(fault: Mapping[str, Any]) -> str:
    """What the tables call it."""
    return str(fault.get("cause") or fault.get("kind") or "fault")


def judge(recording: Recording, runners: Iterable[Runner]) -> Trial:
    """Let every set judge a recording, and score them as ``tocsin score`` does."""
    truth, manifest = recording.truth, recording.manifest
    faults = None if truth is None else tuple(truth["faults"])
    days = machine_days_of(recording)
    told = tuple(_told(runner.name, runner.judge(recording), faults, days) for runner in runners)
    return Trial(manifest.job_id, manifest.start_ns, manifest.end_ns, host_count_of(recording), faults, told)


def _told(name: str, opinion: Opinion, faults: Sequence[Mapping[str, Any]] | None, machine_days: float) -> TrialAnswer:
    score = None if faults is None else score_lines(opinion.lines, faults, machine_days)
    found = tuple(_accusation(at_ns, last, score) for at_ns, last in accusations_of(opinion.lines))
    small = None if score is None else replace(score, false_lines=())  # they are long, and cross to another process
    return TrialAnswer(name, found, small, opinion.reason)


def _accusation(detected_ns: int, last: Mapping[str, Any], score: FolderScore | None) -> TrialAccusation:
    hits = {fault.verdict_id: fault.delay_seconds for fault in score.faults} if score else {}
    own = str(last["id"])
    return TrialAccusation(
        suspects=tuple(str(suspect["name"]) for suspect in last["suspects"]),
        detected_ns=detected_ns,
        onset_ns=int(last.get("onset_ns", detected_ns)),
        cause=str(last.get("cause", "")),
        why=str(last.get("reason", "")),
        metrics=_metrics(last),
        worth=_worth(own, score),
        delay_seconds=hits.get(own),
    )


def _metrics(line: Mapping[str, Any]) -> tuple[str, ...]:
    named = [str(one.get("metric", "")) for one in line.get("evidence", ())] + [str(line.get("metric", ""))]
    return tuple(dict.fromkeys(name for name in named if name))


def _worth(verdict_id: str, score: FolderScore | None) -> Worth:
    if score is None:
        return "unscored"
    if any(str(line["id"]) == verdict_id for line in score.false_lines):
        return "false"
    return "hit" if any(fault.verdict_id == verdict_id for fault in score.faults) else "again"
