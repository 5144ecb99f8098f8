"""The detector of starts alone: what it remembers over attempts and restarts, and when it is silent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from tests.models.startup.kit import NS, T0_NS, MadeStart, make_start
from tocsin.pipeline.rca.evidence.startup import StartupConfig, StartupDetector
from tocsin.pipeline.rca.finding import Finding
from tocsin.schemas import events
from tocsin.schemas.kinds import EventSource, Severity
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import Event, JobKey
from tocsin.schemas.startup import StageMark

SLOW = {("n004", "env_setup"): 4.0}


def _event(mark: StageMark, at: float) -> Event:
    payload = {"stage": mark.stage, "edge": str(mark.edge), "start_kind": str(mark.start_kind)}
    job = JobKey("c", "j", mark.attempt)
    ts_ns = mark.ts_ns + round(at * NS)
    return Event(job, mark.node, ts_ns, -1, EventSource.STARTUP, events.STAGE, Severity.INFO, payload)


def play(
    detector: StartupDetector, made: MadeStart, *, at: float = 0.0, restart_at: float | None = None
) -> list[tuple[float, Finding]]:
    """Play a start and a first step after it; return the findings of each second."""
    marks = sorted(made.marks, key=lambda mark: mark.ts_ns)
    last = (marks[-1].ts_ns - T0_NS) / NS
    told, second = [], 0.0
    while second <= last + 2:
        second += 2.0
        if second == restart_at:
            parts = detector.snapshot()
            detector = StartupDetector(StartupConfig())
            detector.restore(parts)
        now_ns = T0_NS + round((at + second) * NS)
        while marks and marks[0].ts_ns + round(at * NS) <= now_ns:
            detector.on_event(_event(marks.pop(0), at))
        told += [(second, one) for one in detector.on_time(now_ns)]
    detector.on_step(T0_NS + round((at + last + 1) * NS), T0_NS + round((at + second) * NS))
    assert detector.on_time(T0_NS + round((at + second + 20) * NS)) == []
    return told


def _named(told: Sequence[tuple[float, Finding]]) -> set[tuple[str, str]]:
    return {(one.cause, ",".join(one.accused)) for _, one in told}


def history(count: int, slow: Mapping[tuple[str, str], float] | None = None) -> StartupDetector:
    """Return the detector of an attempt that follows ``count`` others."""
    detector = StartupDetector(StartupConfig())
    for seed in range(count):
        play(detector, make_start(10, seed=seed, slow=slow))
        following = StartupDetector(StartupConfig())
        following.follow(detector)
        detector = following
    return detector


def test_a_late_host_is_named_before_it_ends_with_its_stage_and_its_peers() -> None:
    made = make_start(10, slow=SLOW)
    told = play(StartupDetector(StartupConfig()), made)

    assert _named(told) == {("startup_slow", "n004")}
    begin, end = made.truth["n004"]["env_setup"]
    first, finding = told[0]
    assert first - begin < 0.45 * (end - begin)
    assert finding.onset_ns == pytest.approx(T0_NS + begin * NS, abs=NS)
    assert finding.reason is Reason.LATE_IN_STARTUP
    assert finding.evidence[0].metric == "env_setup_seconds"
    assert finding.evidence[0].peer_value == pytest.approx(100, abs=10)


def test_a_restored_detector_says_the_same() -> None:
    made = make_start(10, slow=SLOW)
    plain = play(history(3), made)

    assert plain
    assert play(history(3), made, restart_at=200.0) == plain
    assert play(history(3), made, restart_at=50.0) == plain


def test_a_snapshot_does_not_change_by_a_restart() -> None:
    detector = history(2, SLOW)
    for mark in make_start(10).marks[:25]:
        detector.on_event(_event(mark, 0.0))
    again = StartupDetector(StartupConfig())
    again.restore(detector.snapshot())

    assert again.snapshot() == detector.snapshot()


def test_a_stage_that_is_slow_on_all_hosts_by_earlier_attempts_names_nobody() -> None:
    slow = make_start(10, seed=9, factors={"env_setup": 3.0})

    assert _named(play(history(3), slow)) == {("shared_service", "")}
    assert play(history(2), slow) == []
    assert play(history(3), make_start(10, seed=9)) == []


def test_a_host_that_was_late_in_three_of_its_starts_and_is_late_again_has_a_reason_of_its_own() -> None:
    for count, reason in ((2, Reason.LATE_IN_STARTUP), (3, Reason.LATE_IN_STARTS)):
        told = play(history(count, SLOW), make_start(10, seed=8, slow=SLOW))
        assert {one.reason for _, one in told} == {reason}
        assert ("three of its last five" in told[-1][1].evidence[0].text) == (count == 3)


def after(detector: StartupDetector, made: MadeStart, *, restart: bool = False) -> list[Finding]:
    """Play a start; return what is told once it is over, by the detector or by one that was restored then."""
    marks = sorted(made.marks, key=lambda mark: mark.ts_ns)
    for mark in marks:
        detector.on_event(_event(mark, 0.0))
    end_ns = marks[-1].ts_ns
    detector.on_step(end_ns, end_ns + NS)
    if restart:
        parts, detector = detector.snapshot(), StartupDetector(StartupConfig())
        detector.restore(parts)
    told = detector.on_time(end_ns + 2 * NS)
    assert detector.on_time(end_ns + 30 * NS) == []
    return told


@pytest.mark.parametrize("restart", [False, True])
def test_the_third_late_start_of_five_is_a_finding_of_its_own_once_it_is_over(*, restart: bool) -> None:
    assert after(history(1, SLOW), make_start(10, seed=8, slow=SLOW), restart=restart) == []
    (told,) = after(history(2, SLOW), make_start(10, seed=8, slow=SLOW), restart=restart)

    assert (told.reason, told.cause, told.accused) == (Reason.LATE_IN_STARTS, "startup_slow", ("n004",))
    assert told.evidence[0].text.startswith("n004 was late in env_setup in 3 of its last 3 starts")


def test_a_healthy_start_after_late_ones_tells_of_nobody() -> None:
    assert after(history(3, SLOW), make_start(10, seed=8)) == []


def test_an_attempt_that_never_trained_is_no_history() -> None:
    detector = history(2)
    for mark in make_start(10, factors={"env_setup": 5.0}).marks:
        detector.on_event(_event(mark, 0.0))
    following = StartupDetector(StartupConfig())
    following.follow(detector)

    assert play(following, make_start(10, seed=9, factors={"env_setup": 3.0})) == []


def test_a_hot_update_in_the_same_attempt_is_a_start_of_its_own() -> None:
    detector = StartupDetector(StartupConfig())
    assert play(detector, make_start(10)) == []
    hot = make_start(10, start_kind="hot", stages=("env_setup", "model_init"), slow=SLOW)

    assert _named(play(detector, hot, at=1000.0)) == {("startup_slow", "n004")}


def test_steps_from_before_a_start_do_not_end_it() -> None:
    detector = StartupDetector(StartupConfig())
    made = make_start(10, slow=SLOW)
    late_ns = T0_NS + round(made.truth["n004"]["env_setup"][1] * NS) - NS
    for mark in made.marks:
        if mark.ts_ns < late_ns:
            detector.on_event(_event(mark, 0.0))
    detector.on_step(T0_NS - 5 * NS, late_ns)

    assert [one.accused for one in detector.on_time(late_ns)] == [("n004",)]


@pytest.mark.parametrize("name", [events.EXIT, events.PROCESS_GONE, events.BYE])
def test_a_host_whose_process_has_ended_is_late_in_nothing(name: str) -> None:
    made = make_start(10, slow=SLOW)
    late_ns = T0_NS + round(made.truth["n004"]["env_setup"][1] * NS) - NS
    marks = [mark for mark in made.marks if mark.ts_ns < late_ns]
    detector = StartupDetector(StartupConfig())
    for mark in marks:
        detector.on_event(_event(mark, 0.0))
    detector.on_event(Event(JobKey("c", "j", 0), "n004", late_ns, 4, EventSource.PROCESS, name, Severity.INFO, {}))
    again = StartupDetector(StartupConfig())
    again.restore(detector.snapshot())

    assert detector.on_time(late_ns) == again.on_time(late_ns) == []
    begin = next(mark for mark in marks if (mark.node, mark.stage) == ("n004", "env_setup"))
    again.on_event(_event(begin, 0.0))
    assert [one.accused for one in again.on_time(late_ns)] == [("n004",)]


def test_an_end_that_says_how_long_its_stage_lasted_stands_for_its_begin() -> None:
    job, detector = JobKey("c", "j", 0), StartupDetector(StartupConfig())
    for at in range(6):
        body = {"stage": "env_setup", "edge": "begin" if at == 5 else "end", "start_kind": "full"}
        if at < 5:
            body["seconds"] = 20.0 + at  # type: ignore[assignment]  # JSON's values are of any type
        ts_ns = T0_NS + (0 if at == 5 else 20 + at) * NS
        detector.on_event(Event(job, f"n{at}", ts_ns, at, EventSource.STARTUP, events.STAGE, Severity.INFO, body))

    assert detector.on_time(T0_NS + 30 * NS) == []
    assert [one.accused for one in detector.on_time(T0_NS + 40 * NS)] == [("n5",)]


def test_other_events_and_too_many_stages_are_left_out() -> None:
    detector = StartupDetector(StartupConfig(most_stages_count=2))
    job = JobKey("c", "j", 0)
    for at in range(100):
        for body in (
            {"stage": f"s{at}", "edge": "begin"},
            {"stage": ["s"], "edge": "begin"},
            {"stage": "s", "edge": []},
        ):
            detector.on_event(Event(job, "n1", T0_NS, -1, EventSource.STARTUP, events.STAGE, Severity.INFO, body))
    kept = StartupDetector(StartupConfig())
    kept.restore(detector.snapshot())

    assert len(detector.snapshot()["startup"]) < 1000
    assert detector.on_time(T0_NS + 1000 * NS) == []


def test_a_host_that_turns_out_to_carry_no_rank_is_told_of_no_more() -> None:
    outside: set[str] = set()
    detector = StartupDetector(StartupConfig(), lambda hosts: frozenset(outside & set(hosts)))
    made = make_start(10, slow=SLOW)
    late_ns = T0_NS + round(made.truth["n004"]["env_setup"][1] * NS) - NS
    for mark in made.marks:
        if mark.ts_ns < late_ns:
            detector.on_event(_event(mark, 0.0))
    assert [one.accused for one in detector.on_time(late_ns)] == [("n004",)]

    outside.add("n004")
    assert detector.on_time(late_ns + NS) == []


def test_hosts_without_ranks_are_late_in_no_start() -> None:
    detector: StartupDetector | None = None
    for seed in range(4):
        following = StartupDetector(StartupConfig(), lambda hosts: frozenset({"n004"} & set(hosts)))
        if detector is not None:
            following.follow(detector)
        detector = following
        assert after(detector, make_start(10, seed=seed, slow=SLOW)) == []
