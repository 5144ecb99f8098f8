"""Many records in one value: what a window hands to an operator in one piece.

A Python function that is called once per record costs a thousand times what it costs to call it
once per window (``docs/adr/0010-flink-job.md``), so the window joins the payloads first.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tocsin.schemas.errors import DecodeError

_LENGTHS = struct.Struct("<II")


class Packed(NamedTuple):
    """One record of a pack.

    Attributes:
        origin: where it stood: ``topic:partition:offset``.
        data: its bytes.
    """

    origin: str
    data: bytes


def pack(values: Sequence[bytes | None], origins: Sequence[str | None]) -> bytes:
    """Join payloads and their origins; a record without a value (a tombstone) is an empty payload."""
    parts: list[bytes] = []
    for value, origin in zip(values, origins, strict=True):
        name, data = (origin or "").encode(), value or b""
        parts += (_LENGTHS.pack(len(name), len(data)), name, data)
    return b"".join(parts)


def unpack(data: bytes) -> Iterator[Packed]:
    """Take a pack apart.

    Raises:
        DecodeError: it is cut short.
    """
    place = 0
    while place < len(data):
        begin = place + _LENGTHS.size
        if begin > len(data):
            raise DecodeError("pack", f"cut short at byte {place} of {len(data)}")
        name_bytes, data_bytes = _LENGTHS.unpack_from(data, place)
        place = begin + name_bytes + data_bytes
        if place > len(data):
            raise DecodeError("pack", f"a record ends at byte {place}, the pack at {len(data)}")
        yield Packed(data[begin : begin + name_bytes].decode("utf-8", "replace"), data[begin + name_bytes : place])
