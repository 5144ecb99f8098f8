"""The outer form of a record on the wire: header, checksum, sections.

All numbers little-endian::

    0   magic      2 bytes  "TC"
    2   version    u8       1
    3   kind       u8       ``Kind``
    4   flags      u16      0; a reader ignores bits that it does not know
    6   cluster    u16      length of the name in bytes
    8   job_id     u16      length
    10  host       u16      length
    12  crc32      u32      of bytes 0 to 12 and 16 to the end
    16  length     u32      of the whole record in bytes
    20  attempt    u32
    24  ts_ns      i64
    32  cluster, job_id, host in UTF-8, one behind the other
    ..  sections: id u16, length u32, payload; up to the end

The header has the length so that a truncated record is distinguished from a damaged one. A section with an unknown
id is skipped, so that a newer sender may add fields.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

from tocsin.schemas.errors import DecodeError, FieldError, TruncatedError, UnknownKindError, VersionError
from tocsin.schemas.job_key import FLEET_JOB_ID
from tocsin.schemas.records import JobKey
from tocsin.schemas.wire.validate import (
    INT64_MAX,
    MAX_ATTEMPT,
    check_int,
    check_name,
    check_near,
)

MAGIC = b"TC"
WIRE_VERSION = 1
MAX_RECORD_BYTES = 16_000_000

_HEADER = struct.Struct("<2sBBHHHHIIIq")
NAMES_AT = _HEADER.size
"""Length of the header's fixed part, after which the names begin."""
_SECTION = struct.Struct("<HI")
_CRC = struct.Struct("<I")
_CRC_AT = 12
_CRC_END = 16
_MIN_PREFIX = 3  # magic and version: what tells a stranger from a record of another version


class Kind(IntEnum):
    """Kind of a record; the number is part of the wire format and of a slice's canonical order.

    Static facts come first, then events, then numbers. So an operator that walks through a slice knows where a rank
    runs before it reads what the rank did.
    """

    TABLE = 1
    TOPOLOGY = 2
    GROUPS = 3
    EVENT = 4
    HOST_STATUS = 5
    COLLECTIVES = 6
    STEPS = 7
    PROBE_ANSWER = 8
    FRAME = 9
    TICK = 10
    MODEL = 11


class Header(NamedTuple):
    """The facts about a record that are known without reading its body.

    Attributes:
        kind: kind of the record.
        ts_ns: event time.
        job: its job; the names are empty for a tick and for a model, which belong to no job.
        host: machine name, empty for these.
    """

    kind: Kind
    ts_ns: int
    job: JobKey
    host: str


_KINDS: dict[int, Kind] = {int(kind): kind for kind in Kind}
NOBODYS: frozenset[Kind] = frozenset({Kind.TICK, Kind.MODEL})
_LABELS: dict[Kind, str] = {kind: kind.name.lower() for kind in Kind}


def label(kind: Kind) -> str:
    """Return the name of a kind, with which the dotted names of its fields begin."""
    return _LABELS[kind]


def seal(header: Header, sections: Iterable[tuple[int, bytes]]) -> bytes:
    """Return a record's bytes: header with length and checksum, then the sections.

    Args:
        header: kind, time, job and host of the record.
        sections: (id, payload), ids ascending.

    Raises:
        FieldError: the header cannot hold a name or a number, or the record is longer than ``MAX_RECORD_BYTES``.
    """
    names = _name_bytes(header)
    parts = [*names]
    for number, payload in sections:
        parts += (_SECTION.pack(number, len(payload)), payload)
    body = b"".join(parts)
    size = _HEADER.size + len(body)
    what = label(header.kind)
    if size > MAX_RECORD_BYTES:
        raise FieldError(f"{what}.length", size, f"at most {MAX_RECORD_BYTES} bytes")
    ts_ns = check_int(header.ts_ns, f"{what}.ts_ns", 0, INT64_MAX)
    attempt = check_int(header.job.attempt, f"{what}.attempt", 0, MAX_ATTEMPT)
    lengths = (len(names[0]), len(names[1]), len(names[2]))
    head = _HEADER.pack(MAGIC, WIRE_VERSION, header.kind, 0, *lengths, 0, size, attempt, ts_ns)
    crc = zlib.crc32(body, zlib.crc32(head[_CRC_END:], zlib.crc32(head[:_CRC_AT])))
    return b"".join((head[:_CRC_AT], _CRC.pack(crc), head[_CRC_END:], body))


def _name_bytes(header: Header) -> tuple[bytes, bytes, bytes]:
    """Return cluster, job id and host as checked UTF-8 bytes."""
    what, empty = label(header.kind), header.kind in NOBODYS
    return (
        check_name(header.job.cluster, f"{what}.cluster", empty=empty).encode(),
        _check_job_id(header.job.job_id, f"{what}.job_id", empty=empty).encode(),
        check_name(header.host, f"{what}.host", empty=empty).encode(),
    )


def _check_job_id(value: object, field: str, *, empty: bool = False) -> str:
    """Return a job id that a record may have; verdicts about many hosts have one that no record has."""
    if value == FLEET_JOB_ID:
        raise FieldError(field, value, "a job's own name: tocsin's verdicts about many hosts have this one")
    return check_name(value, field, empty=empty)


