"""Means of metric samples over one slice: a row per host and one per GPU.

Peers are compared by their means over a slice, so only these means travel to the place where a job's
hosts meet. A large job's frames are reduced group by group where they arrive, and joined later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tocsin.models.frames import FloatArray, GpuRow, Grid, stack_frames
from tocsin.schemas.metrics import Metric, MetricTable, possible_range
from tocsin.schemas.records import Frame

LongArray = NDArray[np.int64]
CountArray = NDArray[np.uint16]
_WIRE_FLOAT = np.dtype("<f4")
Name = TypeVar("Name")
_MAX_COUNT = np.iinfo(np.uint16).max


@dataclass(frozen=True, slots=True, eq=False)
class MetricMeans:
    """Means of metric samples over one slice.

    Attributes:
        hosts: row keys of the host arrays, ascending.
        seen_ns: newest time stamp of each host's frames, Unix nanoseconds, shape (hosts,).
        tick_ns: distance between a host's samples, nanoseconds, shape (hosts,).
        sample_counts: ticks of a host with at least one host metric, shape (hosts,).
        gpu_rows: row keys (host, GPU uuid) of the GPU arrays, by host, then by uuid.
        host_values: float32, shape (hosts, host metrics), NaN = no sample.
        host_counts: number of samples behind each host mean, same shape.
        gpu_values: float32, shape (GPU rows, GPU metrics), NaN = no sample.
        gpu_counts: number of samples behind each GPU mean, same shape.
    """

    hosts: tuple[str, ...]
    seen_ns: LongArray
    tick_ns: LongArray
    sample_counts: LongArray
    gpu_rows: tuple[GpuRow, ...]
    host_values: FloatArray
    host_counts: CountArray
    gpu_values: FloatArray
    gpu_counts: CountArray


@dataclass(frozen=True, slots=True)
class Columns:
    """The position of one metric group's columns in the whole table.

    Attributes:
        gpu_column: index of its first column among the GPU columns.
        host_column: index of its first column among the host columns.
    """

    gpu_column: int = 0
    host_column: int = 0


def means_of(frames: Sequence[Frame], table: MetricTable, start_ns: int, end_ns: int) -> MetricMeans:
    """Reduce the frames of one metric table to means over a slice.

    Args:
        frames: in canonical order, at least one; all have the sizes of the table.
        table: the metrics of their columns.
        start_ns: begin of the slice, Unix nanoseconds; samples outside do not count.
        end_ns: end of the slice.
    """
    tick_ns = frames[0].tick_ns
    stack = stack_frames(frames, table, Grid(start_ns, tick_ns, max(1, (end_ns - start_ns) // tick_ns)))
    rows = {host: row for row, host in enumerate(stack.hosts)}
    place = np.array([rows[frame.host] for frame in frames], np.intp)
    seen_ns, ticks_ns, counts = (np.zeros(len(rows), np.int64) for _ in range(3))
    np.maximum.at(seen_ns, place, np.array([frame.ts_ns for frame in frames], np.int64))
    ticks_ns[place] = [frame.tick_ns for frame in frames]
    counts[place] = _samples(frames, len(table.host))
    host_values, host_counts = mean_over_ticks(possible(stack.host_values, table.host))
    gpu_values, gpu_counts = mean_over_ticks(possible(stack.gpu_values, table.gpu))
    return MetricMeans(
        stack.hosts, seen_ns, ticks_ns, counts, stack.gpu_rows, host_values, host_counts, gpu_values, gpu_counts
    )


def _samples(frames: Sequence[Frame], metric_count: int) -> LongArray:
    """Return for each frame its number of ticks with at least one host metric, shape (frames,)."""
    found = np.zeros(len(frames), np.int64)
    by_length: dict[int, list[int]] = {}
    for index, frame in enumerate(frames):
        by_length.setdefault(frame.tick_count, []).append(index)
    for tick_count, members in by_length.items():
        values = np.frombuffer(b"".join([frames[index].host_matrix for index in members]), _WIRE_FLOAT)
        known = np.isfinite(values.reshape(len(members), metric_count, tick_count))
        found[members] = known.any(axis=1).sum(axis=1)
    return found


def possible(values: FloatArray, metrics: Sequence[Metric]) -> FloatArray:
    """Return values with impossible ones replaced by NaN, e.g. wrapped counters and drivers' error numbers.

    Args:
        values: shape (rows, metrics, ticks).
        metrics: the metrics of the second axis; each has its possible range.
    """
    low, high = np.array([possible_range(metric) for metric in metrics], np.float32).reshape(-1, 2).T[:, :, None]
    wrong = (values < low) | (values > high)
    return np.where(wrong, np.float32(np.nan), values) if wrong.any() else values


def mean_over_ticks(values: FloatArray) -> tuple[FloatArray, CountArray]:
    """Return the mean and the count of samples over the last axis, without missing ticks.

    Returns:
        Means (NaN without a sample) and counts, shape (rows, metrics) each.
    """
    known = np.isfinite(values)
    count = known.sum(axis=2)
    total = np.where(known, values, 0).sum(axis=2, dtype=np.float64)
    mean = np.where(count > 0, total / np.maximum(count, 1), np.nan).astype(np.float32)
    return mean, np.minimum(count, _MAX_COUNT).astype(np.uint16)


def join_means(parts: Sequence[tuple[MetricMeans, Columns]], table: MetricTable) -> MetricMeans:
    """Join the means of several metric groups, or of several parts of a slice, into one.

    Where parts hold the same host and metric, the result is the mean over all their samples.

    Args:
        parts: means and the position of their columns.
        table: the whole metric table.
    """
    if len(parts) == 1 and _is_whole(parts[0][0], table):
        return parts[0][0]
    hosts = tuple(sorted({host for means, _ in parts for host in means.hosts}))
    host_row = {host: row for row, host in enumerate(hosts)}
    gpu_rows = tuple(sorted({name for means, _ in parts for name in means.gpu_rows}))
    gpu_row = {name: row for row, name in enumerate(gpu_rows)}
    seen_ns, ticks_ns, samples = (np.zeros(len(hosts), np.int64) for _ in range(3))
    host_sum, gpu_sum = _Sum(len(hosts), len(table.host)), _Sum(len(gpu_rows), len(table.gpu))
    for means, columns in parts:
        rows = _rows(means.hosts, hosts, host_row)
        seen_ns[rows] = np.maximum(seen_ns[rows], means.seen_ns)
        ticks_ns[rows] = np.maximum(ticks_ns[rows], means.tick_ns)
        samples[rows] = np.maximum(samples[rows], means.sample_counts)
        host_sum.add(rows, columns.host_column, means.host_values, means.host_counts)
        rows = _rows(means.gpu_rows, gpu_rows, gpu_row)
        gpu_sum.add(rows, columns.gpu_column, means.gpu_values, means.gpu_counts)
    return MetricMeans(hosts, seen_ns, ticks_ns, samples, gpu_rows, *host_sum.mean(), *gpu_sum.mean())


def _is_whole(means: MetricMeans, table: MetricTable) -> bool:
    """Return whether means have a column for every metric of the table."""
    return (means.host_values.shape[1], means.gpu_values.shape[1]) == (len(table.host), len(table.gpu))


def _rows(names: Sequence[Name], known: Sequence[Name], place: Mapping[Name, int]) -> NDArray[np.intp]:
    """Return the row of each name; without a look-up where the names are all known ones in order."""
    if names == known:
        return np.arange(len(names), dtype=np.intp)
    return np.array([place[name] for name in names], np.intp)


class _Sum:
    """Running sums and counts of samples, shape (rows, metrics)."""

    def __init__(self, row_count: int, metric_count: int) -> None:
        self._total = np.zeros((row_count, metric_count))
        self._count = np.zeros((row_count, metric_count), np.int64)

    def add(self, rows: NDArray[np.intp], column: int, values: FloatArray, counts: CountArray) -> None:
        """Add means, weighted with their counts, to these rows and the columns from ``column`` on."""
        place = slice(column, column + values.shape[1])
        self._total[rows, place] += np.where(counts > 0, values.astype(np.float64) * counts, 0.0)
        self._count[rows, place] += counts

    def mean(self) -> tuple[FloatArray, CountArray]:
        """Return means (NaN without samples) and counts."""
        mean = np.where(self._count > 0, self._total / np.maximum(self._count, 1), np.nan).astype(np.float32)
        return mean, np.minimum(self._count, _MAX_COUNT).astype(np.uint16)
