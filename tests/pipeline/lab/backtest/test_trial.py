"""What becomes of one recording under several detector sets."""

from __future__ import annotations

import pytest

from tests.pipeline.lab.backtest.kit import (
    Says,
    at,
    cpu_recording,
    fault,
)
from tocsin.pipeline.lab.backtest.trial import TrialAnswer, judge
from tocsin.pipeline.recording.score import machine_days_of, score_lines
from tocsin.schemas.reasons import Reason

FAULTS = [fault("n2", 200, 500)]


def reported(*runners: Says, faults: list[dict[str, object]] | None = FAULTS) -> tuple[TrialAnswer, ...]:
    return judge(cpu_recording(faults=faults), runners).answers


def test_each_accusation_is_worth_what_the_score_counts_it_for() -> None:
    said = Says("a", (("n1", 100), ("n2", 230), ("n2", 300), ("n2", 700)))
    [one] = reported(said)

    assert [accusation.worth for accusation in one.accusations] == ["false", "hit", "again", "false"]
    assert [accusation.delay_seconds for accusation in one.accusations] == [None, 30.0, None, None]
    assert (one.missed_count, one.false_count) == (0, 2)


def test_the_score_is_that_of_tocsin_score() -> None:
    recording, said = cpu_recording(faults=FAULTS), Says("a", (("n1", 100), ("n2", 230)))
    [one] = judge(recording, [said]).answers
    wanted = score_lines(said.judge(recording).lines, FAULTS, machine_days_of(recording))

    assert one.score is not None
    assert one.score.faults == wanted.faults
    assert one.score.false_count == wanted.false_count == 1
    assert one.score.machine_days == pytest.approx(6 * 600 / 86_400)


def test_what_nobody_said_is_missed() -> None:
    [one] = reported(Says("a", reason=Reason.TOO_FEW_PEERS))

    assert (one.missed_count, one.false_count, one.reason) == (1, 0, Reason.TOO_FEW_PEERS)


def test_without_a_truth_nothing_is_scored() -> None:
    [one] = reported(Says("a", (("n1", 100),)), faults=None)

    assert [accusation.worth for accusation in one.accusations] == ["unscored"]
    assert (one.score, one.missed_count, one.false_count) == (None, 0, 0)


def test_sets_keep_their_order_and_their_evidence() -> None:
    both = reported(Says("b"), Says("a", (("n2", 230),)))

    assert [one.name for one in both] == ["b", "a"]
    [accusation] = both[1].accusations
    assert (accusation.cause, accusation.why) == ("power_cap", "metrics_differ_for_long")
    assert (accusation.metrics, accusation.onset_ns) == (("cpu_util_ratio",), at(225))