def read_header(data: bytes, size: int) -> tuple[Header, int]:
    """Decode the header; the checksum is not verified.

    Args:
        data: the record, or its beginning with the whole header.
        size: length of the whole record in bytes.

    Returns:
        The header, and the index where the sections begin.

    Raises:
        SchemaError: as for ``tocsin.schemas.wire.codec.decode``.
    """
    if size > MAX_RECORD_BYTES:
        raise DecodeError(f"{size} bytes: a record has at most {MAX_RECORD_BYTES}")
    if size < _HEADER.size:
        _refuse_short(data, size)
    unpacked = _HEADER.unpack_from(data)
    magic, version, number, _, cluster_size, job_size, host_size, _, length, attempt, ts_ns = unpacked
    if magic != MAGIC or version != WIRE_VERSION:
        _refuse_prefix(data)
    if length != size:
        _refuse_length(length, size)
    job_at = _HEADER.size + cluster_size
    host_at = job_at + job_size
    end = host_at + host_size
    if end > size:
        raise TruncatedError(f"names end at byte {end} of {size}")
    kind = _KINDS.get(number)
    if kind is None:
        raise UnknownKindError(f"kind {number}: this program knows {', '.join(map(str, _KINDS))}")
    try:
        names = (
            data[_HEADER.size : job_at].decode(),
            data[job_at:host_at].decode(),
            data[host_at:end].decode(),
        )
    except UnicodeDecodeError as error:
        raise DecodeError(f"a name in the header is not UTF-8: {error}") from error
    return Header(kind, ts_ns, JobKey(names[0], names[1], attempt), names[2]), end


def check_header(header: Header, now_ns: int | None) -> None:
    """Check the names and the time of a decoded header.

    Args:
        header: the header.
        now_ns: the reader's clock; None: any time is allowed.

    Raises:
        FieldError: a name is empty, too long or not a job's, the attempt too large, or the time more than a day from
            now.
    """
    what = label(header.kind)
    check_near(header.ts_ns, f"{what}.ts_ns", now_ns)
    check_int(header.job.attempt, f"{what}.attempt", 0, MAX_ATTEMPT)
    if header.kind not in NOBODYS:
        check_name(header.job.cluster, f"{what}.cluster")
        if check_name(header.job.job_id, f"{what}.job_id") == FLEET_JOB_ID:
            raise FieldError(
                f"{what}.job_id", FLEET_JOB_ID, "a job's own name: verdicts about many hosts have this one"
            )
        check_name(header.host, f"{what}.host")


def check_crc(data: bytes) -> None:
    """Verify a record's checksum.

    Raises:
        DecodeError: the bytes were damaged.
    """
    found = zlib.crc32(memoryview(data)[_CRC_END:], zlib.crc32(data[:_CRC_AT]))
    (stated,) = _CRC.unpack_from(data, _CRC_AT)
    if found != stated:
        raise DecodeError(f"checksum {found:08x}, the record states {stated:08x}: bytes were damaged")


def read_sections(data: bytes, start: int) -> dict[int, bytes]:
    """Split a record's body into section id -> payload.

    Args:
        data: the whole record.
        start: index where the sections begin.

    Raises:
        TruncatedError: a section states more bytes than there are.
        DecodeError: a section id occurs twice.
    """
    sections: dict[int, bytes] = {}
    size = len(data)
    while start < size:
        begin = start + _SECTION.size
        if begin > size:
            raise TruncatedError(f"{size - start} bytes at the end are no section")
        number, length = _SECTION.unpack_from(data, start)
        start = begin + length
        if start > size:
            raise TruncatedError(f"section {number} ends at byte {start} of {size}")
        if number in sections:
            raise DecodeError(f"section {number} comes twice")
        sections[number] = data[begin:start]
    return sections


def section(sections: dict[int, bytes], number: int, field: str) -> bytes:
    """Return the payload of a required section.

    Args:
        sections: section id -> payload.
        number: the section id.
        field: name for the error.

    Raises:
        DecodeError: the section is missing.
    """
    try:
        return sections[number]
    except KeyError:
        raise DecodeError(f"{field}: section {number} is missing") from None


def _refuse_short(data: bytes, size: int) -> None:
    """Raise the error for bytes shorter than a header."""
    _refuse_prefix(data)
    raise TruncatedError(f"{size} bytes: a header has {_HEADER.size}")


def _refuse_prefix(data: bytes) -> None:
    """Raise ``DecodeError`` if the first bytes are no record, ``VersionError`` if they have another version."""
    if not MAGIC.startswith(data[: len(MAGIC)]):
        raise DecodeError(f"begins with {data[:4]!r}, a record with {MAGIC!r}")
    if len(data) >= _MIN_PREFIX and data[2] != WIRE_VERSION:
        raise VersionError(f"wire version {data[2]}: this program reads {WIRE_VERSION}")


def _refuse_length(length: int, size: int) -> None:
    """Raise the error for a stated length that differs from the record's size."""
    if length > MAX_RECORD_BYTES:
        raise DecodeError(f"states {length} bytes: a record has at most {MAX_RECORD_BYTES}")
    if length > size:
        raise TruncatedError(f"{size} bytes of {length}")
    raise DecodeError(f"{size - length} bytes behind the end of the record")
