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
from tocsin.pipeline.lab.backtest.series import means_of, series_of
from tocsin.pipeline.recording.tables import Manifest, Recording, Text
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


def test_means_are_those_of_slices_of_five_seconds() -> None:
    job = cpu_recording(3, 300)
    series, means = series_of(job, CPU), means_of(job, CPU)

    assert series is not None
    assert means is not None
    assert (means.hosts, means.start_ns, means.tick_ns) == (series.hosts, series.start_ns, 5 * series.tick_ns)
    wanted = series.values.reshape(*series.values.shape[:2], -1, 5).mean(axis=3)
    assert means.values == pytest.approx(wanted, rel=1e-5)


def test_a_machine_without_samples_in_a_slice_has_no_mean_there() -> None:
    job = cpu_recording(3, 300)
    columns = job.tables["host_metrics"]
    silent = np.asarray(columns["ts_ns"]) >= job.manifest.start_ns + 100 * NS_PER_SECOND
    hosts = columns["host"]
    assert isinstance(hosts, Text)
    kept = np.flatnonzero(~(silent & (hosts.codes == 0)))
    table = {
        name: column.take(kept) if isinstance(column, Text) else np.asarray(column)[kept]
        for name, column in columns.items()
    }
    means = means_of(replace(job, tables={**job.tables, "host_metrics": table}), CPU)

    assert means is not None
    row = means.hosts.index(hosts.words[0])
    assert np.isfinite(means.values[row, 0, :19]).all()
    assert np.isnan(means.values[row, 0, 21:]).all()
    assert np.isfinite(np.delete(means.values, row, axis=0)).all()


def test_without_samples_there_are_no_means() -> None:
    assert means_of(replace(cpu_recording(3, 300), manifest=manifest(0)), CPU) is None
