"""Summary of all cases of a backtest: figures by detector set, as an object, and as an index of the case pages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tocsin.pipeline.lab.backtest.markup import (
    marked,
    page,
    since,
    table,
    text,
)
from tocsin.pipeline.lab.backtest.people import FeedbackTally
from tocsin.pipeline.lab.backtest.trial import Trial, TrialAnswer, fault_name
from tocsin.pipeline.recording.score import Score, add_up, by_kind
from tocsin.schemas.records import NS_PER_SECOND

_SHOWN_NAMES = 4


@dataclass(frozen=True, slots=True)
class CaseRow:
    """One recording of a backtest.

    Attributes:
        folder: folder of the recording.
        trial: its scored answers, None if it could not be read.
        error: why it could not be read, "" if it could.
        page: file name of its page, "" for none.
    """

    folder: str
    trial: Trial | None
    error: str = ""
    page: str = ""


@dataclass(frozen=True, slots=True)
class SetFigures:
    """The figures of one detector set over all cases.

    Attributes:
        name: name of the set.
        total: score over all faults.
        kinds: score by kind of fault.
        causes: score by cause.
        abstained: reason -> number of recordings that the set could not judge; their faults count as missed.
        healthy_false_count: false accusations in recordings without a fault.
        feedback: how it compares with what people said, None: nobody's words were given.
    """

    name: str
    total: Score
    kinds: dict[str, Score]
    causes: dict[str, Score]
    abstained: Counter[str] = field(default_factory=Counter)
    healthy_false_count: int = 0
    feedback: FeedbackTally | None = None

    def to_object(self) -> dict[str, Any]:
        """Return the figures as a JSON object, with the names of ``tocsin score --json`` and the counts not judged."""
        return {
            "all": self.total.to_object(),
            "kinds": {name: score.to_object() for name, score in self.kinds.items()},
            "causes": {name: score.to_object() for name, score in self.causes.items()},
            "not_judged": dict(sorted(self.abstained.items())),
            **({} if self.feedback is None else {"feedback": self.feedback.to_object()}),
        }


def figures_of(trials: Sequence[Trial]) -> list[SetFigures]:
    """Return the figures of each detector set, in the sets' order."""
    names = [answer.name for answer in trials[0].answers] if trials else []
    found = []
    for index, name in enumerate(names):
        answers_of_set = [trial.answers[index] for trial in trials]
        scores = [answer.score for answer in answers_of_set if answer.score is not None]
        total, causes = add_up(scores)
        abstained = Counter(answer.reason.value for answer in answers_of_set if answer.reason is not None)
        healthy = sum(
            answer.false_count for trial, answer in zip(trials, answers_of_set, strict=True) if not trial.faults
        )
        tallies = [answer.feedback for answer in answers_of_set if answer.feedback is not None]
        feedback = sum(tallies, FeedbackTally()) if tallies else None
        found.append(SetFigures(name, total, by_kind(scores), causes, abstained, healthy, feedback))
    return found


def to_object(cases: Sequence[CaseRow]) -> dict[str, Any]:
    """Return the whole backtest as a JSON object."""
    trials = [case.trial for case in cases if case.trial is not None]
    return {
        "sets": {figures.name: figures.to_object() for figures in figures_of(trials)},
        "cases": [_case_object(case, case.trial) for case in cases if case.trial is not None],
        "unreadable": [{"folder": case.folder, "error": case.error} for case in cases if case.trial is None],
    }


def _case_object(case: CaseRow, trial: Trial) -> dict[str, Any]:
    """Return one case as a JSON object."""
    return {
        "folder": case.folder,
        "page": case.page or None,
        "machines": trial.host_count,
        "faults": None if trial.faults is None else [fault_name(fault) for fault in trial.faults],
        "sets": {answer.name: _answer_object(answer) for answer in trial.answers},
    }


def _answer_object(answer: TrialAnswer) -> dict[str, Any]:
    """Return one set's answer as a JSON object."""
    accusations = [
        {
            "suspects": list(one.suspects),
            "detected_ns": one.detected_ns,
            "cause": one.cause,
            "worth": one.worth,
            "delay_seconds": one.delay_seconds,
        }
        for one in answer.accusations
    ]
    missed = None if answer.score is None else answer.missed_count
    told = {"accusations": accusations, "missed": missed, "not_judged": answer.reason and answer.reason.value}
    return told if answer.feedback is None else {**told, "feedback": answer.feedback.to_object()}


HEAD = ("set", "faults", "hits", "precision", "recall", "F1", "false", "per machine-day", "median s", "90 % s")
"""Headings of the table by detector set."""


def cells(name: str, score: Score) -> tuple[str, ...]:
    """Return a row of the table under ``HEAD``."""
    shares = (score.precision, score.recall, score.f1)
    rate, middle, late = score.false_per_machine_day, score.median_seconds, score.p90_seconds
    return (
        name,
        str(score.hit_count + score.missed_count),
        str(score.hit_count),
        *(_number(share, 3) for share in shares),
        str(score.false_count),
        _number(rate, 3),
        _number(middle, 1),
        _number(late, 1),
    )


FEEDBACK_HEAD = ("what people said", "upheld", "found", "denied", "repeated", "unjudged")
"""Headings of the table that compares each detector set with what people said."""


