"""What the job's pace says, in words: seconds only where steps were recorded."""

from __future__ import annotations

import numpy as np
import pytest

from tocsin.models.pace import Slowdown, slowdown_of_work
from tocsin.pipeline.rca.pace_evidence import pace_evidence

STEPS = Slowdown(0.3, is_certain=True, is_gone=False, step_seconds=1.3, before_seconds=1.0, step_count=60)
NONE = Slowdown(float("inf"), is_certain=True, is_gone=False, step_seconds=float("nan"), before_seconds=1.0)


@pytest.mark.parametrize(
    ("slowdown", "text", "score"),
    [
        (STEPS, "the job's steps take 1.3 s since then, before 1 s", 1.3),
        (NONE, "no step has ended in time since (usually 1 s each)", 2.0),
    ],
)
def test_steps_are_told_in_seconds(slowdown: Slowdown, text: str, score: float) -> None:
    reported = pace_evidence(slowdown, 5, 9)

    assert (reported.detector, reported.metric, reported.text, reported.score) == ("steps", "step_seconds", text, score)
    assert (reported.start_ns, reported.end_ns, reported.peer_value) == (5, 9, 1.0)


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (0.8, "times the work a second that they did before"),
        (1.0, "do as much work a second as before"),
        (0.0, "do no work since then"),
    ],
)
def test_a_job_without_step_records_is_told_in_work(share: float, words: str) -> None:
    before = 1 + 0.01 * np.random.default_rng(1).standard_normal((60, 4))
    slowdown = slowdown_of_work(before, share * before[:20])
    assert slowdown is not None
    reported = pace_evidence(slowdown, 5, 9)

    assert (reported.detector, reported.metric, reported.peer_value) == ("peers", "work_ratio", 1.0)
    assert words in reported.text
    assert reported.suspect_value == pytest.approx(share, abs=0.02)
    assert 0 <= reported.score <= 2
