"""Store a snapshot part in compressed pieces of at most 1 MiB.

Flink passes each state value to Java in one message. A job of 10,000 hosts has parts of 15 MB. As single values they
were copied several times, which stalled a TaskManager of 2 GB.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from typing import Final

import zstandard

from tocsin.schemas.errors import SnapshotError

PIECE_BYTES: Final = 1 << 20
"""Maximum size of a piece."""
_COUNT: Final = struct.Struct("<I")
_LEVEL: Final = 1
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_MARK: Final = "\x00"


def pieces_of(name: str, data: bytes) -> dict[str, bytes]:
    """Compress and split a part; return piece name -> bytes, where the part's own name holds the number of pieces."""
    packed = zstandard.ZstdCompressor(_LEVEL).compress(data)
    cut = [packed[place : place + PIECE_BYTES] for place in range(0, len(packed), PIECE_BYTES)]
    return {name: _COUNT.pack(len(cut)), **{f"{name}{_MARK}{number}": piece for number, piece in enumerate(cut)}}


def pieces_named(name: str, head: bytes) -> list[str]:
    """Return the names of a part's head and pieces."""
    return [name, *(f"{name}{_MARK}{number}" for number in range(_COUNT.unpack(head)[0]))]


def join_pieces(found: Mapping[str, bytes]) -> dict[str, bytes]:
    """Join and decompress the pieces of all parts; return part name -> bytes.

    Raises:
        SnapshotError: a piece is missing or damaged.
    """
    parts = {}
    for name, head in found.items():
        if _MARK in name:
            continue
        try:
            parts[name] = _plain(b"".join(found[piece] for piece in pieces_named(name, head)[1:]))
        except (KeyError, zlib.error, zstandard.ZstdError, struct.error) as error:
            raise SnapshotError(f"snapshot part {name!r} cannot be put together: {error}") from error
    return parts


def _plain(packed: bytes) -> bytes:
    """Decompress a part with zstd, or with zlib as older versions did, so that their parts are refused by version."""
    if packed.startswith(_ZSTD):
        return zstandard.ZstdDecompressor().decompress(packed)
    return zlib.decompress(packed)
