"""Slices do not depend on the order of arrival, nor on repetition; late is late."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from tocsin.pipeline.slices import SliceBuffer, SliceConfig, Taken, Turn
from tocsin.pipeline.testing import FakeJob, JobShape
from tocsin.schemas.codec import encode
from tocsin.schemas.records import NS_PER_SECOND, Event, EventSource, Frame, JobKey, JobRecord, Severity

START = 1_700_000_000 * NS_PER_SECOND
JOB = JobKey("c", "j", 0)


def _event(offset_seconds: float, rank: int = 0, name: str = "x") -> Event:
    ts_ns = START + int(offset_seconds * NS_PER_SECOND)
    return Event(JOB, f"n{rank}", ts_ns, rank, EventSource.PROCESS, name, Severity.INFO)


def _turns(records: list[JobRecord], seconds: int) -> list[Turn]:
    buffer = SliceBuffer(SliceConfig())
    for record in records:
        assert buffer.add(record) in (Taken.OK, Taken.DUPLICATE)
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

    assert buffer.add(_event(1.9)) is Taken.LATE
    assert buffer.add(_event(2.0)) is Taken.OK


def test_a_record_from_the_future_is_refused() -> None:
    """More than two seconds ahead of time: refused, so it cannot make the others late."""
    buffer = SliceBuffer(SliceConfig())
    buffer.advance(START)

    assert buffer.add(_event(600)) is Taken.AHEAD
    assert buffer.add(_event(1.9)) is Taken.OK


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

    assert buffer.add(_event(0.5), data) is Taken.OK
    assert buffer.add(_event(0.5), bytes(bytearray(data))) is Taken.DUPLICATE
