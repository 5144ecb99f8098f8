"""Samples of one slice as a table with one row per machine, the input of Minder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from tocsin.models.frames import FloatArray, Grid, fits, stack_frames
from tocsin.models.metric_means import MetricMeans, possible
from tocsin.pipeline.detect.peers.rows import mean_by_host
from tocsin.schemas.metrics import Metric, MetricTable
from tocsin.schemas.records import Frame, Slice


@dataclass(frozen=True, slots=True, eq=False)
class Ticks:
    """Samples of several machines over a time span.

    Attributes:
        hosts: host names, ascending.
        values: float32, shape (hosts, metrics, ticks), NaN = no sample.
        start_ns: time of the first tick.
        tick_ns: distance between ticks.
    """

    hosts: tuple[str, ...]
    values: FloatArray
    start_ns: int
    tick_ns: int


def ticks_of_frames(data: Slice, tables: Mapping[int, MetricTable], metrics: Sequence[str]) -> Ticks | None:
    """Return a slice's frames on a common time grid; None if it has none.

    Frames that do not fit their table are dropped. A machine's GPUs are averaged; the paper does not say how it makes
    one series of eight (section 1.2).
    """
    frames = [record for record in data.records if isinstance(record, Frame) and record.table_id in tables]
    frames = [frame for frame in frames if fits(frame, tables[frame.table_id])]
    if not frames:
        return None
    tick_ns = frames[0].tick_ns
    grid = Grid(data.start_ns, tick_ns, max(1, (data.end_ns - data.start_ns) // tick_ns))
    hosts = tuple(sorted({frame.host for frame in frames}))
    values = np.full((len(hosts), len(metrics), grid.tick_count), np.nan, np.float32)
    by_table = sorted(frames, key=lambda frame: frame.table_id)  # stable: within a table their order stays
    for table_id, members in groupby(by_table, key=lambda frame: frame.table_id):
        table = tables[table_id]
        stack = stack_frames(list(members), table, grid, hosts=hosts)
        host_row = {host: row for row, host in enumerate(hosts)}
        of_host = np.array([host_row[host] for host, _ in stack.gpu_rows], np.intp)
        means = _gpu_means(possible(stack.gpu_values, table.gpu), of_host, len(hosts))
        for scope, found in ((table.host, possible(stack.host_values, table.host)), (table.gpu, means)):
            _lay(values, found, scope, metrics)
    return Ticks(hosts, values, data.start_ns, tick_ns)


def ticks_of_means(data: Slice, means: MetricMeans, table: MetricTable, metrics: Sequence[str]) -> Ticks:
    """Return one sample per machine, the slice's mean, for runtimes that have already reduced the frames.

    The paper samples at 1 Hz; here a window of 8 samples spans 40 s instead of 8 s. The required duration of a
    deviation is given in seconds and stays the same.
    """
    host_row = {host: row for row, host in enumerate(means.hosts)}
    of_host = np.array([host_row[host] for host, _ in means.gpu_rows], np.intp)
    by_host = mean_by_host(means.gpu_values, of_host, len(means.hosts))
    values = np.full((len(means.hosts), len(metrics), 1), np.nan, np.float32)
    for scope, found in ((table.host, means.host_values), (table.gpu, by_host)):
        _lay(values, found[:, :, None], scope, metrics)
    return Ticks(means.hosts, values, data.start_ns, data.end_ns - data.start_ns)


def _gpu_means(values: FloatArray, of_host: NDArray[np.intp], host_count: int) -> FloatArray:
    """Return the mean over each host's GPUs, shape (hosts, metrics, ticks)."""
    rows, width, ticks = values.shape
    return mean_by_host(values.reshape(rows, width * ticks), of_host, host_count).reshape(host_count, width, ticks)


def _lay(out: FloatArray, values: FloatArray, scope: Sequence[Metric], metrics: Sequence[str]) -> None:
    """Copy the finite values of requested metrics into the output table, in place."""
    for index, metric in enumerate(scope):
        if metric.name in metrics:
            column, found = metrics.index(metric.name), values[:, index]
            out[:, column] = np.where(np.isfinite(found), found, out[:, column])
