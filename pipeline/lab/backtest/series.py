"""The judged metric samples of a recording as one array, a row per machine."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tocsin.pipeline.core.frame_blocks import BUILTIN_TABLES
from tocsin.pipeline.detect.baselines.minder_ticks import Ticks, ticks_of_frames
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
    if "host_metrics" not in recording.tables or not len(np.asarray(recording.tables["host_metrics"]["ts_ns"])):
        return None
    places = Places(recording)
    table = metric_table_of(recording)
    tables: dict[int, MetricTable] = {**BUILTIN_TABLES, table.table_id: table}
    length_ns = metric_slice_ns(round(recording.manifest.tick_seconds * NS_PER_SECOND))
    frames = tuple(in_span(frames_of(recording, places), recording.manifest))
    if not frames:
        return None
    start_ns = min(frame.ts_ns for frame in frames) // length_ns * length_ns
    end_ns = (max(frame.ts_ns for frame in frames) // length_ns + 1) * length_ns
    return ticks_of_frames(Slice(places.job_at(start_ns), start_ns, end_ns, frames), tables, metrics)
