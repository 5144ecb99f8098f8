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
    [(0, 5, True), (1, 119, False), (1, 120, True), (3, 119, False), (3, 120, True)],
)
def test_who_is_handed_the_slowness_on_is_named_when_it_has_lasted_for_two_minutes(
    others: int, lasted_seconds: int, blamed: bool
) -> None:
    candidates = Candidates(RotationConfig(memory_ns=600 * NS_PER_SECOND))
    for other in range(others):
        begin = 50 - 10 * (others - other)
        end = begin + 8
        candidates.see(f"n{other}", Candidate(_at(begin), _at(end), {}, 1.2, is_reported=True))
        candidates.forget(f"n{other}", _at(end + 2), NS_PER_SECOND)
    candidates.see("n9", Candidate(_at(50), _at(50 + lasted_seconds), {}, 1.2))

    assert (not candidates.turns_before("n9").hosts) is blamed


@pytest.mark.parametrize(("recovered", "is_turn"), [(30, False), (40, True), (70, True), (130, False)])
def test_whoever_was_slow_beside_another_one_for_a_minute_did_not_hand_it_on(recovered: int, is_turn: bool) -> None:
    candidates = Candidates(RotationConfig())
    candidates.see("n3", Candidate(_at(0), _at(recovered), {}, 1.2, is_reported=True))
    candidates.see("n9", Candidate(_at(50), _at(60), {}, 1.2))
    candidates.forget("n3", _at(recovered + 5), NS_PER_SECOND)

    assert candidates.turns_before("n9").hosts == (("n3",) if is_turn else ())


@pytest.mark.parametrize(
    ("turn_seconds", "lasted_seconds", "blamed"),
    [(50, 119, False), (50, 120, True), (70, 139, False), (70, 140, True), (170, 239, False), (170, 240, True)],
)
def test_with_two_turns_it_must_last_twice_as_long_as_they_or_two_minutes_for_each(
    turn_seconds: int, lasted_seconds: int, blamed: bool
) -> None:
    candidates = Candidates(RotationConfig())
    for other, begin in (("n3", 0), ("n4", turn_seconds)):
        candidates.see(other, Candidate(_at(begin), _at(begin + turn_seconds), {}, 1.2, is_reported=True))
        candidates.forget(other, _at(begin + turn_seconds + 5), NS_PER_SECOND)
    begin = 2 * turn_seconds
    candidates.see("n9", Candidate(_at(begin), _at(begin + lasted_seconds), {}, 1.2))

    assert (not candidates.turns_before("n9").hosts) is blamed


@pytest.mark.parametrize("count", [1, 2, 3])
def test_hosts_that_were_slow_for_a_while_one_by_one_are_no_rotation(count: int) -> None:
    candidates = Candidates(RotationConfig())
    for number in range(count):
        end = 60 * number + 40
        candidates.see(f"n{number}", Candidate(_at(end - 40), _at(end), {}, 1.2, is_reported=True))
        candidates.forget(f"n{number}", _at(end + 5), NS_PER_SECOND)
    candidates.see("n9", Candidate(_at(60 * count), _at(60 * count + 2), {}, 1.2))

    assert candidates.turns_before("n9").hosts == ()


def test_who_outlasts_brief_ones_is_named() -> None:
    candidates = Candidates(RotationConfig())
    for other, end in (("n3", 10), ("n4", 40)):
        candidates.see(other, Candidate(_at(end - 10), _at(end), {}, 1.2, is_reported=True))
        candidates.forget(other, _at(end + 5), NS_PER_SECOND)
    candidates.see("n9", Candidate(_at(80), _at(99), {}, 1.2))
    assert candidates.turns_before("n9").hosts == ("n3", "n4")
    candidates.see("n9", Candidate(_at(80), _at(100), {}, 1.2))
    assert candidates.turns_before("n9").hosts == ()


def test_one_that_recovered_a_while_ago_handed_nothing_on_but_two_brief_ones_did() -> None:
    """One fault and another one within minutes are two; the third brief one in three minutes goes round."""
    candidates = Candidates(RotationConfig())
    for other, end in (("n3", 10), ("n4", 30)):
        candidates.see(other, Candidate(_at(end - 8), _at(end), {}, 1.2, is_reported=True))
        candidates.forget(other, _at(end + 5), NS_PER_SECOND)
        candidates.see("n9", Candidate(_at(80), _at(85), {}, 1.2))
        assert candidates.turns_before("n9").hosts == (() if other == "n3" else ("n3", "n4"))
        del candidates.now["n9"]


def test_five_long_steps_are_no_gap() -> None:
    candidates = Candidates(RotationConfig())
    candidates.see("n3", Candidate(_at(0), _at(10), {}, 1.2, is_reported=True))
    candidates.forget("n3", _at(15), NS_PER_SECOND)
    candidates.see("n9", Candidate(_at(60), _at(90), {}, 1.2))

    assert candidates.turns_before("n9", 20 * NS_PER_SECOND).hosts == ("n3",)
    assert candidates.turns_before("n9", 5 * NS_PER_SECOND).hosts == ()


def test_the_whole_job_s_slowdown_is_nobody_s_turn() -> None:
    candidates = Candidates(RotationConfig())
    candidates.see(JOB, Candidate(_at(0), _at(49), {}, 1.2, is_reported=True))
    candidates.see("n3", Candidate(_at(0), _at(49), {}, 1.2, is_reported=True))
    for name in (JOB, "n3"):
        candidates.forget(name, _at(55), NS_PER_SECOND)
    candidates.see("n9", Candidate(_at(50), _at(50 + 121), {}, 1.2))

    assert candidates.turns_before("n9").hosts == ()


def test_a_turn_that_was_never_reported_is_remembered_once() -> None:
    """Who takes a slowness over may be the slowest by luck, and leads to the next one all the same."""
    candidates = Candidates(RotationConfig())
    candidates.see("n4", Candidate(_at(10), _at(20), {}, 1.2))
    candidates.add_turn("n4")
    candidates.see("n4", Candidate(_at(10), _at(22), {}, 1.2))
    candidates.add_turn("n4")
    candidates.forget("n4", _at(30), NS_PER_SECOND)
    candidates.see("n9", Candidate(_at(24), _at(28), {}, 1.2))

    assert candidates.past == [("n4", _at(10), _at(22))]
    assert candidates.turns_before("n9").passed_on == ("n4",)


def test_brief_ones_without_a_handover_passed_nothing_on() -> None:
    candidates = Candidates(RotationConfig())
    for other, end in (("n3", 10), ("n4", 40)):
        candidates.see(other, Candidate(_at(end - 10), _at(end), {}, 1.2, is_reported=True))
        candidates.forget(other, _at(end + 5), NS_PER_SECOND)
    candidates.see("n9", Candidate(_at(80), _at(85), {}, 1.2))

    assert candidates.turns_before("n9").hosts == ("n3", "n4")
    assert candidates.turns_before("n9").passed_on == ()
