"""Decode frames, step batches and collective batches of many hosts together, much faster than one by one.

Hosts of a large job send batches of the same byte layout: same columns, row count and name lengths. The codec decodes
the first record of a layout. Records whose layout bytes equal the first one's are then read together, column by column,
with the codec's checks. Records that differ or fail a check are left to the codec, which alone decides about refusals.
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
"""Minimum number of records of one layout to decode them together."""
_KIND, _CRC, _REST, _TIME, _NAMES = 3, 12, 16, 24, NAMES_AT
"""Offsets in a header (``tocsin.schemas.wire._format``).

Kind, checksum, rest, time, and the names after the fixed part.
"""
_LENGTHS: Final = struct.Struct("<HHH")
_LENGTHS_AT: Final = 6
_SECTION: Final = struct.Struct("<HI")
_COLUMNS: Final[Mapping[int, tuple[Column, ...]]] = {
    int(Kind.STEPS): STEP_COLUMNS,
    int(Kind.COLLECTIVES): COLLECTIVE_COLUMNS,
}
_FRAME: Final = int(Kind.FRAME)
_SHAPE, _UUIDS, _GPU, _HOST = 1, 2, 3, 4
"""Section ids of a frame."""
_FIRST_TICK_AT: Final = 12
"""Offset of the first tick in a frame's shape section."""
_START, _END = 7, 8
"""Column indexes of a collective's start and end."""


def decode_many(records: Sequence[bytes]) -> list[Alike | None]:
    """Decode those records that can be decoded together.

    Args:
        records: encoded records of any kind.

    Returns:
        For each record what ``decode`` would return, or None: decode it separately.
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
    """Byte layout shared by several records.

    Attributes:
        host: start and end offset of the host name.
        spans: section id -> start and end offset of its payload.
        row_count: number of rows of the batch.
    """

    host: tuple[int, int]
    spans: dict[int, tuple[int, int]]
    row_count: int


def _shape_of(data: bytes, row_count: int) -> _TableShape:
    """Return the byte layout of a record."""
    cluster, job, host = _LENGTHS.unpack_from(data, _LENGTHS_AT)
    begin = _NAMES + cluster + job
    place, spans = begin + host, {}
    while place < len(data):
        number, length = _SECTION.unpack_from(data, place)
        place += _SECTION.size + length
        spans[number] = (place - length, place)
    return _TableShape((begin, begin + host), spans, row_count)


def _decode_alike(records: Sequence[bytes]) -> Sequence[Alike | None]:
    """Decode records of equal length, kind and name lengths; None for each that the codec must decode."""
    try:
        first = decode(records[0])
    except SchemaError:
        return [None] * len(records)
    if isinstance(first, Frame):
        return _frames(records, first)
    return _batches(records, first) if isinstance(first, Batch) and first.rows else [None] * len(records)


def _batches(records: Sequence[bytes], first: Batch) -> Sequence[Batch | None]:
    """Decode step or collective batches with the first one's layout; None for each that the codec must decode."""
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
    """Decode frames with the first one's layout; None for each that the codec must decode."""
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
            rest = (names, data[gpu], data[host_values])
            found[place] = Frame(first.job, host, ts_ns, table_id, ticks_ns[place], tick_ns, tick_count, *rest)
    return found


def _uuids(data: bytes, count: int) -> tuple[str, ...] | None:
    """Return the GPU UUIDs in a section, None if they are not valid."""
    try:
        names = unpack_texts(data, count, "")
    except SchemaError:
        return None
    good = len(set(names)) == count and "" not in names and max(map(len, names), default=0) <= MAX_NAME_BYTES
    return names if good else None


def _rows(first: Batch, columns: Sequence[Any], total: int) -> tuple[Any, ...]:
    """Build all records' rows from columns; a column may be an array, a list, or one value for all rows."""
    kind = CollectiveRecord if isinstance(first, CollectiveBatch) else StepRecord
    flat = (column.reshape(-1).tolist() if isinstance(column, np.ndarray) else column for column in columns)
    lists = (column if isinstance(column, list) else repeat(column, total) for column in flat)
    return tuple(starmap(kind, zip(*lists, strict=True)))


