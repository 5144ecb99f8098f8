import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.collectors.agent.core_bench import (
    JOB,
    T0,
    Bench,
    S,
    of,
)
from tocsin.collectors.agent.collective_rows import CollectiveRing, sampled_ranks
from tocsin.collectors.agent.metric_slices import Surroundings
from tocsin.schemas.records import CollectiveBatch, CollectiveRecord


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.hello()
    return bench


def rows(records: Any) -> list[CollectiveRecord]:
    return [row for batch in of(records, CollectiveBatch) for row in batch.rows]


def stuck(bench: Bench, seq: int = 5, comm: str = "w", age: float = 0.6) -> None:
    """What the hook says while an operation does not finish."""
    bench.beat(1, "communication", inflight=[[comm, "all_reduce", seq, 64, bench.ts - round(age * S)]])


def test_completions_of_a_small_job_travel_in_full_with_the_steps(bench: Bench) -> None:
    done = []
    for step in range(10):
        bench.fake.advance(0.5)
        end = bench.ts - 10
        bench.step(step, coll=[["w", "all_reduce", 2 * step + k, 8, end - 5, end] for k in range(2)])
        bench.core.on_time(bench.clock.read()[0], Surroundings)
        done += bench.take()
    done += bench.runs(5)

    full = [row for row in rows(done) if row.start_ns]
    assert sorted(row.op_seq for row in full) == list(range(20))
    assert all(row.record == "completion" and row.ts_ns == row.end_ns for row in full)


def test_an_operation_that_does_not_finish_is_told_on_crossing_then_every_five_seconds(bench: Bench) -> None:
    for _ in range(12):
        stuck(bench, age=0.6 + (bench.ts - T0 * S) / S)
        bench.runs(1)
    reported = [(batch.ts_ns, row) for batch in of(bench.records, CollectiveBatch) for row in batch.rows]

    assert [ts // S - T0 for ts, _ in reported] == [0, 5, 10]
    assert {row.record for _, row in reported} == {"state"}
    assert all((row.op_seq, row.end_ns, row.start_ns) == (5, 0, T0 * S - round(0.6 * S)) for _, row in reported)


def test_a_change_is_told_at_once_with_what_the_other_communicators_finished(bench: Bench) -> None:
    bench.step(0, coll=[["other", "broadcast", 3, 8, bench.ts - 9, bench.ts - 5]])
    bench.runs(6)
    stuck(bench, seq=5, age=2)
    first = rows(bench.runs(1))
    bench.beat(1, "communication", inflight=[["w", "all_gather", 6, 64, bench.ts - 2 * S]])
    second = rows(bench.runs(1))

    for found, seq in ((first, 5), (second, 6)):
        assert [(row.record, row.comm_id, row.op_seq) for row in sorted(found, key=lambda row: row.comm_id)] == [
            ("completion", "other", 3),
            ("state", "w", seq),
        ]


def test_the_oldest_of_a_communicator_is_told(bench: Bench) -> None:
    flight = [["w", "all_reduce", seq, 64, bench.ts - 2 * S + seq] for seq in (7, 5, 6)]
    bench.beat(1, inflight=flight)

    assert [row.op_seq for row in rows(bench.runs(1))] == [5]


def test_an_operation_that_a_step_has_finished_is_not_in_flight(bench: Bench) -> None:
    stuck(bench, seq=5)
    bench.step(1, coll=[["w", "all_reduce", 5, 64, bench.ts - 100, bench.ts - 50]])

    assert [row for row in rows(bench.runs(4)) if row.record == "state"] == []


def test_what_a_stopped_rank_did_last_keeps_the_time_at_which_it_was_seen(bench: Bench) -> None:
    seen_ns = bench.ts
    stuck(bench, age=0.1)
    found = rows(bench.runs(3))

    assert [(row.record, row.ts_ns) for row in found] == [("state", seen_ns)]


def test_without_trouble_the_last_operation_is_told_every_ten_seconds(bench: Bench) -> None:
    bench.beat(1, last=[["w", "all_reduce", 5, bench.ts - 9]])
    found = of(bench.runs(21), CollectiveBatch)

    assert len(found) in {2, 3}
    assert all(row.record == "completion" and row.op_seq == 5 for row in rows(found))


def test_all_ranks_of_a_small_job_are_sampled() -> None:
    assert sampled_ranks(10, [], 3, range(10)) == frozenset(range(10))


@given(
    tp=st.sampled_from([1, 2, 4, 8]),
    dp=st.sampled_from([1, 2, 4, 16, 64]),
    pp=st.sampled_from([1, 2, 4]),
    epoch=st.integers(0, 1000),
)
def test_at_most_ten_are_sampled_and_hosts_agree_without_a_word(tp: int, dp: int, pp: int, epoch: int) -> None:
    world = tp * dp * pp
    groups = [tuple(p * tp * dp + d * tp + t for d in range(dp)) for p in range(pp) for t in range(tp)]
    whole = sampled_ranks(world, groups, epoch, range(world))
    apart: set[int] = set()
    for start in range(0, world, 8):
        ranks = range(start, min(start + 8, world))
        known = [group for group in groups if set(group) & set(ranks)]
        apart |= sampled_ranks(world, known, epoch, ranks)

    assert whole == apart
    assert 0 < len(whole) <= 10
    if world > 10:
        assert any(whole <= set(group) for group in groups)


def test_every_rank_has_its_turn() -> None:
    groups = [tuple(range(t, 128, 2)) for t in range(2)]
    seen: set[int] = set()
    for epoch in range(2 * 64):
        seen |= sampled_ranks(128, groups, epoch, range(128))

    assert seen == set(range(128))


def test_the_ring_keeps_a_minute_and_a_bounded_number() -> None:
    ring = CollectiveRing(span_ns=60 * S, limit=50)
    now = time.time_ns()
    for second in range(100):
        ring.add(now + second * S, 0, (("w", "all_reduce", second, 1, now, now + 1),))

    assert [op_seq for _, items in ring.parts() for _, _, op_seq, *_ in items] == list(range(50, 100))
    ring.add(now + 200 * S, 1, (("w", "x", 7, 1, now, now + 1),))
    assert list(ring.parts()) == [(1, [("w", "x", 7, 1, now, now + 1)])]
    assert list(ring.parts(0)) == []


def test_the_ring_outlives_the_rank(bench: Bench) -> None:
    bench.step(0, coll=[["w", "all_reduce", 1, 8, bench.ts - 9, bench.ts - 5]])
    bench.hook("exit", pid=7, code=1)
    bench.runs(30)
    batch = bench.core.jobs[JOB[0], JOB[1]].ring_batch(-1, bench.clock.read()[0])

    assert [row.op_seq for row in batch.rows] == [1]


def test_a_rank_beyond_the_announced_size_is_no_error() -> None:
    for epoch in range(20):
        assert sampled_ranks(11, [], epoch, [5, 100, 999_999]) <= {5, 100, 999_999}
