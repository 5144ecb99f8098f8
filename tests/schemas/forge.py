"""Bytes that lie: records whose parts were replaced, with a checksum that fits."""

from __future__ import annotations

import json
import struct
import zlib
from typing import Any

from tocsin.schemas.records import Record
from tocsin.schemas.wire._format import read_header, read_sections, seal
from tocsin.schemas.wire.codec import encode, header_of


def resealed(data: bytes) -> bytes:
    """Bytes that someone changed, with the length and the checksum that fit."""
    data = data[:16] + struct.pack("<I", len(data)) + data[20:]
    return data[:12] + struct.pack("<I", zlib.crc32(data[16:], zlib.crc32(data[:12]))) + data[16:]


def forged(record: Record, changed: dict[int, bytes | None]) -> bytes:
    """A record's bytes with some sections replaced, or left out (None)."""
    data = encode(record)
    sections: dict[int, bytes | None] = {**read_sections(data, read_header(data, len(data))[1]), **changed}
    return seal(header_of(record), [(k, v) for k, v in sections.items() if v is not None])


def forged_json(record: Record, **changed: Any) -> bytes:
    """A record's bytes with some keys of its JSON section changed."""
    data = encode(record)
    body = json.loads(read_sections(data, read_header(data, len(data))[1])[1])
    return forged(record, {1: json.dumps({**body, **changed}).encode()})
