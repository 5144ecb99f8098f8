"""The state of the active process as records of a compacted topic: parts in pieces, and places in other topics."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Final

from tocsin.schemas.errors import SnapshotError

PIECE_BYTES: Final = 512 * 1024
"""Size of a piece, well below what the broker takes as one record."""
POSITIONS: Final = "positions"
"""Name of the part with the places up to which was read; no other part has it."""
_HEAD_BYTES: Final = 4


class StateParts:
    """Named parts, read from and written as keyed records, of which the newest of each key counts.

    A piece's key is ``NAME#INDEX``; its value begins with the number of pieces, big-endian. Pieces beyond that number
    are left over from a longer part and are removed.
    """

    def __init__(self) -> None:
        """Start without parts."""
        self._pieces: dict[tuple[str, int], bytes] = {}
        self._counts: dict[str, int] = {}

    def take(self, key: bytes | None, value: bytes | None) -> None:
        """Take one record of the topic, oldest first; no value: the piece is gone."""
        name, _, index = (key or b"").decode("utf-8", "replace").rpartition("#")
        if not name or not index.isdecimal():
            return
        if value is None:
            self._pieces.pop((name, int(index)), None)
        else:
            self._pieces[name, int(index)] = value

    def parts(self) -> dict[str, bytes]:
        """Return the parts that the records taken so far hold, and forget the pieces.

        Raises:
            SnapshotError: a piece is missing.
        """
        found = {}
        for name in sorted({name for name, _ in self._pieces}):
            first = self._pieces.get((name, 0))
            if first is None:
                continue  # removed; what is left of it does not count
            count = int.from_bytes(first[:_HEAD_BYTES], "big")
            pieces = [self._pieces.get((name, index)) for index in range(count)]
            whole = [piece[_HEAD_BYTES:] for piece in pieces if piece is not None]
            if len(whole) != count:
                raise SnapshotError(f"part {name!r} of the state has {len(whole)} of {count} pieces")
            found[name] = b"".join(whole)
            self._counts[name] = max(index for of, index in self._pieces if of == name) + 1
        self._pieces.clear()
        return found

    def records(self, changes: Mapping[str, bytes | None]) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield key and value of the records that bring changed parts into the topic; None removes.

        Args:
            changes: name of a part -> its bytes, None = it is gone.
        """
        for name, data in changes.items():
            count = 0 if data is None else max(1, -(-len(data) // PIECE_BYTES))
            for index in range(count):
                piece = (data or b"")[index * PIECE_BYTES : (index + 1) * PIECE_BYTES]
                yield _key(name, index), count.to_bytes(_HEAD_BYTES, "big") + piece
            for index in range(count, self._counts.get(name, 0)):
                yield _key(name, index), None
            self._counts[name] = count


def pack_positions(positions: Mapping[tuple[str, int], int]) -> bytes:
    """Return places in topics as bytes.

    Args:
        positions: (topic without prefix, partition) -> offset of the next message.
    """
    return json.dumps([[topic, index, offset] for (topic, index), offset in sorted(positions.items())]).encode()


def unpack_positions(data: bytes) -> dict[tuple[str, int], int]:
    """Return the places that ``pack_positions`` wrote.

    Raises:
        SnapshotError: the bytes are damaged.
    """
    try:
        return {(str(topic), int(index)): int(offset) for topic, index, offset in json.loads(data)}
    except (ValueError, TypeError) as error:
        raise SnapshotError(f"part {POSITIONS!r} of the state is damaged: {error}") from error


def _key(name: str, index: int) -> bytes:
    """Return the key of a piece."""
    return f"{name}#{index}".encode()
