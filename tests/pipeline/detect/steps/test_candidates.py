"""Who looks slow, and whether the blame goes round."""

from __future__ import annotations

import pytest

from tocsin.pipeline.detect.steps.candidates import (
    JOB,
    Candidate,
    Candidates,
    RotationConfig,
)
from tocsin.schemas.records import NS_PER_SECOND

T0 = 1_800_000_000 * NS_PER_SECOND


def _at(second: float) -> int:
    return T0 + int(second * NS_PER_SECOND)


@pytest.mark.parametrize(
    ("others", "lasted_seconds", "blamed"),
    [(0, 5, True), (1, 119, False), (1, 120, True), (3, 120, False), (3, 359, False), (3, 360, True)],
)
def test_the_more_looked_slow_before_the_longer_one_must_be_so_to_be_named(
    others: int, lasted_seconds: int, blamed: bool
) -> None:
    """Bursts of one slow loader make each of its peers look slow for a minute now and then."""
    candidates = Candidates(RotationConfig(memory_ns=600 * NS_PER_SECOND))
    for other in range(others):
        begin = 50 - 10 * (others - other)
        end = begin + 8
        candidates.see(f"n{other}", Candidate(_at(begin), _at(end), {}, 1.2, spoken=True))
        candidates.forget(f"n{other}", _at(end + 2), NS_PER_SECOND)
    candidates.see("n9", Candidate(_at(50), _at(50 + lasted_seconds), {}, 1.2))

    assert (candidates.before("n9") == []) is blamed


@pytest.mark.parametrize(("recovered", "is_turn"), [(30, False), (40, True), (70, True), (130, False)])
def test_whoever_was_slow_beside_another_one_for_a_minute_did_not_hand_it_on(recovered: int, is_turn: bool) -> None:
    candidates = Candidates(RotationConfig())
    candidates.see("n3", Candidate(_at(0), _at(recovered), {}, 1.2, spoken=True))
    candidates.see("n9", Candidate(_at(50), _at(60), {}, 1.2))
    candidates.forget("n3", _at(recovered + 5), NS_PER_SECOND)

    assert candidates.before("n9") == (["n3"] if is_turn else [])


def test_one_that_recovered_a_while_ago_handed_nothing_on_but_two_did() -> None:
    """One fault and another one within minutes are two; the third in three minutes goes round."""
    candidates = Candidates(RotationConfig())
    for other, end in (("n3", 10), ("n4", 30)):
        candidates.see(other, Candidate(_at(end - 8), _at(end), {}, 1.2, spoken=True))
        candidates.forget(other, _at(end + 5), NS_PER_SECOND)
        candidates.see("n9", Candidate(_at(80), _at(85), {}, 1.2))
        assert candidates.before("n9") == ([] if other == "n3" else ["n3", "n4"])
        del candidates.now["n9"]


def test_five_long_steps_are_no_gap() -> None:
    candidates = Candidates(RotationConfig())
    candidates.see("n3", Candidate(_at(0), _at(10), {}, 1.2, spoken=True))
    candidates.forget("n3", _at(15), NS_PER_SECOND)
    candidates.see("n9", Candidate(_at(60), _at(90), {}, 1.2))

    assert candidates.before("n9", 20 * NS_PER_SECOND) == ["n3"]
    assert candidates.before("n9", 5 * NS_PER_SECOND) == []


def test_the_whole_job_s_slowdown_is_nobody_s_turn() -> None:
    candidates = Candidates(RotationConfig())
    candidates.see(JOB, Candidate(_at(0), _at(49), {}, 1.2, spoken=True))
    candidates.see("n3", Candidate(_at(0), _at(49), {}, 1.2, spoken=True))
    for name in (JOB, "n3"):
        candidates.forget(name, _at(55), NS_PER_SECOND)
    candidates.see("n9", Candidate(_at(50), _at(50 + 121), {}, 1.2))

    assert candidates.before("n9") == []
