"""What is scored: something that reads a recording and answers who was faulty, and when it would have said so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tocsin.pipeline.recording.tables import Recording
from tocsin.schemas.reasons import Reason


@dataclass(frozen=True, slots=True)
class RunnerAccusation:
    """One accusation.

    Attributes:
        host: the machine.
        metric: what convicted it, "" = no metric in particular.
        onset_ns: since when, by its own opinion.
        detected_ns: when it was said.
        score: >= 0, 1.0 is the alarm line.
    """

    host: str
    metric: str
    onset_ns: int
    detected_ns: int
    score: float


@dataclass(frozen=True, slots=True)
class Opinion:
    """What a detector set says of a recording.

    Attributes:
        lines: verdict lines in order, as ``recording.score.score_lines`` takes them.
        reason: why it could not judge the recording at all; None: it could.
    """

    lines: tuple[Mapping[str, Any], ...]
    reason: Reason | None = None

    @classmethod
    def of(cls, answers: Sequence[RunnerAccusation], reason: Reason | None = None) -> Opinion:
        """The opinion of a detector that only accuses; what says something could judge."""
        return cls(tuple(lines_of(answers)), None if answers else reason)


class Runner(Protocol):
    """Anything that can be scored on recordings. It must not look at their truth."""

    @property
    def name(self) -> str:
        """For tables."""
        ...

    def judge(self, recording: Recording) -> Opinion:
        """All that it says; the same recording gives the same lines.

        A recording that it cannot judge gives no line and a reason, never an error.
        """
        ...


def lines_of(answers: Sequence[RunnerAccusation]) -> list[dict[str, Any]]:
    """Answers as lines that ``recording.score.score_lines`` takes.

    A machine that is named call after call is accused once, at the first time. The kind of fault and
    its cause are beyond such detectors: every line says ``fail_slow`` and ``unknown``.
    """
    return [
        {
            "id": answer.host,
            "suspects": [{"kind": "host", "name": answer.host}],
            "detected_ns": answer.detected_ns,
            "onset_ns": answer.onset_ns,
            "state": "confirmed",
            "fault": "fail_slow",
            "cause": "unknown",
            "metric": answer.metric,
            "score": answer.score,
        }
        for answer in sorted(answers, key=lambda answer: (answer.detected_ns, answer.host))
    ]
