"""The wire codec: records to bytes and back, version 1.

``encode`` is canonical: equal records give equal bytes, so that duplicates can be found by their bytes and a golden
file pins the version. ``decode`` trusts nothing: for any bytes it returns a record whose fields are all valid, or
raises a ``SchemaError`` that says what is wrong. ``encode`` applies the same checks, so that a wrong value is refused
where it is made.

Layout: ``tocsin.schemas.wire._format`` (header, sections), ``_columns`` (columns of batches),
``_batches`` and ``_bodies`` (one pack and one unpack function per kind).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tocsin.schemas.errors import DecodeError, FieldError
from tocsin.schemas.records import (
    CollectiveBatch,
    Event,
    Frame,
    Groups,
    HostStatus,
    JobKey,
    ModelAnnouncement,
    ProbeAnswer,
    Record,
    StepBatch,
    TableAnnouncement,
    Tick,
    Topology,
)
from tocsin.schemas.wire import _batches, _bodies
from tocsin.schemas.wire._format import (
    MAX_RECORD_BYTES,
    WIRE_VERSION,
    Header,
    Kind,
    check_crc,
    check_header,
    label,
    read_header,
    read_sections,
    seal,
    section,
)
from tocsin.schemas.wire.validate import ObjectReader

__all__ = ["MAX_RECORD_BYTES", "WIRE_VERSION", "Header", "Kind", "decode", "encode", "header_of", "peek"]

_NOBODY = JobKey("", "", 0)

_KIND_OF: dict[type, Kind] = {
    Frame: Kind.FRAME,
    StepBatch: Kind.STEPS,
    CollectiveBatch: Kind.COLLECTIVES,
    Event: Kind.EVENT,
    Topology: Kind.TOPOLOGY,
    Groups: Kind.GROUPS,
    TableAnnouncement: Kind.TABLE,
    HostStatus: Kind.HOST_STATUS,
    ProbeAnswer: Kind.PROBE_ANSWER,
    Tick: Kind.TICK,
    ModelAnnouncement: Kind.MODEL,
}

_JsonWriter = Callable[[Any], dict[str, Any]]
_JsonReader = Callable[[Header, ObjectReader], Record]
_JSON: dict[Kind, tuple[_JsonWriter, _JsonReader]] = {
    Kind.EVENT: (_bodies.write_event, _bodies.read_event),
    Kind.TOPOLOGY: (_bodies.write_topology, _bodies.read_topology),
    Kind.GROUPS: (_bodies.write_groups, _bodies.read_groups),
    Kind.TABLE: (_bodies.write_table, _bodies.read_table),
    Kind.HOST_STATUS: (_bodies.write_status, _bodies.read_status),
}

_PAYLOADS: dict[Kind, tuple[_JsonWriter, Callable[[Header, ObjectReader, bytes], Record]]] = {
    Kind.PROBE_ANSWER: (_bodies.write_answer, _bodies.read_answer),
    Kind.MODEL: (_bodies.write_model, _bodies.read_model),
}
"""Kinds with a JSON object and a payload in a section of its own -> (writer, reader) of the object."""

_Packer = Callable[[Any], list[tuple[int, bytes]]]
_Unpacker = Callable[[Header, dict[int, bytes], "int | None"], Record]
_PACKED: dict[Kind, tuple[_Packer, _Unpacker]] = {
    Kind.FRAME: (_batches.pack_frame, _batches.unpack_frame),
    Kind.STEPS: (_batches.pack_steps, _batches.unpack_steps),
    Kind.COLLECTIVES: (_batches.pack_collectives, _batches.unpack_collectives),
}


def header_of(record: Record) -> Header:
    """Return the header of a record's wire form.

    Raises:
        FieldError: the value is no record.
    """
    kind = _KIND_OF.get(type(record))
    if kind is None:
        raise FieldError("record", record, "one of " + " ".join(t.__name__ for t in _KIND_OF))
    if isinstance(record, Tick | ModelAnnouncement):
        return Header(kind, record.ts_ns, _NOBODY, "")
    return Header(kind, record.ts_ns, record.job, record.host)


def encode(record: Record) -> bytes:
    """Encode a record as wire bytes.

    Records that are equal, including the types of their values, give equal bytes. ``decode`` accepts the result, apart
    from its check of times.

    Raises:
        FieldError: a field has a value that is not allowed.
    """
    header = header_of(record)
    packed = _PACKED.get(header.kind)
    if packed is not None:
        return seal(header, packed[0](record))
    if isinstance(record, Tick):
        return seal(header, ())
    what = label(header.kind)
    if isinstance(record, ProbeAnswer | ModelAnnouncement):
        write_with, read_with = _PAYLOADS[header.kind]
        body = write_with(record)
        read_with(header, ObjectReader(body, what), record.payload)
        return seal(header, (_bodies.pack_json(body, what), (_bodies.PAYLOAD_SECTION, record.payload)))
    write, read = _JSON[header.kind]
    body = write(record)
    read(header, ObjectReader(body, what))
    return seal(header, (_bodies.pack_json(body, what),))


def decode(data: bytes | memoryview, *, now_ns: int | None = None) -> Record:
    """Decode and check one record.

    Args:
        data: exactly one record.
        now_ns: the reader's clock in Unix nanoseconds. If given, the record's own time, a frame's first tick and the
            times of a batch's rows must be within a day of it.

    Raises:
        TruncatedError: the bytes end before the record does.
        VersionError: the wire version is one that this program does not read.
        UnknownKindError: the kind is one that this program does not know.
        DecodeError: the bytes are no record, damaged, or more than ``MAX_RECORD_BYTES``.
        FieldError: a field has a value that is not allowed.
    """
    data = _as_bytes(data)
    header, start = read_header(data, len(data))
    check_crc(data)
    check_header(header, now_ns)
    sections = read_sections(data, start)
    packed = _PACKED.get(header.kind)
    if packed is not None:
        return packed[1](header, sections, now_ns)
    if header.kind is Kind.TICK:
        return Tick(header.ts_ns)
    body = _bodies.reader_of(sections, label(header.kind))
    if header.kind in _PAYLOADS:
        payload = section(sections, _bodies.PAYLOAD_SECTION, body.field("payload"))
        return _PAYLOADS[header.kind][1](header, body, payload)
    return _JSON[header.kind][1](header, body)


def peek(data: bytes | memoryview) -> Header:
    """Decode only the header of a record: kind, job, host and time.

    The checksum is not verified and the body not read. Used for sorting records into slices; damage is found when the
    record is decoded.

    Raises:
        SchemaError: as for ``decode``, as far as the header goes.
    """
    data = _as_bytes(data)
    header, _ = read_header(data, len(data))
    check_header(header, None)
    return header


def _as_bytes(data: bytes | memoryview) -> bytes:
    """Return the data as bytes; raise ``DecodeError`` before copying more than a record may have."""
    if isinstance(data, bytes):
        return data
    if data.nbytes > MAX_RECORD_BYTES:
        raise DecodeError(f"{data.nbytes} bytes: a record has at most {MAX_RECORD_BYTES}")
    return bytes(data)
