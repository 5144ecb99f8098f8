"""Frames, step and collective batches of many hosts, decoded together: a fraction of the time that each alone takes.

A large job's hosts send batches of the same shape: the same columns, as many rows, names as long. Of those the first
one is decoded by the codec. Whoever has the same bytes wherever the shape stands is read by it, column by column of
all at once, with the codec's checks. Whatever differs, or fails a check, is left to the codec: what becomes of a
record, and what is said of one that is refused, is decided there alone.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import repeat, starmap
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tocsin.schemas.errors import SchemaError
from tocsin.schemas.records import CollectiveBatch, CollectiveRecord, Frame, StepBatch, StepRecord
from tocsin.schemas.signatures import SIGNATURE_SECTION
from tocsin.schemas.wire._batches import COLLECTIVE_COLUMNS, STEP_COLUMNS
from tocsin.schemas.wire._columns import (
    Column,
    FloatColumn,
    IntColumn,
    unpack_texts,
)
from tocsin.schemas.wire._format import NAMES_AT, Kind
from tocsin.schemas.wire.codec import decode
from tocsin.schemas.wire.validate import MAX_NAME_BYTES, MAX_SECONDS, check_name

Batch = StepBatch | CollectiveBatch
Alike = Batch | Frame

_LEAST_COUNT: Final = 16
"""Fewer of one shape are decoded one by one."""
_KIND, _CRC, _REST, _TIME, _NAMES = 3, 12, 16, 24, NAMES_AT
"""Where they stand in a header (``tocsin.schemas.wire._format``); the names begin where the fixed part ends."""
_LENGTHS: Final = struct.Struct("<HHH")
_LENGTHS_AT: Final = 6
_SECTION: Final = struct.Struct("<HI")
_COLUMNS: Final[Mapping[int, tuple[Column, ...]]] = {
    int(Kind.STEPS): STEP_COLUMNS,
    int(Kind.COLLECTIVES): COLLECTIVE_COLUMNS,
}
_FRAME: Final = int(Kind.FRAME)
_SHAPE, _UUIDS, _GPU, _HOST = 1, 2, 3, 4
"""Sections of a frame."""
_FIRST_TICK_AT: Final = 12
"""Where its first tick stands in its shape."""
_START, _END = 7, 8
"""Columns of a collective's begin and end."""


def decode_many(records: Sequence[bytes]) -> list[Alike | None]:
    """Decode what can be decoded together.

    Args:
        records: any bytes.

    Returns:
        For each what ``decode`` would return; None: decode it, this function cannot.
    """
    groups: dict[tuple[int, bytes], list[int]] = {}
    for place, data in enumerate(records):
        if len(data) > _NAMES and (data[_KIND] in _COLUMNS or data[_KIND] == _FRAME):
            groups.setdefault((len(data), data[:_CRC]), []).append(place)
    found: list[Alike | None] = [None] * len(records)
    for places in groups.values():
        if len(places) >= _LEAST_COUNT:
            for place, batch in zip(places, _decode_alike([records[place] for place in places]), strict=True):
                found[place] = batch
    return found


@dataclass(frozen=True, slots=True)
class _TableShape:
    """How the bytes of one record lie.

    Attributes:
        host: first and last byte of the host's name.
        spans: section id -> first and last byte of its payload.
        row_count: rows of the batch.
    """

    host: tuple[int, int]
    spans: dict[int, tuple[int, int]]
    row_count: int


def _shape_of(data: bytes, row_count: int) -> _TableShape:
    cluster, job, host = _LENGTHS.unpack_from(data, _LENGTHS_AT)
    begin = _NAMES + cluster + job
    place, spans = begin + host, {}
    while place < len(data):
        number, length = _SECTION.unpack_from(data, place)
        place += _SECTION.size + length
        spans[number] = (place - length, place)
    return _TableShape((begin, begin + host), spans, row_count)


def _decode_alike(records: Sequence[bytes]) -> Sequence[Alike | None]:
    """Decode records of one length, kind and lengths of names."""
    try:
        first = decode(records[0])
    except SchemaError:
        return [None] * len(records)
    if isinstance(first, Frame):
        return _frames(records, first)
    return _batches(records, first) if isinstance(first, Batch) and first.rows else [None] * len(records)


