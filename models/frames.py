"""Decoding of metric frames into aligned arrays; the only place where a frame's bytes become numbers.

One slice of a job holds a frame per host. ``stack_frames`` puts them on one time grid, row by row, so
that detectors compare machines by plain array operations. The work is done per group of frames
of one shape, not per frame: 2,000 frames take tens of milliseconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tocsin.schemas.errors import FieldError
from tocsin.schemas.metrics import MetricTable
from tocsin.schemas.records import Frame

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.intp]
GpuRow = tuple[str, str]

_WIRE_FLOAT = np.dtype("<f4")


@dataclass(frozen=True, slots=True)
class Grid:
    """The common time grid of a slice.

    Attributes:
        start_ns: time of the first tick, Unix nanoseconds.
        tick_ns: distance between ticks, nanoseconds.
        tick_count: number of ticks.
    """

    start_ns: int
    tick_ns: int
    tick_count: int


@dataclass(frozen=True, slots=True)
class FrameStack:
    """The frames of one slice and one metric table as aligned arrays.

    Attributes:
        hosts: row keys of ``host_values``.
        gpu_rows: row keys of ``gpu_values``: (host, GPU uuid).
        host_values: float32, shape (hosts, host metrics of the table, ticks), NaN = no sample.
        gpu_values: float32, shape (GPU rows, GPU metrics of the table, ticks), NaN = no sample.
    """

    hosts: tuple[str, ...]
    gpu_rows: tuple[GpuRow, ...]
    host_values: FloatArray
    gpu_values: FloatArray


@dataclass(frozen=True, slots=True)
class _MatrixShape:
    """The properties that frames must share to be decoded in one array operation; ``round``: see ``_grouped``."""

    round: int
    gpus: int
    first_tick_ns: int
    tick_ns: int
    tick_count: int


def stack_frames(
    frames: Sequence[Frame],
    table: MetricTable,
    grid: Grid,
    *,
    hosts: Sequence[str] | None = None,
    gpu_rows: Sequence[GpuRow] | None = None,
) -> FrameStack:
    """Decode the frames of one slice onto one time grid.

    A tick gets the nearest sample if that is at most half a tick away (of two equally near, the earlier one); other
    ticks are NaN. Infinity counts as no sample. Where several frames of a host hold the same tick, the last one wins.
    Frames of another table are ignored, because a slice holds the frames of all tables.

    Args:
        frames: the slice's frames, in canonical order.
        table: the metric table; frames of other tables are ignored.
        grid: the ticks of the result.
        hosts: the rows of the result, e.g. all hosts of the topology. A host without a frame gets NaN; frames of other
            hosts are ignored. None: the hosts of the frames, sorted.
        gpu_rows: the GPU rows of the result, likewise. None: those of the frames, by host in the order of ``hosts``,
            then by uuid.

    Raises:
        FieldError: a matrix has another size than table, GPUs and ticks say.
    """
    wanted = [frame for frame in frames if frame.table_id == table.table_id]
    if hosts is None:
        hosts = sorted({frame.host for frame in wanted})
    host_row = {host: row for row, host in enumerate(hosts)}
    wanted = [frame for frame in wanted if frame.host in host_row]
    if gpu_rows is None:
        gpu_rows = _gpu_rows_of(wanted, hosts)
    gpu_row = _index(gpu_rows)
    host_values = np.full((len(hosts), len(table.host), grid.tick_count), np.nan, np.float32)
    gpu_values = np.full((len(gpu_rows), len(table.gpu), grid.tick_count), np.nan, np.float32)
    for shape, members in _grouped(wanted, grid).items():
        source, target = _ticks(shape, grid)
        if not target.size:
            continue
        for frame in members:
            _check_sizes(frame, table)
        values = _decode([frame.host_matrix for frame in members], len(table.host), shape.tick_count)
        rows = np.array([host_row[frame.host] for frame in members], np.intp)
        _write_samples(host_values, rows, target, _take(values, source))
        if not shape.gpus:
            continue
        values = _decode([frame.gpu_matrix for frame in members], len(table.gpu), shape.tick_count)
        rows = np.array(_rows_of(members, gpu_row), np.intp)
        _write_samples(gpu_values, rows, target, _take(values, source))
    return FrameStack(tuple(hosts), tuple(gpu_rows), host_values, gpu_values)


def _gpu_rows_of(frames: Sequence[Frame], hosts: Sequence[str]) -> list[GpuRow]:
    """Return all (host, GPU uuid) of the frames, by host in the order of ``hosts``, then by uuid."""
    uuids: dict[str, set[str]] = {}
    for frame in frames:
        uuids.setdefault(frame.host, set()).update(frame.gpu_uuids)
    return [(host, uuid) for host in hosts for uuid in sorted(uuids.get(host, ()))]


def _index(gpu_rows: Sequence[GpuRow]) -> dict[str, dict[str, int]]:
    """Return host -> uuid -> row of the GPU rows, nested so that one hash of a host serves its eight GPUs."""
    index: dict[str, dict[str, int]] = {}
    for row, (host, uuid) in enumerate(gpu_rows):
        index.setdefault(host, {})[uuid] = row
    return index


def _rows_of(frames: Sequence[Frame], gpu_row: Mapping[str, Mapping[str, int]]) -> list[int]:
    """Return the result row of each GPU of each frame; -1 for a GPU that is not among the rows."""
    nothing: Mapping[str, int] = {}
    return [
        rows.get(uuid, -1)
        for frame in frames
        for rows in (gpu_row.get(frame.host, nothing),)
        for uuid in frame.gpu_uuids
    ]


def _grouped(frames: Sequence[Frame], grid: Grid) -> dict[_MatrixShape, list[Frame]]:
    """Group frames by shape and round; the n-th frame of a host is in round n.

    Within a group every host occurs once, and groups are ordered by round, so a later frame overwrites an earlier one.
    """
    rounds: dict[str, int] = {}
    groups: dict[_MatrixShape, list[Frame]] = {}
    for frame in frames:
        turn = rounds.get(frame.host, 0)
        rounds[frame.host] = turn + 1
        first_ns = frame.first_tick_ns
        if frame.tick_ns == grid.tick_ns:
            # Each host samples at its own moment within the second: all its samples move
            # by the same distance to the grid, and hosts fall into the same few groups.
            first_ns -= _distance(first_ns, grid)
        shape = _MatrixShape(turn, len(frame.gpu_uuids), first_ns, frame.tick_ns, frame.tick_count)
        groups.setdefault(shape, []).append(frame)
    return dict(sorted(groups.items(), key=lambda item: item[0].round))


def _distance(ts_ns: int, grid: Grid) -> int:
    """Return how far a time lies after its nearest tick, nanoseconds: -tick/2 < distance <= tick/2."""
    rest = (ts_ns - grid.start_ns) % grid.tick_ns
    return rest - grid.tick_ns if 2 * rest > grid.tick_ns else rest


def _ticks(shape: _MatrixShape, grid: Grid) -> tuple[IntArray, IntArray]:
    """Match the samples of a frame to ticks of the grid.

    Returns:
        Indices of samples and of their ticks, two arrays of equal length; samples outside the grid are left out.
    """
    nearest: dict[int, tuple[int, int]] = {}
    for sample in range(shape.tick_count):
        ts_ns = shape.first_tick_ns + sample * shape.tick_ns
        distance = _distance(ts_ns, grid)
        tick = (ts_ns - distance - grid.start_ns) // grid.tick_ns
        if not 0 <= tick < grid.tick_count:
            continue
        if tick not in nearest or abs(distance) < nearest[tick][0]:
            nearest[tick] = (abs(distance), sample)
    source = np.array([sample for _, sample in nearest.values()], np.intp)
    return source, np.array(list(nearest), np.intp)


def _decode(matrices: Sequence[bytes], metrics: int, ticks: int) -> NDArray[Any]:
    """Return the matrices of several frames stacked along the first axis, shape (rows, metrics, ticks)."""
    values = np.frombuffer(b"".join(matrices), _WIRE_FLOAT)
    return values.reshape(values.size // (metrics * ticks or 1), metrics, ticks)


def _take(values: NDArray[Any], source: IntArray) -> NDArray[Any]:
    """Return the samples at these tick indices; without a copy where all are wanted, the usual case."""
    return values if source.size == values.shape[2] else values[:, :, source]


def _write_samples(out: FloatArray, rows: IntArray, target: IntArray, values: NDArray[Any]) -> None:
    """Write samples into their rows and ticks; a NaN overwrites nothing, and row -1 is skipped."""
    if not values.size:
        return
    if rows.min() < 0:
        values, rows = values[rows >= 0], rows[rows >= 0]
    begin, end = int(target[0]), int(target[-1]) + 1
    span = out[rows, :, begin:end]
    if target.size == end - begin:
        np.copyto(span, values, where=np.isfinite(values))
    else:
        inner = target - begin
        span[:, :, inner] = np.where(np.isfinite(values), values, span[:, :, inner])
    out[rows, :, begin:end] = span


def fits(frame: Frame, table: MetricTable) -> bool:
    """Return whether a frame's matrices have the sizes that its metric table asks for.

    The codec checks this only for built-in tables.
    """
    return all(found == wanted for _, found, wanted in _sizes(frame, table))


def _sizes(frame: Frame, table: MetricTable) -> tuple[tuple[str, int, int], ...]:
    """Return for both matrices of a frame: (field name, found bytes, expected bytes)."""
    row_bytes = frame.tick_count * _WIRE_FLOAT.itemsize
    return (
        ("frame.gpu_matrix", len(frame.gpu_matrix), len(frame.gpu_uuids) * len(table.gpu) * row_bytes),
        ("frame.host_matrix", len(frame.host_matrix), len(table.host) * row_bytes),
    )


def _check_sizes(frame: Frame, table: MetricTable) -> None:
    """Raise ``FieldError`` if a frame's matrix has another size than its metric table asks for."""
    for field, found, wanted in _sizes(frame, table):
        if found != wanted:
            raise FieldError(field, f"{found} bytes from {frame.host}", f"{wanted} bytes by table {table.table_id}")
