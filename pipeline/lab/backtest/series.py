"""The judged metric samples of a recording, and its slice means, as one array each, a row per machine."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import numpy as np

from tocsin.pipeline.core.frame_blocks import BUILTIN_TABLES, join_blocks, slice_blocks
from tocsin.pipeline.detect.baselines.minder_ticks import Ticks, ticks_of_frames, ticks_of_means
from tocsin.pipeline.recording.frames import frames_of, metric_table_of
from tocsin.pipeline.recording.judged_range import in_span
from tocsin.pipeline.recording.places import Places
from tocsin.pipeline.recording.tables import Recording
from tocsin.schemas.metrics import MetricTable
from tocsin.schemas.records import NS_PER_SECOND, Slice, metric_slice_ns


def series_of(recording: Recording, metrics: Sequence[str]) -> Ticks | None:
    """Return a recording's metrics on one time grid, over all slices that a replay judges; None without samples.

    Args:
        recording: the recording.
        metrics: names of the second axis; one that is not recorded is all NaN.
    """
    whole = _whole(recording)
    return None if whole is None else ticks_of_frames(whole, _tables_of(recording), metrics)


def means_of(recording: Recording, metrics: Sequence[str]) -> Ticks | None:
    """Return the means of a recording's metric slices, as a running job's operators get them; None without samples.

    Args:
        recording: the recording.
        metrics: names of the second axis; one that is not recorded is all NaN.

    Returns:
        One tick a slice.
    """
    whole = _whole(recording)
    if whole is None:
        return None
    tables, table = _tables_of(recording), metric_table_of(recording)
    length_ns = _slice_ns(recording)
    found = []
    for index, members in groupby(whole.records, key=lambda frame: frame.ts_ns // length_ns):
        data = Slice(whole.job, index * length_ns, (index + 1) * length_ns, tuple(members))
        means = join_blocks(slice_blocks(data, tables), table)
        if means is not None:
            found.append(ticks_of_means(data, means, table, metrics))
    if not found:
        return None
    hosts = tuple(sorted(set().union(*(one.hosts for one in found))))
    row = {host: index for index, host in enumerate(hosts)}
    count = (whole.end_ns - whole.start_ns) // length_ns
    values = np.full((len(hosts), len(metrics), count), np.nan, np.float32)
    for one in found:
        values[[row[host] for host in one.hosts], :, (one.start_ns - whole.start_ns) // length_ns] = one.values[:, :, 0]
    return Ticks(hosts, values, whole.start_ns, length_ns)


def _whole(recording: Recording) -> Slice | None:
    """Return all frames of a recording that a replay judges as one slice, in order of time; None without any."""
    if "host_metrics" not in recording.tables or not len(np.asarray(recording.tables["host_metrics"]["ts_ns"])):
        return None
    places, length_ns = Places(recording), _slice_ns(recording)
    frames = tuple(in_span(frames_of(recording, places), recording.manifest))
    if not frames:
        return None
    start_ns = min(frame.ts_ns for frame in frames) // length_ns * length_ns
    end_ns = (max(frame.ts_ns for frame in frames) // length_ns + 1) * length_ns
    return Slice(places.job_at(start_ns), start_ns, end_ns, frames)


def _slice_ns(recording: Recording) -> int:
    """Return the length of a recording's metric slices."""
    return metric_slice_ns(round(recording.manifest.tick_seconds * NS_PER_SECOND))


def _tables_of(recording: Recording) -> dict[int, MetricTable]:
    """Return the metric tables of a recording's frames by their ids."""
    table = metric_table_of(recording)
    return {**BUILTIN_TABLES, table.table_id: table}
