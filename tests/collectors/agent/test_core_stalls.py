"""The agent's core on a fake clock: which steps are overdue."""

from typing import Any

import pytest

from tests.collectors.agent.core_bench import (
    JOB,
    T0,
    Bench,
    S,
    events,
    names,
)
from tocsin.collectors.agent.metric_slices import Surroundings
from tocsin.collectors.api import HostEvent, Reading
from tocsin.schemas.records import (
    EventSource,
    JobKey,
    Severity,
)

# --- stalls --------------------------------------------------------------------------------------


def test_a_step_is_overdue_after_four_medians_but_not_before_two_seconds(bench: Bench) -> None:
    bench.hello()
    bench.trains(10, step_seconds=0.25)
    assert names(bench.runs(1.9)).count("stall") == 0
    begin = events(bench.runs(0.5), "stall")

    assert [event.payload["edge"] for event in begin] == ["begin"]
    assert begin[0].payload["elapsed_seconds"] == pytest.approx(2.25, abs=0.25)


def test_datagrams_are_asked_for_at_the_end_of_a_second_and_where_a_step_goes_on_for_long(bench: Bench) -> None:
    asked: list[float] = []

    def lives(quarters: int) -> None:
        for _ in range(quarters):
            bench.fake.advance(0.25)
            now = bench.clock.read()[0]
            bench.core.on_time(now, Surroundings, lambda: asked.append(bench.ts / S - T0))

    bench.hello()
    bench.step(0)
    lives(8)
    assert asked == [1.0, 2.0]
    lives(4)
    assert asked == [1.0, 2.0, 2.25, 2.5, 2.75, 3.0]
    bench.step(1)
    lives(4)
    assert asked[6:] == [4.0]


def test_slow_steps_have_more_patience(bench: Bench) -> None:
    bench.hello()
    bench.trains(50, step_seconds=2.5)

    assert events(bench.runs(9.5), "stall") == []
    assert [event.payload["edge"] for event in events(bench.runs(1), "stall")] == ["begin"]


def test_a_stall_changes_stays_and_ends(bench: Bench) -> None:
    bench.hello()
    bench.trains(10)
    bench.beat(20, "backward")
    bench.runs(3)
    bench.beat(20, "communication", since=3, inflight=[["w", "all_reduce", 9, 1, bench.ts]])
    bench.runs(12)
    bench.step(20)
    bench.runs(1)
    found = [(e.payload["edge"], e.payload["phase"]) for e in events(bench.records, "stall")]

    assert found == [
        ("begin", "backward"),
        ("change", "communication"),
        ("still", "communication"),
        ("end", "communication"),
    ]
    still = events(bench.records, "stall")[2].payload
    assert still["in_collective"] is True
    assert still["beat_age_seconds"] == pytest.approx(10, abs=0.5)


@pytest.mark.parametrize("phase", ["checkpoint", "evaluation", "compile"])
def test_an_announced_phase_is_no_stall_and_the_step_has_time_after_it(bench: Bench, phase: str) -> None:
    bench.hello()
    bench.trains(10)
    bench.hook("phase", phase=phase, edge="begin")
    bench.runs(20)
    bench.hook("phase", phase=phase, edge="end")
    bench.runs(1.5)

    assert events(bench.records, "stall") == []


def test_a_lost_end_of_a_phase_does_not_blind_for_good(bench: Bench) -> None:
    bench.hello()
    bench.trains(10)
    bench.hook("phase", phase="checkpoint", edge="begin")
    bench.runs(5)
    bench.beat(20, "forward")

    assert [event.payload["edge"] for event in events(bench.runs(3), "stall")] == ["begin"]


def test_the_first_step_may_take_half_a_minute(bench: Bench) -> None:
    bench.hello()
    bench.beat(0, "forward")

    assert events(bench.runs(29), "stall") == []
    assert len(events(bench.runs(2), "stall")) == 1


def test_between_two_steps_there_is_half_a_minute(bench: Bench) -> None:
    bench.hello()
    bench.trains(10)
    bench.hook("beat", step=-1, phase="", step_ns=0)

    assert events(bench.runs(29), "stall") == []


@pytest.mark.parametrize("how", ["bye", "exit", "gone"])
def test_a_rank_that_ended_is_no_stall(bench: Bench, how: str) -> None:
    bench.hello()
    bench.trains(10)
    if how == "gone":
        gone = HostEvent("process_gone", EventSource.PROCESS, Severity.ERROR, {"pid": 7}, 0, JobKey(*JOB))
        bench.core.on_reading(0, Reading(events=(gone,)), bench.clock.read()[0])
    else:
        keys: dict[str, Any] = {"pid": 7, "code": -9, "signal": 9} if how == "exit" else {}
        bench.hook(how, **keys)

    assert events(bench.runs(40), "stall") == []


def test_an_exit_before_the_watcher_looked_hides_process_gone(bench: Bench) -> None:
    bench.hello()
    bench.hook("exit", pid=7, code=1)
    gone = HostEvent("process_gone", EventSource.PROCESS, Severity.ERROR, {"pid": 7}, 0, JobKey(*JOB))
    bench.core.on_reading(0, Reading(events=(gone,)), bench.clock.read()[0])
    bench.take()

    assert names(bench.records).count("process_gone") == 0
    assert events(bench.records, "exit")[0].severity is Severity.FATAL
