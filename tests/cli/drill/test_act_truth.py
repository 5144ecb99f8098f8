"""What a drill that acts measured of its job's time, and how the engine's ledger is compared with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tocsin.cli.drill.act.truth import (
    StruckTimes,
    comparison_text,
    ledger_seconds,
    true_seconds,
    wrong_parts,
)
from tocsin.cli.drill.checkpoint_files import RankTime, TimeKind, times_file, times_of
from tocsin.schemas.records import NS_PER_SECOND


def rank(begin: float, steps: range, left: float = 0.0) -> list[RankTime]:
    """A rank that makes a step of a second each, from a second after its begin, and saves for 0.2 s after step 4."""
    made = [RankTime(TimeKind.BEGUN, ns(begin), ns(begin), -1)]
    at = begin + 1
    for step in steps:
        made.append(RankTime(TimeKind.STEP, ns(at), ns(at + 1), step))
        at += 1
        if step == 4:
            made.append(RankTime(TimeKind.SAVED, ns(at), ns(at + 0.2), -1))
            at += 0.2
    if left:
        made.append(RankTime(TimeKind.LEFT, ns(left), ns(left), -1))
    return made


def ns(seconds: float) -> int:
    return round(seconds * NS_PER_SECOND)


ATTEMPTS = [[rank(0, range(8)), rank(0, range(8))], [rank(20, range(5, 15), 31), rank(20.5, range(5, 15), 31.5)]]
TRUTH = true_seconds(ATTEMPTS, StruckTimes(ns(9.2), ns(13.2), ns(17.2)))


def test_each_second_of_a_job_is_measured_by_what_its_ranks_wrote_down() -> None:
    assert (
        pytest.approx(
            {
                "wall": 31.5,
                "productive": 8 + 7,
                "recomputed": 3,  # the strike broke off no step
                "start_up": 2,
                "detection": 4,
                "diagnosis": 4,
                "idle": 0.2 + 0.5,
                "scheduling": 2.8,
                "unattributed": 0,
            }
        )
        == TRUTH
    )


def test_the_work_of_the_step_that_the_strike_broke_off_is_lost() -> None:
    struck = true_seconds(ATTEMPTS, StruckTimes(ns(9.9), ns(13.2), ns(17.2)))
    assert struck["recomputed"] == pytest.approx(TRUTH["recomputed"] + 0.7)
    assert struck["detection"] == pytest.approx(TRUTH["detection"] - 0.7)


def test_a_ledger_is_right_within_a_second_and_with_a_hundredth_unattributed() -> None:
    ledger = TRUTH | {"productive": 14.1, "unattributed": 0.3}
    assert wrong_parts(ledger, TRUTH) == ""
    assert "productive is 13.9 s, and the drill measured 15.0 s" in wrong_parts(ledger | {"productive": 13.9}, TRUTH)
    assert "0.40 s of 31.5 s are unattributed" in wrong_parts(ledger | {"unattributed": 0.4}, TRUTH)
    shown = comparison_text(ledger, TRUTH)
    assert len(shown) == 1 + len(TRUTH)
    assert shown[2].split() == ["productive", "14.1s", "15.0s", "-0.90s"]


def test_the_ledger_s_attempts_are_added_up() -> None:
    account = {f"{name}_seconds": 1.5 for name in TRUTH}
    assert ledger_seconds([account, account]) == dict.fromkeys(TRUTH, 3.0)


def test_what_ranks_wrote_down_is_read_back_without_half_lines(tmp_path: Path) -> None:
    times_file(tmp_path, 0).write_text("begun 5 5 -1\nstep 6 8 0\nstep 9 1")
    assert times_of(tmp_path, 2) == [[RankTime(TimeKind.BEGUN, 5, 5, -1), RankTime(TimeKind.STEP, 6, 8, 0)], []]
