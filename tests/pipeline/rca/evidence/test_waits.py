"""Live waits: patience of jobs without step records, and counters that begin again."""

from __future__ import annotations

import pytest

from tests.pipeline.states import through_bytes
from tocsin.pipeline.core.operator import pack_state
from tocsin.pipeline.lab.testing.builders import JOB, START_NS, at_second, build_graph, rank_places
from tocsin.pipeline.rca.evidence.waits import WaitConfig, WaitTracker
from tocsin.schemas.records import NS_PER_SECOND, CollectiveRecord, CommGroup, GroupKind, Groups, RankPlace, StepRecord

RANKS = (0, 1, 2, 3)
LATE_SECONDS = WaitConfig().late_ns // NS_PER_SECOND


def done(rank: int, seq: int, second: float) -> CollectiveRecord:
    return CollectiveRecord(
        at_second(second), "completion", rank, "w", "all_reduce", seq, 4, at_second(second - 0.1), at_second(second)
    )


def stands(rank: int, seq: int, since: float, now: float) -> CollectiveRecord:
    return CollectiveRecord(at_second(now), "state", rank, "w", "all_reduce", seq, 4, at_second(since))


def tracker() -> WaitTracker:
    graph = build_graph(rank_places(len(RANKS)))
    graph.take([Groups(JOB, "a", START_NS, (CommGroup("w", GroupKind.WORLD, RANKS),))])
    return WaitTracker(WaitConfig(), graph)


def named(waits: WaitTracker, from_second: int, to_second: int) -> dict[int, set[str]]:
    """Second -> who is named."""
    found = {}
    for second in range(from_second, to_second):
        findings, _ = waits.find(at_second(second), 0, ())
        if findings:
            found[second] = {suspect.component.name for finding in findings for suspect in finding.suspects}
    return found


@pytest.mark.parametrize(("worked_seconds", "patience_seconds"), [(60, 600), (150, LATE_SECONDS)])
def test_a_job_whose_steps_nobody_tells_is_past_its_first_one_by_its_collectives(
    worked_seconds: int, patience_seconds: int
) -> None:
    """Initialisation has collectives too, for a minute; then it compiles for ten."""
    waits = tracker()
    for second in range(worked_seconds):
        waits.take_collectives([done(rank, second, second) for rank in RANKS])
    hung = worked_seconds
    waits.take_collectives([stands(rank, hung, hung, hung + 2) for rank in RANKS[:3]])
    found = named(waits, hung + 2, hung + 700)

    assert min(found) == hung + patience_seconds
    assert set(map(frozenset, found.values())) == {frozenset({"n3"})}


def test_collectives_that_count_from_the_start_again() -> None:
    """In the same attempt. Whoever is at 3 now is not behind those who were at 900 before the job was started again."""
    waits = tracker()
    for second in range(150):
        waits.take_collectives([done(rank, 6 * second, second) for rank in RANKS])
    for second in range(200, 220):
        waits.take_collectives([done(rank, second - 200, second) for rank in RANKS[:3]])
        waits.take_collectives([done(3, second - 200, second)])
    waits.take_collectives([stands(rank, 20, 220, 222) for rank in (0, 2, 3)])

    assert set(map(frozenset, named(waits, 222, 280).values())) == {frozenset({"n1"})}


def test_a_smaller_number_of_late_is_an_echo_and_not_a_new_count() -> None:
    waits = tracker()
    waits.take_collectives([done(rank, 100, 10) for rank in RANKS])
    waits.take_collectives([done(0, 99, 11)])

    numbers, _ = through_bytes(waits.to_state())["places"]["done"]
    assert numbers[0] == 100


def test_state_there_and_back() -> None:
    waits, other = tracker(), tracker()
    waits.take_collectives([done(0, 5, 3), stands(1, 6, 4, 6)])
    waits.take_steps([StepRecord(at_second(5), 2, 1, 0.5)])
    other.load_state(through_bytes(waits.to_state()))

    assert pack_state(other.to_state()) == pack_state(waits.to_state())
    assert other.find(at_second(30), 0, ()) == waits.find(at_second(30), 0, ())


@pytest.mark.parametrize(("late", "suspects"), [((0, 2), set()), ((0,), {"n0"})])
def test_of_a_whole_pipeline_that_did_not_arrive_nobody_is_named(late: tuple[int, ...], suspects: set[str]) -> None:
    """A stage that stands holds up the other one by sends that nobody records: each is missed in its own group."""
    graph = build_graph(RankPlace(rank, f"n{rank}", dp=rank % 2, pp=rank // 2, tp=0) for rank in RANKS)
    groups = (CommGroup("dp_0", GroupKind.DP, (0, 1)), CommGroup("dp_1", GroupKind.DP, (2, 3)))
    graph.take([Groups(JOB, "a", START_NS, groups)])
    waits = WaitTracker(WaitConfig(), graph)
    for second in range(0, 240, 10):
        waits.take_collectives(
            [
                CollectiveRecord(
                    at_second(second),
                    "completion",
                    r,
                    f"dp_{r // 2}",
                    "all_reduce",
                    second,
                    4,
                    at_second(second - 1),
                    at_second(second),
                )
                for r in RANKS
            ]
        )
    found: set[str] = set()
    for second in range(240, 330):
        waits.take_collectives(
            [
                CollectiveRecord(at_second(second), "state", r, f"dp_{r // 2}", "all_reduce", 240, 4, at_second(240))
                for r in RANKS
                if r not in late
            ]
        )
        for finding in waits.find(at_second(second), 0, ())[0]:
            found |= {suspect.component.name for suspect in finding.suspects}
    assert found == suspects
