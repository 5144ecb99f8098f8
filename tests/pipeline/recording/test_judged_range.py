"""Which records of a recording are judged: the same for a replay and for every detector set."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from tests.pipeline.lab.backtest.kit import (
    T0,
    at,
    cpu_recording,
    manifest,
)
from tocsin.pipeline.recording.judged_range import has_no_length, in_span, judged_span_ns
from tocsin.pipeline.recording.replay import ReplayConfig, seconds_of
from tocsin.pipeline.recording.stream import records_of
from tocsin.pipeline.recording.tables import Manifest, Recording
from tocsin.schemas.kinds import EventSource, Severity
from tocsin.schemas.records import Event, JobKey

JOB = JobKey("c", "j")


def event(seconds: float) -> Event:
    return Event(JOB, "a", at(seconds), -1, EventSource.JOB, "e", Severity.INFO, {})


def test_a_minute_before_the_start_and_the_whole_last_second_count() -> None:
    reported = replace(manifest(100), end_ns=at(99.2))
    times = [-60.1, -60, 0, 99.1, 99.9, 100, 400]

    assert judged_span_ns(reported) == (at(-60), at(100))
    assert [one.ts_ns for one in in_span(map(event, times), reported)] == [at(time) for time in (-60, 0, 99.1, 99.9)]


def test_what_follows_the_span_is_not_read() -> None:
    endless = (event(seconds) for seconds in itertools.count(97))

    assert [one.ts_ns for one in in_span(endless, manifest(100))] == [at(97), at(98), at(99)]


@pytest.mark.parametrize("start_ns", [T0, T0 + 1, at(0.7)])
def test_of_a_recording_of_no_length_nothing_counts(start_ns: int) -> None:
    """Not what came in the minute before it either, nor in the rest of its second."""
    empty = Manifest("job", 0, start_ns, start_ns, 1.0)

    assert has_no_length(empty)
    assert not has_no_length(replace(empty, end_ns=start_ns + 1))
    assert list(in_span(map(event, (-30, 0, 0.7, 0.9, 3)), empty)) == []


def test_a_replay_feeds_the_span_and_nothing_else() -> None:
    recording = cpu_recording(3, 100)
    cut = Recording(manifest(63), recording.tables)
    fed = [record for _, records in seconds_of(cut, ReplayConfig()) for record in records]

    assert fed == list(in_span(records_of(recording), cut.manifest))
    assert len(fed) == 3 * 12  # of slices of five seconds those that end within it
    assert list(seconds_of(Recording(manifest(0), recording.tables), ReplayConfig())) == []