def _host(data: bytes) -> str | None:
    """Return a host name from its bytes, None if it is not valid."""
    try:
        return check_name(data.decode(), "host")
    except (UnicodeDecodeError, SchemaError):
        return None


class _FrameReader:
    """Reads columns of records that share a byte layout.

    ``good`` marks those that match it and pass the checks so far.
    """

    def __init__(self, records: Sequence[bytes], shape: _TableShape) -> None:
        self._table = np.frombuffer(b"".join(records), np.uint8).reshape(len(records), -1)
        self._shape = shape
        self.good = np.ones(len(records), np.bool_)
        self._varies = np.zeros(self._table.shape[1], np.bool_)
        """Mask of the bytes that may differ between the records."""
        signature = shape.spans.get(SIGNATURE_SECTION, (0, 0))  # a section that the codec skips
        for begin, end in ((_CRC, _REST), (_TIME, _TIME + 8), shape.host, signature):
            self._varies[begin:end] = True

    def leave(self, begin: int, end: int) -> None:
        """Exclude bytes [begin, end) from the comparison of layouts."""
        self._varies[begin:end] = True

    def numbers(self, begin: int, end: int, dtype: str) -> NDArray[Any]:
        """Return bytes [begin, end) of all records as numbers of shape (records, numbers).

        The bytes are excluded from the comparison of layouts.
        """
        self.leave(begin, end)
        return np.ascontiguousarray(self._table[:, begin:end]).view(dtype)

    def compare(self) -> None:
        """Mark records as not good whose layout bytes differ from the first record's."""
        fixed = np.flatnonzero(~self._varies)
        self.good &= (self._table[:, fixed] == self._table[0, fixed]).all(axis=1)

    def intact(self, records: Sequence[bytes]) -> Iterator[tuple[int, int, str]]:
        """Yield index, time in ns and host of the good records whose checksum is right."""
        seed = zlib.crc32(records[0][:_CRC])
        stated = self.numbers(_CRC, _REST, "<u4")[:, 0].tolist()
        times_ns = self.numbers(_TIME, _TIME + 8, "<i8")[:, 0]
        name = slice(*self._shape.host)
        good = np.flatnonzero(self.good & (times_ns >= 0)).tolist()
        stamps_ns = times_ns.tolist()
        for place in good:
            data = records[place]
            if zlib.crc32(memoryview(data)[_REST:], seed) == stated[place]:
                host = _host(data[name])
                if host is not None:
                    yield place, stamps_ns[place], host

    def columns(self, specs: Sequence[Column], *, are_collectives: bool) -> list[Any] | None:
        """Return each column as an array (records, rows), a list of all rows, or one value for all.

        Returns:
            None if one of the columns cannot be read here.
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
        """Return an integer column, and mark records with values out of range as not good."""
        values = self.numbers(*span, "<i8" if spec.code == "q" else "<i4")
        self.good &= ((values >= spec.low) & (values <= spec.high)).all(axis=1)
        return values

    def _floats(self, spec: FloatColumn, span: tuple[int, int]) -> NDArray[Any] | None:
        """Return a float column, and mark records with values out of range as not good.

        None if some rows have no value.
        """
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
        """Return a text column as a list; equal payloads are parsed once."""
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
        """Mark records as not good if their rows are unordered or a collective ends before it starts.

        Rows must ascend strictly by (time, rank); the codec decides about ties.
        """
        times_ns, ranks = columns[0], columns[2 if are_collectives else 1]
        later = times_ns[:, 1:] > times_ns[:, :-1]
        same = times_ns[:, 1:] == times_ns[:, :-1]
        self.good &= (later | (same & (ranks[:, 1:] > ranks[:, :-1]))).all(axis=1)
        if are_collectives:
            start_ns, end_ns = np.asarray(columns[_START]), np.asarray(columns[_END])
            wrong = (end_ns > 0) & (end_ns < start_ns)
            self.good &= ~(wrong.any(axis=1) if wrong.ndim else np.broadcast_to(wrong, self.good.shape))
