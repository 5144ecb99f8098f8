"""Pack many records into one value, so that a window is passed to an operator in one call.

Calling a Python function once per record costs a thousand times as much as once per window
(``docs/adr/0010-flink-job.md``).
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
        origin: its position ``topic:partition:offset``.
        data: its bytes.
    """

    origin: str
    data: bytes


def pack(values: Sequence[bytes | None], origins: Sequence[str | None]) -> bytes:
    """Join record values and their origins into one value; a missing value (tombstone) becomes an empty one."""
    parts: list[bytes] = []
    for value, origin in zip(values, origins, strict=True):
        name, data = (origin or "").encode(), value or b""
        parts += (_LENGTHS.pack(len(name), len(data)), name, data)
    return b"".join(parts)


def unpack(data: bytes) -> Iterator[Packed]:
    """Yield the records of a pack.

    Raises:
        DecodeError: the pack is cut short.
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
