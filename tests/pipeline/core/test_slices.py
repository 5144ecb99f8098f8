"""Slices do not depend on the order of arrival, nor on repetition; late is late."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.pipeline.core.slices import (
    RecordOutcome,
    SliceBuffer,
    SliceBundle,
    SliceConfig,
)
from tocsin.pipeline.lab.testing import FakeJob, JobShape
from tocsin.schemas.errors import FieldError, TooManyError
from tocsin.schemas.records import NS_PER_SECOND, Event, EventSource, Frame, JobKey, JobRecord, Severity
from tocsin.schemas.wire.codec import encode

START = 1_700_000_000 * NS_PER_SECOND
JOB = JobKey("c", "j", 0)


def _event(offset_seconds: float, rank: int = 0, name: str = "x") -> Event:
    ts_ns = START + int(offset_seconds * NS_PER_SECOND)
    return Event(JOB, f"n{rank}", ts_ns, rank, EventSource.PROCESS, name, Severity.INFO)


def _turns(records: list[JobRecord], seconds: int) -> list[SliceBundle]:
    buffer = SliceBuffer(SliceConfig())
    for record in records:
        assert buffer.add(record) in (RecordOutcome.OK, RecordOutcome.DUPLICATE)
    return buffer.advance(START + seconds * NS_PER_SECOND)


def _job_records(seconds: int) -> list[JobRecord]:
    job = FakeJob(JobShape(rank_count=4, start_ns=START))
    return [record for _ in range(seconds) for record in job.second()]


@given(seed=st.integers(0, 2**32), repeats=st.integers(1, 3))
def test_shuffled_and_repeated_records_give_the_same_turns(seed: int, repeats: int) -> None:
    """The canonical order and the dropping of duplicates make arrival irrelevant."""
    records = _job_records(7)
    expected = _turns(records, 12)
    mixed = records * repeats
    random.Random(seed).shuffle(mixed)

    assert _turns(mixed, 12) == expected


@given(cut=st.integers(0, 11), seed=st.integers(0, 1000))
def test_a_restored_buffer_goes_on_as_if_nothing_happened(cut: int, seed: int) -> None:
    """Snapshot and restore at any second."""
    records = _job_records(7)
    random.Random(seed).shuffle(records)
    whole = SliceBuffer(SliceConfig())
    broken = SliceBuffer(SliceConfig())
    for record in records:
        whole.add(record)
        broken.add(record)
    expected, got = [], []
    for second in range(1, 12):
        expected += whole.advance(START + second * NS_PER_SECOND)
        got += broken.advance(START + second * NS_PER_SECOND)
        if second == cut:
            parts = broken.snapshot()
            broken = SliceBuffer(SliceConfig())
            broken.restore(parts)

    assert got == expected


def test_a_slice_waits_for_its_lateness() -> None:
    """The slice that ends at 1 s is handed on by the tick of 2 s, not before."""
    buffer = SliceBuffer(SliceConfig())
    buffer.add(_event(0.5))

    assert buffer.advance(START + int(1.9 * NS_PER_SECOND)) == []
    turns = buffer.advance(START + 2 * NS_PER_SECOND)
    assert [turn.end_ns - START for turn in turns] == [NS_PER_SECOND]
    assert turns[0].fast.records == (_event(0.5),)


def test_what_comes_after_its_slice_is_late() -> None:
    """Late records change nothing; the one second before them is still open."""
    buffer = SliceBuffer(SliceConfig())
    buffer.add(_event(0.5))
    buffer.advance(START + 3 * NS_PER_SECOND)

    assert buffer.add(_event(1.9)) is RecordOutcome.LATE
    assert buffer.add(_event(2.0)) is RecordOutcome.OK


def test_a_record_from_the_future_is_refused() -> None:
    """More than two seconds ahead of time: refused, so it cannot make the others late."""
    buffer = SliceBuffer(SliceConfig())
    buffer.advance(START)

    assert buffer.add(_event(600)) is RecordOutcome.AHEAD
    assert buffer.add(_event(1.9)) is RecordOutcome.OK


def test_a_silent_job_still_has_turns() -> None:
    """Silence is seen because every known job gets a turn each second."""
    buffer = SliceBuffer(SliceConfig())
    buffer.add(_event(0.5))
    turns = buffer.advance(START + 11 * NS_PER_SECOND)

    assert len(turns) == 10
    assert all(not turn.fast.records for turn in turns[1:])


def test_frames_come_with_the_second_that_ends_their_slice() -> None:
    """A frame of 5 s stamped at its slice's end minus 1 ms; a slower source has longer slices."""
    buffer = SliceBuffer(SliceConfig())
    stamp = START + 5 * NS_PER_SECOND - 1_000_000
    quick = Frame(JOB, "a", stamp, 1, START, NS_PER_SECOND, 5, (), b"", b"\0" * 160)
    slow = Frame(JOB, "b", START + 25 * NS_PER_SECOND - 1_000_000, 1, START, 5 * NS_PER_SECOND, 5, (), b"", b"\0" * 160)
    buffer.add(_event(0.5))
    buffer.add(quick)
    buffer.add(slow)
    turns = buffer.advance(START + 30 * NS_PER_SECOND)
    found = {(turn.end_ns - START) // NS_PER_SECOND: turn.metrics for turn in turns if turn.metrics}

    assert {second: [s.records for s in slices] for second, slices in found.items()} == {5: [(quick,)], 25: [(slow,)]}


def test_equal_content_is_a_duplicate_whatever_its_object() -> None:
    """Bytes decide what a duplicate is."""
    buffer = SliceBuffer(SliceConfig())
    data = encode(_event(0.5))

    assert buffer.add(_event(0.5), data) is RecordOutcome.OK
    assert buffer.add(_event(0.5), bytes(bytearray(data))) is RecordOutcome.DUPLICATE


def _frame(host: str, number: int, byte_count: int, tick_ns: int = NS_PER_SECOND) -> Frame:
    return Frame(JOB, host, START + number, 1, START, tick_ns, 5, (), b"", bytes(byte_count))


def test_what_is_held_of_a_host_is_bounded_and_others_go_on() -> None:
    """Frames of hours would be held for hours; when they are handed on there is room again."""
    buffer = SliceBuffer(SliceConfig(host_held_bytes=10_000, held_bytes=25_000))
    buffer.advance(START)
    for number in range(9):
        buffer.add(_frame("greedy", number, 0), b"%d" % number + bytes(1_000))
    with pytest.raises(TooManyError, match="more than 10000 bytes held") as refused:
        buffer.add(_frame("greedy", 10, 0), bytes(2_000))
    assert refused.value.reason == "too_many_bytes_held"
    assert buffer.add(_frame("modest", 0, 0), bytes(9_000)) is RecordOutcome.OK
    assert buffer.held_bytes == 9 * 1_001 + 9_000
    buffer.advance(START + 10 * NS_PER_SECOND)
    assert buffer.held_bytes == 0
    buffer.add(_frame("greedy", 7 * NS_PER_SECOND * 2, 0), bytes(9_000))
    buffer.forget(JOB)
    assert buffer.held_bytes == 0


def test_when_all_is_full_hosts_that_hold_little_are_heard() -> None:
    buffer = SliceBuffer(SliceConfig(held_bytes=4_100_000))
    buffer.advance(START)
    for host in ("a", "b"):
        buffer.add(_frame(host, 0, 0), host.encode() + bytes(2_000_000))
    with pytest.raises(TooManyError):
        buffer.add(_frame("c", 0, 0), bytes(2_000_000))
    assert buffer.add(_frame("d", 0, 0), bytes(900_000)) is RecordOutcome.OK


def test_a_slice_of_days_is_refused_by_name() -> None:
    buffer = SliceBuffer(SliceConfig())
    with pytest.raises(FieldError, match=r"frame\.tick_ns"):
        buffer.add(_frame("a", 0, 8, 86_400 * NS_PER_SECOND), b"days")
    assert buffer.add(_frame("a", 0, 8, 3600 * NS_PER_SECOND), b"hours") is RecordOutcome.OK


def test_time_may_begin_anew_before_where_it_stood() -> None:
    buffer = SliceBuffer(SliceConfig())
    buffer.add(_event(0.5))
    buffer.advance(START + 10 * NS_PER_SECOND)
    buffer.begin_anew(START - 60 * NS_PER_SECOND)
    early = replace(_event(0.5), ts_ns=START - 60 * NS_PER_SECOND + 1)

    assert buffer.add(early) is RecordOutcome.OK
    turns = buffer.advance(START - 55 * NS_PER_SECOND)
    assert [turn.end_ns for turn in turns] == [START - second * NS_PER_SECOND for second in (60, 59, 58, 57, 56)]
