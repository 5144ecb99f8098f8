"""Convert rows of ``host_metrics`` to the frames that agents would have sent."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from tocsin.pipeline.recording.places import Places
from tocsin.pipeline.recording.tables import Columns, Recording, Text
from tocsin.schemas.errors import RecordingError
from tocsin.schemas.metrics import BUILTIN_TABLE, FIRST_CUSTOM_TABLE_ID, Metric, MetricTable
from tocsin.schemas.records import NS_PER_SECOND, Frame, metric_slice_ns

_MS = NS_PER_SECOND // 1000


def metric_table_of(recording: Recording) -> MetricTable:
    """Return the built-in metric table, extended by the recording's user-defined metrics if it has any."""
    if not recording.user_metrics:
        return BUILTIN_TABLE
    own = {
        scope: tuple(
            Metric(name, scope, values["min"], values["max"], values["bad"])
            for name, values in sorted(recording.user_metrics.items())
            if values["scope"] == scope
        )
        for scope in ("gpu", "host")
    }
    return MetricTable(FIRST_CUSTOM_TABLE_ID, BUILTIN_TABLE.gpu + own["gpu"], BUILTIN_TABLE.host + own["host"])


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of ``host_metrics`` in the order (slice, host, gpu, tick).

    Attributes:
        order: row numbers in the table.
        slice_index: slice number of each ordered row, shape (rows,), as are the following.
        host: host code.
        gpu: GPU index, -1 = the host itself.
        tick_ns: nominal time of the sample.
    """

    order: NDArray[np.intp]
    slice_index: NDArray[np.int64]
    host: NDArray[np.int32]
    gpu: NDArray[np.int8]
    tick_ns: NDArray[np.int64]


def frames_of(recording: Recording, places: Places) -> Iterator[Frame]:
    """Yield all frames in order of event time; a host and slice without any sample gives no frame.

    Raises:
        RecordingError: a row has no host name.
    """
    columns = recording.tables["host_metrics"]
    hosts = cast(Text, columns["host"])
    unnamed = np.flatnonzero((hosts.codes < 0) | np.isin(hosts.codes, [i for i, w in enumerate(hosts.words) if not w]))
    if unnamed.size:
        raise RecordingError("host_metrics.parquet", "'': must name a host", column="host", row=int(unnamed[0]))
    tick_ns = round(recording.manifest.tick_seconds * NS_PER_SECOND)
    table = metric_table_of(recording)
    matrices = {scope: _matrix(columns, metrics) for scope, metrics in (("gpu", table.gpu), ("host", table.host))}
    rows = _ordered(columns, hosts, tick_ns)
    cutter = _Cutter(hosts.words, matrices, table.table_id, tick_ns, places)
    keys = np.stack([rows.slice_index, rows.host])
    cuts = np.flatnonzero(np.any(np.diff(keys, axis=1) != 0, axis=0)) + 1
    bounds = [0, *cuts.tolist(), len(rows.order)]
    for begin, end in itertools.pairwise(bounds):
        if end > begin:
            frame = cutter.frame(rows, begin, end)
            if frame is not None:
                yield frame


def _matrix(columns: Columns, metrics: tuple[Metric, ...]) -> NDArray[np.float32]:
    """Return the values of these metrics, shape (rows, metrics), NaN where a column is missing."""
    count = len(cast(NDArray[Any], columns["ts_ns"]))
    matrix = np.full((count, len(metrics)), np.nan, np.float32)
    for index, metric in enumerate(metrics):
        if metric.name in columns:
            matrix[:, index] = cast(NDArray[Any], columns[metric.name])
    return matrix


def _ordered(columns: Columns, hosts: Text, tick_ns: int) -> _Rows:
    """Return the table's rows ordered by slice, host, GPU and tick."""
    ts_ns = cast(NDArray[np.int64], columns["ts_ns"])
    gpu = cast(NDArray[np.int8], columns["gpu"])
    nominal = _nominal_ns(ts_ns, hosts, tick_ns)
    slice_index = nominal // metric_slice_ns(tick_ns)
    order = np.lexsort((nominal, gpu, hosts.codes, slice_index))
    return _Rows(order, slice_index[order], hosts.codes[order], gpu[order], nominal[order])


def _nominal_ns(ts_ns: NDArray[np.int64], hosts: Text, tick_ns: int) -> NDArray[np.int64]:
    """Return the nominal tick time of each sample: each host samples at its own phase within the tick, with jitter.

    Without this, a host that samples at the edge of a slice would lose samples to the neighbouring slice.
    """
    nominal = ts_ns.copy()
    by_host = np.argsort(hosts.codes, kind="stable")
    cuts = np.flatnonzero(np.diff(hosts.codes[by_host])) + 1
    for mine in np.split(by_host, cuts) if by_host.size else ():
        angle = np.exp(2j * np.pi * ((ts_ns[mine] % tick_ns) / tick_ns))
        phase_ns = round(float(np.angle(angle.mean())) / (2 * np.pi) * tick_ns)
        nominal[mine] = (ts_ns[mine] - phase_ns + tick_ns // 2) // tick_ns * tick_ns + phase_ns
    return nominal


@dataclass(slots=True)
class _Cutter:
    """Builds the frame of one host and slice from its rows."""

    words: tuple[str, ...]
    matrices: dict[str, NDArray[np.float32]]
    table_id: int
    tick_ns: int
    places: Places

    def frame(self, rows: _Rows, begin: int, end: int) -> Frame | None:
        """Return the frame of the ordered rows [begin, end), None if they hold no sample."""
        length_ns = metric_slice_ns(self.tick_ns)
        start_ns = int(rows.slice_index[begin]) * length_ns
        phase_ns = int(rows.tick_ns[begin]) % self.tick_ns
        first_ns = start_ns + (phase_ns - start_ns) % self.tick_ns
        count = -(-(start_ns + length_ns - first_ns) // self.tick_ns)
        ticks = (rows.tick_ns[begin:end] - first_ns) // self.tick_ns
        gpus = rows.gpu[begin:end]
        numbers = rows.order[begin:end]
        of_host = gpus < 0
        names = np.unique(gpus[~of_host])
        gpu_row = np.searchsorted(names, gpus[~of_host])
        gpu_matrix = self._fill("gpu", numbers[~of_host], gpu_row, ticks[~of_host], (len(names), count))
        host_row = np.zeros(int(of_host.sum()), np.intp)
        host_matrix = self._fill("host", numbers[of_host], host_row, ticks[of_host], (1, count))
        if not (np.isfinite(gpu_matrix).any() or np.isfinite(host_matrix).any()):
            return None
        host = self.words[int(rows.host[begin])]
        ts_ns = start_ns + length_ns - _MS
        return Frame(
            self.places.job_at(ts_ns),
            host,
            ts_ns,
            self.table_id,
            first_ns,
            self.tick_ns,
            count,
            tuple(self.places.gpu_uuid(host, gpu) for gpu in names.tolist()),
            gpu_matrix.tobytes(),
            host_matrix.tobytes(),
        )

    def _fill(
        self,
        scope: str,
        numbers: NDArray[np.intp],
        who: NDArray[np.intp],
        ticks: NDArray[np.int64],
        shape: tuple[int, int],
    ) -> NDArray[np.float32]:
        """Return the values as a matrix of shape (GPUs or 1, metrics, ticks), NaN where there is no sample."""
        matrix = self.matrices[scope]
        filled = np.full((shape[0], matrix.shape[1], shape[1]), np.nan, "<f4")
        filled[who, :, ticks] = matrix[numbers]
        return filled
