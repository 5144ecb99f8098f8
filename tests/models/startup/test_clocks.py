"""A node whose clock is off accuses nobody, itself included; one that is late on a right clock is named."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from tests.models.startup.kit import NS, T0_NS, make_start
from tocsin.models.startup.clocks import ClockShift, clock_shifts, late_by_both, put_back, stamps_of_tables
from tocsin.models.startup.durations import stage_tables
from tocsin.models.startup.mllog_stages import LoggedStart, NamedStamp, logged_start
from tocsin.models.startup.stragglers import stragglers
from tocsin.schemas.formats.mllog import Stamp, StampKind
from tocsin.schemas.startup import Edge, StageMark


def _log(
    inits: list[float], stops: list[float], shifts: dict[int, float] | None = None, caches: list[float] | None = None
) -> LoggedStart:
    """Return the start in a log of labelled processes; ``shifts``: process -> how much its clock is ahead, seconds."""
    rows = [(0.0, "submission_benchmark", 0)]
    for key, times in (("cache_clear", caches or []), ("init_start", inits), ("init_stop", stops)):
        rows += [(at, key, process) for process, at in enumerate(times)]
    rows.append((max(stops) + 1.0, "run_start", 0))
    stamps = []
    for at, key, process in rows:
        ts_ns = T0_NS + round((at + (shifts or {}).get(process, 0.0)) * NS)
        stamps.append(NamedStamp(Stamp(ts_ns, StampKind.POINT, key, str(process)), str(process)))
    found = logged_start(stamps)
    assert found is not None
    return found


def _late(start: LoggedStart) -> set[tuple[str, str]]:
    return {(one.node, one.stage) for one in late_by_both(start.tables, start.last_ns, start.told, start.last_ns)}


def _job_seconds(start: LoggedStart) -> dict[str, float]:
    return {table.stage: table.job_seconds or 0.0 for table in start.tables}


INITS = [9.0 + 0.1 * at for at in range(8)]
STOPS = [70.0 + 0.2 * at for at in range(8)]


@pytest.mark.parametrize("shift", [-400.0, -12.0, 12.0, 60.0, 400.0])
@pytest.mark.parametrize("process", [0, 3, 7])
def test_a_process_on_a_clock_that_is_off_is_not_late_and_makes_nobody_late(shift: float, process: int) -> None:
    start, right = _log(INITS, STOPS, {process: shift}), _log(INITS, STOPS)

    assert _late(start) == set()
    (found,) = start.shifts
    assert found.node == str(process)
    assert found.seconds == pytest.approx(shift, abs=1.0)
    for stage, seconds in _job_seconds(right).items():
        assert _job_seconds(start)[stage] == pytest.approx(seconds, abs=1.0)


def test_all_processes_of_a_host_are_put_back() -> None:
    inits, stops = [9.0 + 0.01 * at for at in range(32)], [70.0 + 0.01 * at for at in range(32)]
    start = _log(inits, stops, dict.fromkeys(range(8, 16), 25.0))

    assert _late(start) == set()
    assert {one.node for one in start.shifts} == set(map(str, range(8, 16)))


@pytest.mark.parametrize("seconds", [15.0, 40.0, 300.0])
def test_a_process_for_which_the_others_wait_is_late_on_a_right_clock(seconds: float) -> None:
    """All end the next stage together: the late one's stamp comes there with its peers'."""
    start = _log([*INITS[:3], INITS[3] + seconds, *INITS[4:]], [at + seconds for at in STOPS])

    assert _late(start) == {("3", "env_setup")}
    assert start.shifts == ()


def test_a_stamp_before_the_stage_that_is_long_shows_that_the_clock_is_right() -> None:
    late = [*INITS[:3], 50.0, *INITS[4:]]
    stops = [*STOPS[:3], 111.0, *STOPS[4:]]

    assert _late(_log(late, stops, caches=[2.0] * 8)) == {("3", "env_setup")}
    assert _late(_log(INITS, STOPS, {3: 41.0}, caches=[2.0] * 8)) == set()


def test_where_all_stamps_follow_the_stage_nothing_is_said_of_lateness() -> None:
    """The processes do not wait for each other, so the log of a late one is that of a clock which is ahead."""
    start = _log([*INITS[:3], 50.0, *INITS[4:]], [*STOPS[:3], 111.0, *STOPS[4:]])

    assert _late(start) == set()
    assert [one.node for one in start.shifts] == ["3"]


def test_a_clock_that_is_off_does_not_hide_a_stage_that_lasts_long() -> None:
    start = _log(INITS, [*STOPS[:3], STOPS[3] + 60.0, *STOPS[4:]], {3: 12.0})

    assert _late(start) == {("3", "model_init")}


def test_one_stamp_says_nothing_of_a_clock() -> None:
    stamps = [(("init_start",), f"n{at}", T0_NS + (at == 3) * 60 * NS) for at in range(8)]

    assert clock_shifts(stamps) == []
    assert clock_shifts([]) == []


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("shift", [-400, 60, 400])
def test_marks_of_a_node_on_another_clock_are_put_back(seed: int, shift: int) -> None:
    made = make_start(10, seed=seed)
    moved = [replace(one, ts_ns=one.ts_ns + shift * NS) if one.node == "n007" else one for one in made.marks]
    shifts = clock_shifts(stamps_of_tables(stage_tables(moved)))

    assert shifts == [ClockShift("n007", float(shift), 6)]
    assert put_back(moved, shifts) == list(made.marks)


@pytest.mark.parametrize("seed", range(8))
def test_healthy_and_slow_nodes_have_right_clocks(seed: int) -> None:
    for slow in ({}, {("n004", "env_setup"): 4.0}, {("n004", "model_init"): 0.2}):
        made = make_start(12, seed=seed, slow=slow, noise=0.1)
        assert clock_shifts(stamps_of_tables(stage_tables(made.marks))) == []


def _shifted(marks: tuple[StageMark, ...], shift: int) -> list[StageMark]:
    return [replace(one, ts_ns=one.ts_ns + shift * NS) if one.node == "n007" else one for one in marks]


@pytest.mark.parametrize("shift", [-400, -60, -12, 12, 60, 400])
def test_durations_accuse_nobody_for_a_clock_while_a_stage_runs(shift: int) -> None:
    """The engine's rule: own begins and ends are compared as durations, whatever the clock; arrival is in true time."""
    made = make_start(10)
    for second in range(0, 400, 4):
        known = tuple(one for one in made.marks if one.ts_ns <= T0_NS + second * NS)
        for table in stage_tables(_shifted(known, shift)):
            assert stragglers(table, T0_NS + second * NS) == []


