"""One recording under several detector sets, with their answers scored against the truth."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from tocsin.pipeline.lab.backtest.people import FeedbackTally, JudgedVerdict, judged_in, tally_of
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
"""Value of an accusation. ``again``: a further verdict on a fault that was already hit. ``unscored``: the truth is
unknown."""


@dataclass(frozen=True, slots=True)
class TrialAccusation:
    """One verdict that accuses somebody, with its value.

    Attributes:
        suspects: names of the accused.
        detected_ns: time when they were first accused.
        onset_ns: begin of the fault according to the verdict.
        cause: cause according to the verdict.
        why: named reason, "" if the detector gives none.
        metrics: metrics behind the accusation.
        worth: value against the truth.
        delay_seconds: time from the fault's onset for a hit, else None.
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
    """One detector set's answer about a recording.

    Attributes:
        name: name of the set.
        accusations: its accusations, in order of time.
        score: score against the truth, None without a truth.
        reason: why the set could not judge the recording, None if it could.
        feedback: how it compares with what people said, None: nobody's words were given.
    """

    name: str
    accusations: tuple[TrialAccusation, ...]
    score: FolderScore | None
    reason: Reason | None = None
    feedback: FeedbackTally | None = None

    @property
    def missed_count(self) -> int:
        """Number of faults that it did not find."""
        return 0 if self.score is None else sum(fault.delay_seconds is None for fault in self.score.faults)

    @property
    def false_count(self) -> int:
        """Number of accusations that hit no fault."""
        return 0 if self.score is None else self.score.false_count


@dataclass(frozen=True, slots=True)
class Trial:
    """All answers about one recording.

    Attributes:
        job_id: job of the recording.
        start_ns: start of the recording.
        end_ns: end of the recording.
        host_count: number of machines.
        faults: the true faults, None if unknown.
        answers: one answer per detector set, in the sets' order.
    """

    job_id: str
    start_ns: int
    end_ns: int
    host_count: int
    faults: tuple[Mapping[str, Any], ...] | None
    answers: tuple[TrialAnswer, ...]


def fault_name(fault: Mapping[str, Any]) -> str:
    """Return a fault's name in tables: its cause, else its kind."""
    return str(fault.get("cause") or fault.get("kind") or "fault")


def judge(recording: Recording, runners: Iterable[Runner], judged: Sequence[JudgedVerdict] | None = None) -> Trial:
    """Let every runner judge a recording, and score the answers as ``tocsin score`` does.

    Args:
        recording: the recording.
        runners: the detector sets.
        judged: verdicts that people judged, of whatever job; None: they are not compared.
    """
    truth, manifest = recording.truth, recording.manifest
    faults = None if truth is None else tuple(truth["faults"])
    days = machine_days_of(recording)
    said = None if judged is None else judged_in(judged, manifest)
    answers = tuple(_scored(runner.name, runner.judge(recording), (faults, days, said)) for runner in runners)
    return Trial(manifest.job_id, manifest.start_ns, manifest.end_ns, host_count_of(recording), faults, answers)


_Known = tuple[Sequence[Mapping[str, Any]] | None, float, Sequence[JudgedVerdict] | None]
"""What is known of a recording: its faults, its machine-days, its judged verdicts."""


def _scored(name: str, opinion: Opinion, known: _Known) -> TrialAnswer:
    """Score one set's answer."""
    faults, machine_days, judged = known
    score = None if faults is None else score_lines(opinion.lines, faults, machine_days)
    found = tuple(_accusation(at_ns, last, score) for at_ns, last in accusations_of(opinion.lines))
    small = None if score is None else replace(score, false_lines=())  # they are long, and cross to another process
    feedback = None if judged is None else tally_of(opinion.lines, judged)
    return TrialAnswer(name, found, small, opinion.reason, feedback)


def _accusation(detected_ns: int, last: Mapping[str, Any], score: FolderScore | None) -> TrialAccusation:
    """Build the accusation of a verdict from its last line and its first time."""
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
    """Return the metrics in a verdict line's evidence, without duplicates."""
    named = [str(one.get("metric", "")) for one in line.get("evidence", ())] + [str(line.get("metric", ""))]
    return tuple(dict.fromkeys(name for name in named if name))


def _worth(verdict_id: str, score: FolderScore | None) -> Worth:
    """Return the value of a verdict against the truth."""
    if score is None:
        return "unscored"
    if any(str(line["id"]) == verdict_id for line in score.false_lines):
        return "false"
    return "hit" if any(fault.verdict_id == verdict_id for fault in score.faults) else "again"