def _feedback_cells(name: str, tally: FeedbackTally) -> tuple[str, ...]:
    """Return a row of the table under ``FEEDBACK_HEAD``."""
    return name, *map(str, tally.to_object().values())


def _number(value: float | None, digits: int) -> str:
    """Return a number with so many digits as text, "-" for None."""
    return "-" if value is None else f"{value:.{digits}f}"


def not_judged(figures: SetFigures) -> str:
    """Return what the set could not judge and why, "" if it judged all."""
    return ", ".join(f"{count} {reason}" for reason, count in sorted(figures.abstained.items()))


def table_lines(figures: Sequence[SetFigures]) -> list[str]:
    """Return the table by set as lines for a terminal, with the recordings not judged below it."""
    lines = lined_up([HEAD, *(cells(one.name, one.total) for one in figures)])
    told = [_feedback_cells(one.name, one.feedback) for one in figures if one.feedback is not None]
    lines += ["", *lined_up([FEEDBACK_HEAD, *told])] if told else []
    return [*lines, *(f"{one.name} could not judge: {answer}" for one in figures if (answer := not_judged(one)))]


def lined_up(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as aligned lines: first column to the left, others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join([row[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]


def headline(cases: Sequence[CaseRow]) -> str:
    """Return the number of recordings by kind as text."""
    trials = [case.trial for case in cases if case.trial is not None]
    counts = (
        (len(cases), "recording" if len(cases) == 1 else "recordings"),
        (sum(bool(trial.faults) for trial in trials), "with a fault"),
        (sum(trial.faults == () for trial in trials), "healthy"),
        (sum(trial.faults is None for trial in trials), "without truth.json, not scored"),
        (len(cases) - len(trials), "unreadable"),
    )
    return ", ".join(f"{count} {what}" for count, what in counts if count)


def by_worst(cases: Iterable[CaseRow]) -> list[CaseRow]:
    """Return the cases sorted by errors: first those of the first set, then those of other sets.

    Cases without errors follow, and unreadable ones come last.
    """

    def key(case: CaseRow) -> tuple[int, str]:
        if case.trial is None:
            return 3, case.folder
        wrong = [answer.missed_count + answer.false_count > 0 for answer in case.trial.answers]
        return 0 if wrong and wrong[0] else 1 if any(wrong) else 2, case.folder

    return sorted(cases, key=key)


def index_page(cases: Sequence[CaseRow]) -> str:
    """Return the HTML page that lists all cases, those with errors first."""
    trials = [case.trial for case in cases if case.trial is not None]
    figures = figures_of(trials)
    body = [
        "<h1>Backtest</h1>",
        f"<p>{text(headline(cases))}</p>",
        table(
            (*HEAD, "not judged"),
            [(*map(text, cells(one.name, one.total)), text(not_judged(one))) for one in figures],
            numbers=range(1, len(HEAD)),
        ),
        *_feedback_table(figures),
        "<h2>Cases, misses and false accusations first</h2>",
        table(
            ("case", "machines", "length", "truth", *(one.name for one in figures)),
            [_row(case, len(figures)) for case in by_worst(cases)],
            numbers=(1, 2),
        ),
    ]
    return page("backtest", body)


def _feedback_table(figures: Sequence[SetFigures]) -> list[str]:
    """Return the HTML table that compares the sets with what people said; none where nobody's words were given."""
    told = [_feedback_cells(one.name, one.feedback) for one in figures if one.feedback is not None]
    rows = [tuple(map(text, cells_of)) for cells_of in told]
    return [table(FEEDBACK_HEAD, rows, numbers=range(1, len(FEEDBACK_HEAD)))] if rows else []


def _row(case: CaseRow, set_count: int) -> tuple[str, ...]:
    """Return the HTML cells of one case in the index."""
    trial = case.trial
    if trial is None:
        return (text(case.folder), "", "", marked("false", f"unreadable: {case.error}"), *[""] * set_count)
    name = f'<a href="{text(case.page)}">{text(case.folder)}</a>' if case.page else text(case.folder)
    length = since((trial.end_ns - trial.start_ns) / NS_PER_SECOND)
    return (name, str(trial.host_count), length, text(_truth(trial)), *(_answer(answer) for answer in trial.answers))


def _truth(trial: Trial) -> str:
    """Return the true faults of a case as text."""
    if trial.faults is None:
        return "unknown"
    return ", ".join(map(fault_name, trial.faults)) or "healthy"


def _answer(answer: TrialAnswer) -> str:
    """Return a set's answer about a case as short HTML."""
    if answer.reason is not None:
        missed = marked("missed", f"missed, not judged: {answer.reason.value}")
        return missed if answer.missed_count else marked("quiet", f"not judged: {answer.reason.value}")
    parts = [marked("hit", f"{_number(one.delay_seconds, 1)} s") for one in answer.accusations if one.worth == "hit"]
    parts += [marked("missed", f"missed {answer.missed_count}")] if answer.missed_count else []
    for worth in ("false", "unscored"):
        names = [name for one in answer.accusations if one.worth == worth for name in one.suspects]
        if names:
            shown = ", ".join(names[:_SHOWN_NAMES]) + (" …" if len(names) > _SHOWN_NAMES else "")
            parts.append(
                marked("false" if worth == "false" else "quiet", f"{worth}: {shown}" if worth == "false" else shown)
            )
    return ", ".join(parts) or marked("quiet", "nobody")
