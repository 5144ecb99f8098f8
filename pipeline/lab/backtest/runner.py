"""Interface of a backtest runner, which reads a recording and answers with accusations.

An accusation says which machine was at fault, and when the detector would have said so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tocsin.pipeline.recording.tables import Recording
from tocsin.schemas.reasons import Reason


@dataclass(frozen=True, slots=True)
class RunnerAccusation:
    """An accusation of one machine.

    Attributes:
        host: accused machine.
        metric: metric behind the accusation, "" for none in particular.
        onset_ns: begin of the fault according to the detector.
        detected_ns: time of the accusation.
        score: at least 0, 1.0 is the alarm line.
    """

    host: str
    metric: str
    onset_ns: int
    detected_ns: int
    score: float


@dataclass(frozen=True, slots=True)
class Opinion:
    """A detector set's answer about a recording.

    Attributes:
        lines: verdict lines in order, in the form of ``recording.score.score_lines``.
        reason: why the recording could not be judged at all, None if it could.
    """

    lines: tuple[Mapping[str, Any], ...]
    reason: Reason | None = None

    @classmethod
    def of(cls, answers: Sequence[RunnerAccusation], reason: Reason | None = None) -> Opinion:
        """Build the answer of a detector that only makes accusations; with any, the reason is dropped."""
        return cls(tuple(lines_of(answers)), None if answers else reason)


class Runner(Protocol):
    """Interface of anything that can be scored on recordings; it must not read their truth."""

    @property
    def name(self) -> str:
        """Name of the detector set."""
        ...

    def judge(self, recording: Recording) -> Opinion:
        """Return the answer about a recording; the same recording gives the same lines.

        A recording that cannot be judged gives no lines and a reason, never an error.
        """
        ...


def lines_of(answers: Sequence[RunnerAccusation]) -> list[dict[str, Any]]:
    """Return accusations as verdict lines for ``recording.score.score_lines``.

    A machine that is accused repeatedly counts once, at the first time. Such detectors do not know kind and cause of
    the fault: every line has ``fail_slow`` and ``unknown``.
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