def _marks(times: list[tuple[float, float]], stage: str = "env_setup") -> list[StageMark]:
    """Return the marks of one stage: a node's begin and end in seconds."""
    return [
        StageMark(T0_NS + round(at * NS), stage, edge, f"n{node:03d}")
        for node, own in enumerate(times)
        for edge, at in zip((Edge.BEGIN, Edge.END), own, strict=True)
    ]


def _late_nodes(marks: list[StageMark]) -> tuple[set[str], list[str]]:
    """Return (nodes that are late, nodes that are told as shifted)."""
    told = stage_tables(marks)
    shifts = clock_shifts(stamps_of_tables(told))
    tables = stage_tables(put_back(marks, shifts))
    now_ns = max(one.ts_ns for one in marks)
    return {one.node for one in late_by_both(tables, now_ns, told, now_ns)}, [one.node for one in shifts]


def _times(seed: int, begin: float, seconds: float) -> list[tuple[float, float]]:
    """Return begins and ends of twelve nodes in a stage of 20 s; node 5 begins later by ``begin`` and takes longer."""
    rnd = random.Random(seed)
    times = []
    for node in range(12):
        at = 100 + rnd.gauss(0, 0.3) + begin * (node == 5)
        times.append((at, at + 20 + rnd.gauss(0, 0.5) + seconds * (node == 5)))
    return times


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("begin", "seconds"), [(-30.0, 18.0), (-60.0, 15.0), (-45.0, 30.0)])
def test_a_node_that_began_before_its_peers_and_ended_before_them_is_not_late(
    begin: float, seconds: float, seed: int
) -> None:
    """It keeps nobody waiting, though it takes long: putting its stamps back accuses nobody."""
    assert _late_nodes(_marks(_times(seed, begin, seconds)))[0] == set()


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("begin", [12.0, 15.0, 30.0, 400.0])
def test_a_node_that_begins_late_and_takes_long_is_late(begin: float, seed: int) -> None:
    """Its end is late by more than its begin, so it is no clock that makes the stage long."""
    assert _late_nodes(_marks(_times(seed, begin, 40.0)))[0] == {"n005"}


@pytest.mark.parametrize("seconds", [20.0, 60.0])
def test_a_stamp_near_its_peers_shows_a_right_clock(seconds: float) -> None:
    """The begin is 12 s late and the end 3 s: one clock does not make both."""
    times = [(100 + at / 10, 120 + at / 10 + seconds) for at in range(12)]
    times[5] = (112.5, 123.5 + seconds)

    assert _late_nodes(_marks(times)) == (set(), [])


def test_the_first_entry_of_a_late_process_is_not_moved() -> None:
    """Process 0 wrote the first entry in time and began 40 s late: the others' setup did not begin sooner for it."""
    inits, stops = [50.0, *INITS[1:]], [111.0, *STOPS[1:]]
    start = _log(inits, stops)

    assert [one.node for one in start.shifts] == ["0"]
    assert _late(start) == set()
    assert _job_seconds(start)["env_setup"] == pytest.approx(max(INITS), abs=0.1)
    inits[5] += 22.0
    assert _late(_log(inits, stops)) == {("5", "env_setup")}


@pytest.mark.parametrize("shift", [-400.0, -60.0, 12.0, 60.0, 400.0])
def test_the_clock_of_the_process_that_wrote_the_first_entry_accuses_no_other(shift: float) -> None:
    """Process 5 is later in ``env_setup`` than its peers, and not late by the log as it stands or without a clock."""
    inits = [*INITS[:5], INITS[5] + 8.0, *INITS[6:]]

    assert _late(_log(inits, STOPS, {0: shift})) == set()


def test_who_is_late_only_after_a_first_entry_was_put_back_is_not_late() -> None:
    """The start may have begun 60 s before most processes did: 22 s more are then no half of the setup."""
    inits = [*INITS[:5], INITS[5] + 22.0, *INITS[6:]]

    assert _late(_log(inits, STOPS)) == {("5", "env_setup")}
    assert _late(_log(inits, STOPS, {0: -60.0})) == set()


@pytest.mark.parametrize("shift", [-400.0, -60.0])
def test_a_clock_that_is_behind_by_more_than_a_stage_is_long_hides_it(shift: float) -> None:
    """It ends before its peers, so it may have begun before them and kept nobody waiting."""
    assert _late(_log(INITS, [*STOPS[:3], STOPS[3] + 50.0, *STOPS[4:]], {3: shift})) == set()
