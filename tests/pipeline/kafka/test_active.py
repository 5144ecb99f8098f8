"""The active process: killed at any moment, or paused and replaced, the same lines come out, each once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.pipeline.kafka.fleet_kit import lines_of, second_of
from tocsin.pipeline.kafka.active import ActiveConfig, ActiveProcess
from tocsin.pipeline.kafka.fleet_work import FleetWork
from tocsin.pipeline.lab.testing.seats import MemorySeat, MemorySeats
from tocsin.schemas.kafka.topics import COVERED, EVENTS, VERDICTS
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.wire.codec import encode

BEGIN_NS = 1_800_000_000 * NS_PER_SECOND
HOSTS = 6


class Killed(BaseException):
    """kill -9 as far as the process can tell: nothing of it runs any more."""


def world() -> MemorySeats:
    seats = MemorySeats((EVENTS, VERDICTS))
    for second in range(HOSTS + 6):
        for record in second_of(second, BEGIN_NS, HOSTS):
            seats.write(EVENTS, encode(record))
    return seats


def life(seats: MemorySeats, around: Callable[[Callable[..., Any]], Callable[..., Any]], poll_count: int) -> None:
    """Run one process until all is read, or until it is killed."""
    seat, stop = MemorySeat(seats), threading.Event()
    seats.holder, seat.poll_count = seat, poll_count
    poll, commit = seat.poll, seat.commit

    def polled(seconds: float) -> Any:
        found = poll(seconds)
        if not found:
            stop.set()
        return found

    seat.poll = polled  # type: ignore[method-assign]
    seat.commit = around(commit)  # type: ignore[method-assign]
    work = FleetWork()
    work.take = around(work.take)  # type: ignore[method-assign]
    ActiveProcess("controller", seat, work, ActiveConfig(keep_seconds=0.0), lambda: 0.0).run(stop)


def undisturbed() -> MemorySeats:
    seats = world()
    life(seats, lambda work: work, 5)
    return seats


WANTED = undisturbed()


def test_each_idle_host_s_fault_is_a_line_and_many_are_one_of_the_fleet() -> None:
    lines = lines_of(message.value for message in WANTED.log[VERDICTS])
    assert [job for job, update, _ in lines if update == 0].count("idle") == HOSTS
    assert [job for job, update, _ in lines if update == 0].count("fleet") == 1
    assert WANTED.log[COVERED]


@given(st.lists(st.integers(1, 400), max_size=6), st.integers(1, 40))
def test_killed_at_any_moment_the_lines_are_the_same(deaths: Sequence[int], poll_count: int) -> None:
    seats, count = world(), 0

    def around(work: Callable[..., Any]) -> Callable[..., Any]:
        def mortal(*args: Any) -> Any:
            nonlocal count
            for before in (True, False):
                count += 1
                if count in deaths:
                    raise Killed
                if before:
                    answer = work(*args)
            return answer

        return mortal

    for _ in range(len(deaths) + 1):
        try:
            life(seats, around, poll_count)
        except Killed:
            continue
        break
    found = lines_of(message.value for message in seats.log[VERDICTS])
    assert len(found) == len(set(found))  # no line twice
    wanted = lines_of(message.value for message in WANTED.log[VERDICTS])
    assert {(job, name) for job, _, name in found} == {(job, name) for job, _, name in wanted}


def test_a_former_holder_that_was_paused_writes_nothing() -> None:
    seats = world()
    new = MemorySeat(seats)
    taken: list[MemorySeat] = []

    class Paused(MemorySeat):
        def commit(self, *args: Any) -> None:
            if not taken:  # it is paused here; another process takes over meanwhile
                taken.append(new)
                seats.holder = new
                new.take_over()
            super().commit(*args)

    paused, stop = Paused(seats), threading.Event()
    seats.holder = paused
    process = ActiveProcess("controller", paused, FleetWork(), ActiveConfig(keep_seconds=0.0), lambda: 0.0)
    wait = paused.wait

    def waited(seconds: float) -> bool:
        if taken:
            stop.set()
        return wait(seconds)

    paused.wait = waited  # type: ignore[method-assign]
    process.run(stop)
    assert process.counters["taken_over"] == 1
    assert not process.is_active
    assert seats.commit_count == 0
    assert not seats.log[VERDICTS]
