"""All samples of a recording on one grid: where it begins and ends, and what does not count."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.pipeline.lab.backtest.kit import (
    T0,
    at,
    cpu_recording,
    manifest,
)
from tocsin.pipeline.lab.backtest.series import series_of
from tocsin.pipeline.recording.tables import Manifest, Recording
from tocsin.schemas.records import NS_PER_SECOND

CPU = ("cpu_util_ratio",)


def moved(recording: Recording, seconds: float) -> Recording:
    """The same, so much later."""
    table = dict(recording.tables["host_metrics"])
    table["ts_ns"] = np.asarray(table["ts_ns"]) + round(seconds * NS_PER_SECOND)
    own = recording.manifest
    reported = Manifest(own.job_id, 0, own.start_ns + at(seconds) - T0, own.end_ns + at(seconds) - T0, own.tick_seconds)
    return Recording(reported, {"host_metrics": table})


@pytest.mark.parametrize(
    ("tick_seconds", "begin", "slices", "slice_seconds"), [(1.0, 5, 3, 5), (1.0, 15, 1, 5), (5.0, 25, 2, 25)]
)
def test_the_grid_begins_and_ends_with_the_slices_that_hold_samples(
    tick_seconds: float, begin: int, slices: int, slice_seconds: int
) -> None:
    """A begin that is no multiple of two slices: a longer grid would have ticks without a sample."""
    span = slices * slice_seconds
    recording = cpu_recording(3, round(span / tick_seconds))
    table = dict(recording.tables["host_metrics"])
    table["ts_ns"] = T0 + (np.asarray(table["ts_ns"]) - T0) * round(tick_seconds)
    job = moved(Recording(manifest(span, tick_seconds), {"host_metrics": table}), begin)
    series = series_of(job, CPU)

    assert series is not None
    assert (series.start_ns, series.tick_ns) == (at(begin), round(tick_seconds * NS_PER_SECOND))
    assert series.values.shape == (3, 1, round(span / tick_seconds))
    assert np.isfinite(series.values).all()


def test_what_lies_outside_the_recording_does_not_count() -> None:
    """Nor does one sample of another year make a grid of a year."""
    whole = cpu_recording(3, 300)
    cut = replace(whole, manifest=manifest(120))
    table = dict(whole.tables["host_metrics"])
    times = np.array(table["ts_ns"])
    times[:3] = at(-3e7)
    table["ts_ns"] = times
    early = series_of(replace(cut, tables={"host_metrics": table}), CPU)
    all_of_it, part = series_of(whole, CPU), series_of(cut, CPU)

    assert all_of_it is not None
    assert part is not None
    assert early is not None
    np.testing.assert_array_equal(part.values, all_of_it.values[:, :, :120])
    np.testing.assert_array_equal(early.values[:, :, 1:], part.values[:, :, 1:])


def test_a_recording_of_no_length_has_no_series() -> None:
    assert series_of(replace(cpu_recording(3, 300), manifest=manifest(0)), CPU) is None
