"""What announced phases excuse, and for how long."""

from __future__ import annotations

from tocsin.pipeline.job.announced_phases import Announced, StepExcuses
from tocsin.schemas.records import NS_PER_SECOND, StepRecord

RANKS = 8


def at(second: float) -> int:
    return 1_800_000_000 * NS_PER_SECOND + int(second * NS_PER_SECOND)


def phase(announced: Announced, second: float, edge: str, *ranks: int) -> None:
    for rank in ranks:
        announced.take(rank, "checkpoint", at(second), begins=edge == "begin", rank_count=RANKS)


def steps(announced: Announced, second: float, *ranks: int) -> None:
    announced.take_steps([StepRecord(at(second), rank, int(second), 0.5) for rank in ranks])


def test_a_checkpoint_of_rank_0_is_no_hang() -> None:
    announced = Announced()
    phase(announced, 10, "begin", 0)
    assert announced.in_pause(at(12), at(60))
    phase(announced, 70, "end", 0)
    assert announced.in_pause(at(12), at(60))
    assert not announced.in_pause(at(80), at(90))


def test_a_phase_in_the_midst_of_which_others_go_on_excuses_its_rank_alone() -> None:
    announced = Announced()
    phase(announced, 10, "begin", 6)
    for second in range(11, 30):
        steps(announced, second, 1, 2, 3)
    assert not announced.in_pause(at(12), at(40))
    assert announced.is_in_phase(6, at(12), at(40))
    assert not announced.is_in_phase(1, at(12), at(40))


def test_a_phase_that_begins_and_ends_each_second_is_one() -> None:
    announced = Announced()
    for second in range(10, 40):
        phase(announced, second, "begin", 6)
        phase(announced, second + 0.5, "end", 6)
        steps(announced, second + 0.7, 1, 2, 3)
    assert not announced.in_pause(at(30), at(41))


def test_a_rank_whose_phases_hold_up_nobody_is_believed_no_more_once_the_job_stands() -> None:
    announced = Announced()
    for begin in (10, 40, 70):
        phase(announced, begin, "begin", 6)
        for second in range(begin, begin + 25):
            steps(announced, second, 1, 2, 3)
        phase(announced, begin + 20, "end", 6)
    phase(announced, 120, "begin", 6)  # the job stands since 95
    assert not announced.in_pause(at(96), at(200))


def test_what_most_announce_excuses_all_and_expires() -> None:
    announced = Announced()
    phase(announced, 10, "begin", *range(6))
    for second in range(11, 30):
        steps(announced, second, 6, 7)
    assert announced.in_shared(at(12), at(13))
    assert announced.in_pause(at(12), at(1700))
    assert not announced.in_pause(at(1900), at(2000))


def test_of_steps_beside_the_phases_of_few_a_quarter_is_left_out() -> None:
    announced = Announced()
    phase(announced, 10, "begin", 6)
    excuses = StepExcuses(announced)
    left_out = sum(excuses.take(1, step, at(20 + step), at(21 + step)) for step in range(400))
    assert 90 <= left_out <= 115
    assert excuses.take(6, 401, at(20), at(21))


def test_state_there_and_back() -> None:
    announced, other = Announced(), Announced()
    phase(announced, 10, "begin", 0, 1, 2, 3, 4, 5)
    phase(announced, 20, "end", 0, 1)
    phase(announced, 30, "begin", 7)
    steps(announced, 31, 1)
    other.load_state(announced.to_state())
    assert other.to_state() == announced.to_state()
    assert other.in_pause(at(33), at(34)) == announced.in_pause(at(33), at(34))