def _batches(records: Sequence[bytes], first: Batch) -> Sequence[Batch | None]:
    found: list[Batch | None] = [None] * len(records)
    reader = _FrameReader(records, _shape_of(records[0], len(first.rows)))
    columns = reader.columns(_COLUMNS[records[0][_KIND]], are_collectives=isinstance(first, CollectiveBatch))
    if columns is None:
        return found
    kind, count = type(first), len(first.rows)
    rows = _rows(first, columns, len(records) * count)
    for place, ts_ns, host in reader.intact(records):
        found[place] = kind(first.job, host, ts_ns, rows[place * count : (place + 1) * count])
    return found


def _frames(records: Sequence[bytes], first: Frame) -> Sequence[Frame | None]:
    found: list[Frame | None] = [None] * len(records)
    shape = _shape_of(records[0], 0)
    if shape.spans.keys() - {SIGNATURE_SECTION} != {_SHAPE, _UUIDS, _GPU, _HOST}:
        return found
    reader = _FrameReader(records, shape)
    first_tick_at = shape.spans[_SHAPE][0] + _FIRST_TICK_AT
    first_ticks_ns = reader.numbers(first_tick_at, first_tick_at + 8, "<i8")[:, 0]
    reader.good &= first_ticks_ns >= 0
    uuids, gpu, host_values = (slice(*shape.spans[number]) for number in (_UUIDS, _GPU, _HOST))
    for span in (uuids, gpu, host_values):
        reader.leave(span.start, span.stop)
    reader.compare()
    ticks_ns = first_ticks_ns.tolist()
    table_id, tick_ns, tick_count, gpu_count = first.table_id, first.tick_ns, first.tick_count, len(first.gpu_uuids)
    for place, ts_ns, host in reader.intact(records):
        data = records[place]
        names = _uuids(data[uuids], gpu_count)
        if names is not None:
            told = (names, data[gpu], data[host_values])
            found[place] = Frame(first.job, host, ts_ns, table_id, ticks_ns[place], tick_ns, tick_count, *told)
    return found


def _uuids(data: bytes, count: int) -> tuple[str, ...] | None:
    try:
        names = unpack_texts(data, count, "")
    except SchemaError:
        return None
    good = len(set(names)) == count and "" not in names and max(map(len, names), default=0) <= MAX_NAME_BYTES
    return names if good else None


def _rows(first: Batch, columns: Sequence[Any], total: int) -> tuple[Any, ...]:
    kind = CollectiveRecord if isinstance(first, CollectiveBatch) else StepRecord
    flat = (column.reshape(-1).tolist() if isinstance(column, np.ndarray) else column for column in columns)
    lists = (column if isinstance(column, list) else repeat(column, total) for column in flat)
    return tuple(starmap(kind, zip(*lists, strict=True)))


def _host(data: bytes) -> str | None:
    try:
        return check_name(data.decode(), "host")
    except (UnicodeDecodeError, SchemaError):
        return None


