"""Bodies of high-volume records: frames, step batches, collective batches."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from operator import le
from typing import Any

from tocsin.schemas.errors import DecodeError, FieldError
from tocsin.schemas.metrics import BUILTIN_TABLE, BUILTIN_TABLE_ID
from tocsin.schemas.records import CollectiveBatch, CollectiveRecord, Frame, StepBatch, StepRecord
from tocsin.schemas.wire._columns import (
    Column,
    FloatColumn,
    IntColumn,
    TextColumn,
    pack_texts,
    unpack_texts,
)
from tocsin.schemas.wire._format import Header, section
from tocsin.schemas.wire.validate import (
    INT64_MAX,
    MAX_COORDINATE,
    MAX_GPUS,
    MAX_NAME_BYTES,
    MAX_RANKS,
    MAX_ROWS,
    MAX_STEP,
    MAX_TICK_NS,
    MIN_TICK_NS,
    NS_PER_DAY,
    UINT32_MAX,
    check_int,
    check_name,
    check_near,
)

Sections = list[tuple[int, bytes]]

_FRAME = struct.Struct("<IIIqq")  # table id, ticks, GPUs, first tick, tick
_SHAPE, _UUIDS, _GPU, _HOST = 1, 2, 3, 4
_FLOAT32_BYTES = 4
_GPU_TICK_BYTES = _FLOAT32_BYTES * len(BUILTIN_TABLE.gpu)
_HOST_TICK_BYTES = _FLOAT32_BYTES * len(BUILTIN_TABLE.host)
_ROWS = struct.Struct("<I")
_ROW_COUNT = 1

STEP_COLUMNS: tuple[Column, ...] = (
    IntColumn(2, "ts_ns", "q", 0),
    IntColumn(3, "rank", "i", 0, high=MAX_RANKS - 1),
    IntColumn(4, "step", "q", 0, high=MAX_STEP),
    FloatColumn(5, "duration_seconds", optional=False),
    FloatColumn(6, "data_seconds"),
    FloatColumn(7, "forward_seconds"),
    FloatColumn(8, "backward_seconds"),
    FloatColumn(9, "optimizer_seconds"),
    FloatColumn(10, "communication_seconds"),
    FloatColumn(11, "loss", evidence=True),
    FloatColumn(12, "grad_norm", evidence=True),
)
_STEP_ORDER = (0, 1, 2)  # ts_ns, rank, step

COLLECTIVE_COLUMNS: tuple[Column, ...] = (
    IntColumn(2, "ts_ns", "q", 0),
    TextColumn(3, "record", choices=("completion", "state")),
    IntColumn(4, "rank", "i", 0, high=MAX_RANKS - 1),
    TextColumn(5, "comm_id"),
    TextColumn(6, "op_name", empty=True),
    IntColumn(7, "op_seq", "q", -1),
    IntColumn(8, "msg_bytes", "q", -1, default_value=-1),
    IntColumn(9, "start_ns", "q", 0, default_value=0),
    IntColumn(10, "end_ns", "q", 0, default_value=0),
    IntColumn(11, "channel", "i", -1, default_value=-1, high=MAX_COORDINATE),
    IntColumn(12, "total_chunks", "i", -1, default_value=-1),
    IntColumn(13, "gpu_ready", "i", -1, default_value=-1),
    IntColumn(14, "rdma_transmitted", "i", -1, default_value=-1),
    IntColumn(15, "rdma_done", "i", -1, default_value=-1),
    TextColumn(16, "dtype", default_value="", empty=True),
    IntColumn(17, "peer", "i", -1, default_value=-1, high=MAX_RANKS - 1),
)
_COLLECTIVE_ORDER = (0, 2, 3, 5)  # ts_ns, rank, comm_id, op_seq
_START, _END = 7, 8  # places of start_ns and end_ns among the columns


def pack_frame(frame: Frame) -> Sections:
    """Return the sections of a frame's body; matrices are copied unchanged.

    Raises:
        FieldError: a field has a value that ``unpack_frame`` would refuse.
    """
    check_int(frame.table_id, "frame.table_id", 1, UINT32_MAX)
    check_int(frame.tick_count, "frame.tick_count", 1, MAX_ROWS)
    check_int(frame.first_tick_ns, "frame.first_tick_ns", 0, INT64_MAX)
    check_int(frame.tick_ns, "frame.tick_ns", 1, MAX_TICK_NS)
    for row, uuid in enumerate(frame.gpu_uuids):
        check_name(uuid, f"frame.gpu_uuids[{row}]")
    for name, matrix in (("gpu_matrix", frame.gpu_matrix), ("host_matrix", frame.host_matrix)):
        if not isinstance(matrix, bytes):
            raise FieldError(f"frame.{name}", matrix, "bytes")
    _check_frame(frame)
    shape = _FRAME.pack(frame.table_id, frame.tick_count, len(frame.gpu_uuids), frame.first_tick_ns, frame.tick_ns)
    uuids = pack_texts(frame.gpu_uuids)
    return [(_SHAPE, shape), (_UUIDS, uuids), (_GPU, frame.gpu_matrix), (_HOST, frame.host_matrix)]


def unpack_frame(header: Header, sections: dict[int, bytes], now_ns: int | None) -> Frame:
    """Decode and check a frame's body.

    Args:
        header: header of the record.
        sections: section id -> payload.
        now_ns: the reader's clock; the first tick must be within a day of it. None: any time.

    Raises:
        SchemaError: as for ``tocsin.schemas.wire.codec.decode``.
    """
    shape = section(sections, _SHAPE, "frame")
    if len(shape) < _FRAME.size:
        raise DecodeError(f"frame: section {_SHAPE} has {len(shape)} bytes of {_FRAME.size}")
    table_id, tick_count, gpus, first_tick_ns, tick_ns = _FRAME.unpack_from(shape)
    uuids = unpack_texts(section(sections, _UUIDS, "frame.gpu_uuids"), gpus, "frame.gpu_uuids")
    frame = Frame(
        header.job,
        header.host,
        header.ts_ns,
        table_id,
        first_tick_ns,
        tick_ns,
        tick_count,
        uuids,
        section(sections, _GPU, "frame.gpu_matrix"),
        section(sections, _HOST, "frame.host_matrix"),
    )
    check_near(first_tick_ns, "frame.first_tick_ns", now_ns)
    _check_frame(frame)
    return frame


def _check_frame(frame: Frame) -> None:
    """Check a frame's counts, names and matrix sizes, for both packing and unpacking."""
    ticks, uuids = frame.tick_count, frame.gpu_uuids
    if not 1 <= ticks <= MAX_ROWS:
        raise FieldError("frame.tick_count", ticks, f"from 1 to {MAX_ROWS}")
    if not MIN_TICK_NS <= frame.tick_ns <= min(MAX_TICK_NS, NS_PER_DAY // ticks):
        must = f"from {MIN_TICK_NS} to {MAX_TICK_NS}, and {ticks} of them at most a day"
        raise FieldError("frame.tick_ns", frame.tick_ns, must)
    if len(uuids) > MAX_GPUS:
        raise FieldError("frame.gpu_uuids", len(uuids), f"at most {MAX_GPUS} GPUs")
    if len(set(uuids)) != len(uuids) or "" in uuids or max(map(len, uuids), default=0) > MAX_NAME_BYTES:
        raise FieldError("frame.gpu_uuids", uuids, "different from each other, not empty, not overlong")
    gpu_bytes, host_bytes = len(frame.gpu_matrix), len(frame.host_matrix)
    if frame.table_id == BUILTIN_TABLE_ID:
        if gpu_bytes != len(uuids) * ticks * _GPU_TICK_BYTES:
            _refuse_size("frame.gpu_matrix", gpu_bytes, len(uuids) * ticks * _GPU_TICK_BYTES)
        if host_bytes != ticks * _HOST_TICK_BYTES:
            _refuse_size("frame.host_matrix", host_bytes, ticks * _HOST_TICK_BYTES)
        return
    check_int(frame.table_id, "frame.table_id", 1, UINT32_MAX)
    row_bytes = ticks * _FLOAT32_BYTES
    if gpu_bytes % (row_bytes * len(uuids) or gpu_bytes + 1):
        raise FieldError("frame.gpu_matrix", f"{gpu_bytes} bytes", f"{len(uuids)} GPUs x metrics x {ticks} ticks")
    if host_bytes % row_bytes:
        raise FieldError("frame.host_matrix", f"{host_bytes} bytes", f"metrics x {ticks} ticks")


def _refuse_size(field: str, found: int, wanted: int) -> None:
    """Raise ``FieldError`` for a matrix of the wrong size."""
    raise FieldError(field, f"{found} bytes", f"{wanted} bytes, as the table, the GPUs and tick_count say")


def pack_steps(batch: StepBatch) -> Sections:
    """Return the sections of a step batch, one per column.

    Raises:
        FieldError: a field has a value that ``unpack_steps`` would refuse.
    """
    columns = _transpose(batch.rows, len(STEP_COLUMNS))
    sections = _pack_columns(columns, STEP_COLUMNS, len(batch.rows), "steps")
    _check_order(columns, _STEP_ORDER, "steps", "(ts_ns, rank, step)")
    return sections


def unpack_steps(header: Header, sections: dict[int, bytes], now_ns: int | None) -> StepBatch:
    """Decode and check the rows of a step batch.

    Raises:
        SchemaError: as for ``tocsin.schemas.wire.codec.decode``.
    """
    columns = _unpack_columns(sections, STEP_COLUMNS, "steps")
    _check_order(columns, _STEP_ORDER, "steps", "(ts_ns, rank, step)")
    _check_times(columns[0], "steps", now_ns)
    rows = tuple(map(StepRecord._make, zip(*columns, strict=True)))
    return StepBatch(header.job, header.host, header.ts_ns, rows)


def pack_collectives(batch: CollectiveBatch) -> Sections:
    """Return the sections of a collective batch, one per column.

    Raises:
        FieldError: a field has a value that ``unpack_collectives`` would refuse.
    """
    columns = _transpose(batch.rows, len(COLLECTIVE_COLUMNS))
    sections = _pack_columns(columns, COLLECTIVE_COLUMNS, len(batch.rows), "collectives")
    _check_collectives(columns)
    return sections


def unpack_collectives(header: Header, sections: dict[int, bytes], now_ns: int | None) -> CollectiveBatch:
    """Decode and check the rows of a collective batch.

    Raises:
        SchemaError: as for ``tocsin.schemas.wire.codec.decode``.
    """
    columns = _unpack_columns(sections, COLLECTIVE_COLUMNS, "collectives")
    _check_collectives(columns)
    _check_times(columns[0], "collectives", now_ns)
    rows = tuple(map(CollectiveRecord._make, zip(*columns, strict=True)))
    return CollectiveBatch(header.job, header.host, header.ts_ns, rows)


def _check_collectives(columns: Sequence[Sequence[Any]]) -> None:
    """Check the order of collective rows, and that none ends before it starts."""
    _check_order(columns, _COLLECTIVE_ORDER, "collectives", "(ts_ns, rank, comm_id, op_seq)")
    if all(map(le, columns[_START], columns[_END])):
        return
    for row, (start_ns, end_ns) in enumerate(zip(columns[_START], columns[_END], strict=True)):
        if 0 < end_ns < start_ns:
            raise FieldError(f"collectives.end_ns[{row}]", end_ns, f"0 or not before start_ns {start_ns}")


def _transpose(rows: Sequence[tuple[Any, ...]], width: int) -> Sequence[Sequence[Any]]:
    """Return rows as columns; ``width`` empty ones without rows."""
    return list(zip(*rows, strict=True)) if rows else [()] * width


def _pack_columns(columns: Sequence[Sequence[Any]], specs: tuple[Column, ...], count: int, path: str) -> Sections:
    """Return the row count and the packed columns as sections; columns of default values are left out."""
    if count > MAX_ROWS:
        raise FieldError(f"{path}.rows", count, f"at most {MAX_ROWS}")
    sections: Sections = [(_ROW_COUNT, _ROWS.pack(count))]
    for spec, values in zip(specs, columns, strict=True):
        payload = spec.pack(values, path)
        if payload is not None:
            sections.append((spec.section_id, payload))
    return sections


def _unpack_columns(sections: dict[int, bytes], specs: tuple[Column, ...], path: str) -> Sequence[Sequence[Any]]:
    """Decode the row count and all columns."""
    counted = section(sections, _ROW_COUNT, f"{path}.rows")
    if len(counted) < _ROWS.size:
        raise DecodeError(f"{path}.rows: {len(counted)} bytes are no count")
    (count,) = _ROWS.unpack_from(counted)
    if count > MAX_ROWS:
        raise FieldError(f"{path}.rows", count, f"at most {MAX_ROWS}")
    # The first column is always there and of fixed width: a count that lies fails on it,
    # before a default column of that many rows is made.
    return [spec.unpack(sections.get(spec.section_id), count, path) for spec in specs]


def _check_order(columns: Sequence[Sequence[Any]], key: tuple[int, ...], path: str, order: str) -> None:
    """Raise ``FieldError`` if the rows are not ordered by the columns in ``key``."""
    keys = list(zip(*(columns[place] for place in key), strict=True))
    if keys == sorted(keys):
        return
    for row in range(1, len(keys)):
        if keys[row] < keys[row - 1]:
            raise FieldError(f"{path}.rows[{row}]", keys[row], f"not before the row above it by {order}")


def _check_times(times_ns: Sequence[int], path: str, now_ns: int | None) -> None:
    """Raise ``FieldError`` if the first or last time is more than a day from ``now_ns``."""
    if now_ns is None or not times_ns:
        return
    # Rows are in order of time: the first and the last are the worst.
    check_near(times_ns[0], f"{path}.ts_ns[0]", now_ns)
    check_near(times_ns[-1], f"{path}.ts_ns[{len(times_ns) - 1}]", now_ns)
