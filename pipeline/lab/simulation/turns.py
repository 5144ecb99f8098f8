"""A case as slice bundles for a job's pipeline, without rows, frames or bytes in between.

A replay of the recording would give the same numbers: means of the same samples, in the same blocks. A day of a
thousand machines takes a minute or two this way, which makes long healthy runs possible.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tocsin.models.metric_means import MetricMeans
from tocsin.pipeline.core.frame_blocks import FrameBlock, MetricSlice
from tocsin.pipeline.core.slices import SliceBundle, canonical_records
from tocsin.pipeline.lab.simulation.case import Case, CasePart
from tocsin.pipeline.lab.simulation.levels import GPU_INDEX, HOST_INDEX
from tocsin.pipeline.recording.frames import metric_table_of
from tocsin.pipeline.recording.places import Places
from tocsin.pipeline.recording.stream import records_of
from tocsin.pipeline.recording.tables import Recording
from tocsin.schemas.metrics import Metric, MetricTable
from tocsin.schemas.records import NS_PER_SECOND, JobKey, JobRecord, Slice

_Name = TypeVar("_Name")
_MS = NS_PER_SECOND // 1000


def turns_of(case: Case, attempt: int = 0) -> Iterator[SliceBundle]:
    """Yield a case's slice bundles second by second, for ``JobPipeline.on_bundle``.

    Args:
        case: the case.
        attempt: attempt number of the job.
    """
    manifest = replace(case.manifest(), attempt=attempt)
    places: Places | None = None
    blocks: _Blocks | None = None
    began = False
    for part in case.parts():
        recording = Recording(manifest, part.tables, case.user_metrics(), None)
        is_first = places is None or blocks is None
        if places is None or blocks is None:
            places = Places(recording)
            blocks = _Blocks(case, places.job_at(part.start_ns), metric_table_of(recording), places)
        by_second: dict[int, list[JobRecord]] = {}
        for record in records_of(recording, announce=is_first, places=places):
            by_second.setdefault(record.ts_ns // NS_PER_SECOND, []).append(record)
        end_ns = part.start_ns + case.shape.slice_ns
        for second_ns in range(part.start_ns, end_ns, NS_PER_SECOND):
            records = by_second.pop(second_ns // NS_PER_SECOND, [])
            metrics = blocks.slice(part) if second_ns + NS_PER_SECOND == end_ns else None
            began = began or bool(records) or metrics is not None  # a job is known from its first record on
            if began:
                fast_end_ns = second_ns + NS_PER_SECOND
                fast = Slice(blocks.job, second_ns, fast_end_ns, canonical_records(records))
                yield SliceBundle(blocks.job, fast_end_ns, fast, () if metrics is None else (metrics,))


class _Blocks:
    """Builds one frame block from each slice's samples."""

    def __init__(self, case: Case, job: JobKey, table: MetricTable, places: Places) -> None:
        shape = case.shape
        self.job, self._shape, self._table = job, shape, table
        self._order = np.array(sorted(range(shape.host_count), key=lambda host: shape.host_names[host]), np.intp)
        self._hosts = tuple(shape.host_names[host] for host in self._order.tolist())
        gpus = range(shape.gpus_per_host_count)
        self._gpus = [(host, places.gpu_uuid(host, gpu)) for host in self._hosts for gpu in gpus]
        tick_ns = round(shape.tick_seconds * NS_PER_SECOND)
        phase_ns = np.round(shape.sample_phase_seconds[self._order] * 1e9).astype(np.int64)
        # Samples go to their nearest tick: of a host that samples late in its tick the last one goes to the next slice.
        self._is_late = 2 * (phase_ns % tick_ns) > tick_ns
        self._tick_ns = tick_ns
        self._gpu_columns = _columns(table.gpu, shape.metrics, GPU_INDEX)
        self._host_columns = _columns(table.host, shape.metrics, HOST_INDEX)

    def slice(self, part: CasePart) -> MetricSlice | None:
        """Return the metrics that the operators get at the end of this slice, None without any sample."""
        shape = self._shape
        ticks = slice(part.first_index, part.first_index + shape.slice_ticks)
        kept = part.matrices.kept[ticks][:, self._order]
        counts = kept.copy()
        counts[-1, self._is_late] = False
        host = part.matrices.host[:, ticks][:, :, self._order]
        gpu = part.matrices.gpu[:, ticks][:, :, self._order]
        has_host = kept[:, :, 0].any(axis=0) & bool(self._host_columns[0].size)
        gpu_rows = kept[:, :, 1:].any(axis=0)
        here = has_host | (gpu_rows.any(axis=1) & bool(self._gpu_columns[0].size))
        if not here.any():
            return None
        host_values, host_counts = _means(host, counts[:, :, 0], len(self._table.host), self._host_columns)
        gpu_values, gpu_counts = _means(
            gpu.reshape(*gpu.shape[:2], -1),
            counts[:, :, 1:].reshape(len(counts), -1),
            len(self._table.gpu),
            self._gpu_columns,
        )
        rows = (gpu_rows & here[:, None]).reshape(-1)
        end_ns = part.start_ns + shape.slice_ns
        stamps = np.full(int(here.sum()), end_ns - _MS, np.int64)
        means = MetricMeans(
            _chosen(self._hosts, here),
            stamps,
            np.full(len(stamps), self._tick_ns, np.int64),
            (kept[:, :, 0].sum(axis=0, dtype=np.int64) * bool(self._host_columns[0].size))[here],
            _chosen(self._gpus, rows),
            host_values[here],
            host_counts[here],
            gpu_values[rows],
            gpu_counts[rows],
        )
        block = FrameBlock(self.job, self._table.table_id, part.start_ns, end_ns, end_ns - _MS, means)
        return MetricSlice(self.job, part.start_ns, end_ns, (), (block,))


_Columns = tuple[NDArray[np.intp], NDArray[np.intp]]


def _columns(metrics: Sequence[Metric], present: Sequence[str], index: dict[str, int]) -> _Columns:
    """Return the positions of recorded metrics: columns of the table, rows of the matrices."""
    pairs = [(column, index[metric.name]) for column, metric in enumerate(metrics) if metric.name in present]
    return np.array([pair[0] for pair in pairs], np.intp), np.array([pair[1] for pair in pairs], np.intp)


def _means(
    values: NDArray[np.float32], counts: NDArray[np.bool_], width: int, columns: _Columns
) -> tuple[NDArray[np.float32], NDArray[np.uint16]]:
    """Return mean and count of each row's samples, shape (rows, width); equal to ``mean_over_ticks`` of their frames.

    Args:
        values: shape (metrics, ticks, rows).
        counts: which samples count, shape (ticks, rows).
        width: number of columns of the table.
        columns: result of ``_columns``.
    """
    place, source = columns
    count = counts.sum(axis=0)
    total = np.where(counts, values[source], np.float32(0)).sum(axis=1, dtype=np.float64)
    mean = np.where(count > 0, total / np.maximum(count, 1), np.nan).astype(np.float32)
    found = np.full((values.shape[2], width), np.nan, np.float32)
    found[:, place] = mean.T
    numbers = np.zeros((values.shape[2], width), np.uint16)
    numbers[:, place] = count[:, None]
    return found, numbers


def _chosen(names: Sequence[_Name], rows: NDArray[np.bool_]) -> tuple[_Name, ...]:
    """Return the names whose row is true."""
    if rows.all():
        return tuple(names)
    return tuple(name for name, chosen in zip(names, rows.tolist(), strict=True) if chosen)