class _FrameReader:
    """Reads the columns of records of one shape; ``good``: which of them have it, and pass the checks so far."""

    def __init__(self, records: Sequence[bytes], shape: _TableShape) -> None:
        self._table = np.frombuffer(b"".join(records), np.uint8).reshape(len(records), -1)
        self._shape = shape
        self.good = np.ones(len(records), np.bool_)
        self._varies = np.zeros(self._table.shape[1], np.bool_)
        """Bytes that are no part of the shape."""
        signature = shape.spans.get(SIGNATURE_SECTION, (0, 0))  # a section that the codec skips
        for begin, end in ((_CRC, _REST), (_TIME, _TIME + 8), shape.host, signature):
            self._varies[begin:end] = True

    def leave(self, begin: int, end: int) -> None:
        """These bytes are no part of the shape."""
        self._varies[begin:end] = True

    def numbers(self, begin: int, end: int, dtype: str) -> NDArray[Any]:
        """These bytes, which are no part of the shape, as numbers; shape (records, numbers)."""
        self.leave(begin, end)
        return np.ascontiguousarray(self._table[:, begin:end]).view(dtype)

    def compare(self) -> None:
        """Good are those whose other bytes are the first one's."""
        fixed = np.flatnonzero(~self._varies)
        self.good &= (self._table[:, fixed] == self._table[0, fixed]).all(axis=1)

    def intact(self, records: Sequence[bytes]) -> Iterator[tuple[int, int, str]]:
        """Those that are good and undamaged: place, time, host."""
        seed = zlib.crc32(records[0][:_CRC])
        stated = self.numbers(_CRC, _REST, "<u4")[:, 0].tolist()
        times_ns = self.numbers(_TIME, _TIME + 8, "<i8")[:, 0]
        name = slice(*self._shape.host)
        good = np.flatnonzero(self.good & (times_ns >= 0)).tolist()
        told_ns = times_ns.tolist()
        for place in good:
            data = records[place]
            if zlib.crc32(memoryview(data)[_REST:], seed) == stated[place]:
                host = _host(data[name])
                if host is not None:
                    yield place, told_ns[place], host

    def columns(self, specs: Sequence[Column], *, are_collectives: bool) -> list[Any] | None:
        """Return each column as an array (records, rows), a list of all rows, or one value for all.

        None: there is a column that this cannot read.
        """
        found: list[Any] = []
        for spec in specs:
            span = self._shape.spans.get(spec.section_id)
            if span is None:
                found.append(None if isinstance(spec, FloatColumn) else spec.default_value)
            elif isinstance(spec, IntColumn):
                found.append(self._ints(spec, span))
            elif isinstance(spec, FloatColumn):
                values = self._floats(spec, span)
                if values is None:
                    return None
                found.append(values)
            else:
                found.append(self._texts(spec, span))
        self.compare()
        self._check_order(found, are_collectives=are_collectives)
        return found

    def _ints(self, spec: IntColumn, span: tuple[int, int]) -> NDArray[Any]:
        values = self.numbers(*span, "<i8" if spec.code == "q" else "<i4")
        self.good &= ((values >= spec.low) & (values <= spec.high)).all(axis=1)
        return values

    def _floats(self, spec: FloatColumn, span: tuple[int, int]) -> NDArray[Any] | None:
        """None: some rows have no value (the bitmap, which is part of the shape, says so)."""
        begin, end = span
        if spec.optional:
            begin += (self._shape.row_count + 7) // 8
            if end - begin != 8 * self._shape.row_count:
                return None
        values = self.numbers(begin, end, "<f8")
        if not spec.evidence:
            self.good &= ((values >= 0.0) & (values <= MAX_SECONDS)).all(axis=1)
        return values

    def _texts(self, spec: Column, span: tuple[int, int]) -> list[Any]:
        """Texts of the same bytes are read once."""
        begin, end = span
        self._varies[begin:end] = True
        known: dict[bytes, Sequence[Any]] = {}
        found: list[Any] = []
        for place, payload in enumerate(map(bytes, self._table[:, begin:end])):
            values = known.get(payload)
            if values is None:
                try:
                    values = spec.unpack(payload, self._shape.row_count, "")
                except SchemaError:
                    self.good[place] = False
                    values = ("",) * self._shape.row_count
                else:
                    known[payload] = values
            found += values
        return found

    def _check_order(self, columns: Sequence[Any], *, are_collectives: bool) -> None:
        """Rows ascend by time and rank; where these are equal the codec looks on."""
        times_ns, ranks = columns[0], columns[2 if are_collectives else 1]
        later = times_ns[:, 1:] > times_ns[:, :-1]
        same = times_ns[:, 1:] == times_ns[:, :-1]
        self.good &= (later | (same & (ranks[:, 1:] > ranks[:, :-1]))).all(axis=1)
        if are_collectives:
            start_ns, end_ns = np.asarray(columns[_START]), np.asarray(columns[_END])
            wrong = (end_ns > 0) & (end_ns < start_ns)
            self.good &= ~(wrong.any(axis=1) if wrong.ndim else np.broadcast_to(wrong, self.good.shape))
