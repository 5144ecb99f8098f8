"""How records lie in a segment of the spool, and how they are found again around damage.

A frame is: the segment's token (8 bytes), the record's number in its segment, its length, a CRC-32 of all that and of
the record, the record. The token is drawn at random for each segment and stands in its file name. So the next whole
frame after damage is found by searching for the token, and no text of a program can pretend to be a frame. The number
says how many records the damage cost.
"""

from __future__ import annotations

import logging
import os
import re
import struct
import zlib
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from tocsin.schemas.private_files import open_private

log = logging.getLogger(__name__)

_HEAD: Final = struct.Struct("<8sIII")
_CHECKED: Final = _HEAD.size - 4
HEAD_BYTES: Final = _HEAD.size
MAX_RECORD_BYTES: Final = 64 * 1024 * 1024
_OLD_NAME: Final = re.compile(r"[0-9]{1,15}\.spool", re.ASCII)
_OLD_HEAD: Final = struct.Struct("<II")
_NAME: Final = re.compile(r"([0-9]{8,15})-([0-9a-f]{16})\.spool", re.ASCII)


class SpoolFrame(NamedTuple):
    """A whole record in a buffer: its bytes, where its frame ends, its number in the segment."""

    data: bytes
    end: int
    number: int


class SpoolGap(NamedTuple):
    """Damaged bytes: where whole frames go on, and how many records were lost."""

    end: int
    lost_count: int


@dataclass(slots=True)
class Segment:
    """One file of the spool.

    Attributes:
        number: segments are read in this order.
        token: what each of its frames begins with.
        size: bytes that hold frames.
        count: records that were written, the damaged ones among them.
        gaps: where it is damaged: offset -> gap.
    """

    number: int
    token: bytes
    size: int = 0
    count: int = 0
    gaps: dict[int, SpoolGap] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The file's name."""
        return f"{self.number:08d}-{self.token.hex()}.spool"

    def lost_count(self, from_offset: int = 0) -> int:
        """Return how many records damage cost from an offset on."""
        return sum(gap.lost_count for offset, gap in self.gaps.items() if offset >= from_offset)


def new_segment(number: int) -> Segment:
    """Return an empty segment with a token of its own."""
    return Segment(number, os.urandom(8))


def segment_of_name(name: str) -> Segment | None:
    """Return the segment that a file name belongs to, None: it is none of ours."""
    found = _NAME.fullmatch(name)
    return Segment(int(found[1]), bytes.fromhex(found[2])) if found else None


def pack(segment: Segment, data: bytes) -> bytes:
    """Return the frame of the segment's next record."""
    head = _HEAD.pack(segment.token, segment.count, len(data), 0)[:_CHECKED]
    return head + zlib.crc32(data, zlib.crc32(head)).to_bytes(4, "little") + data


def record_bytes(head: bytes, token: bytes, room: int) -> int:
    """Return the length that a frame's head names, -1: it is no head, or the record has no room."""
    if len(head) < _HEAD.size:
        return -1
    found, _, size, _ = _HEAD.unpack_from(head)
    return size if found == token and 0 < size <= min(room, MAX_RECORD_BYTES) else -1


def frame_at(buffer: bytes, offset: int, token: bytes) -> SpoolFrame | None:
    """Return the whole frame that begins at an offset, None: there is none."""
    head = buffer[offset : offset + _HEAD.size]
    size = record_bytes(head, token, len(buffer) - offset - _HEAD.size)
    if size < 0:
        return None
    _, index, _, crc = _HEAD.unpack(head)
    end = offset + _HEAD.size + size
    data = buffer[end - size : end]
    return SpoolFrame(data, end, index) if zlib.crc32(data, zlib.crc32(head[:_CHECKED])) == crc else None


def frame_after(buffer: bytes, offset: int, token: bytes, index: int) -> tuple[int, SpoolFrame] | None:
    """Return where the next whole frame begins, and the frame; its record's number is at least ``index``."""
    while (offset := buffer.find(token, offset)) >= 0:
        frame = frame_at(buffer, offset, token)
        if frame is not None and frame.number >= index:
            return offset, frame
        offset += 1
    return None


def scan(segment: Segment, buffer: bytes) -> tuple[set[tuple[int, int]], int]:
    """Find the frames of a file, and note them and the damage in its segment.

    Args:
        segment: empty; gets size, count and gaps.
        buffer: the file.

    Returns:
        (end, number of the next record) of each whole frame; how many records the damaged tail held, where it can be
        told, at least 1 where there is one.
    """
    ends: set[tuple[int, int]] = set()
    while segment.size < len(buffer):
        frame = frame_at(buffer, segment.size, segment.token)
        if frame is None or frame.number < segment.count:
            found = frame_after(buffer, segment.size + 1, segment.token, segment.count + 1)
            if found is None:
                break
            start, frame = found
            segment.gaps[segment.size] = SpoolGap(start, frame.number - segment.count)
        segment.size, segment.count = frame.end, frame.number + 1
        ends.add((segment.size, segment.count))
    return ends, _tail_count(segment, buffer)


def _tail_count(segment: Segment, buffer: bytes) -> int:
    """Count the records of a tail without a whole frame, by what is left of their heads."""
    count, offset = 0, segment.size
    while offset < len(buffer):
        count += 1
        room = len(buffer) - offset - _HEAD.size
        size = record_bytes(buffer[offset : offset + _HEAD.size], segment.token, room)
        end = offset + _HEAD.size + size
        if size < 0 or (end < len(buffer) and not buffer.startswith(segment.token, end)):
            end = buffer.find(segment.token, offset + 1)
        offset = end if end > 0 else len(buffer)
    return count


def read_file(folder_fd: int, name: str) -> bytes | None:
    """Return the bytes of a file of the spool, None where it is no plain file of this user: that is none of ours."""
    try:
        with open(open_private(name, os.O_RDONLY, dir_fd=folder_fd), "rb") as file:
            return file.read()
    except OSError as error:
        log.warning("not a spool segment", extra={"path": name, "error": error.strerror or str(error)})
        return None


def is_old_name(name: str) -> bool:
    """Return whether a file is of the form before frames had tokens."""
    return _OLD_NAME.fullmatch(name) is not None


def old_records(buffer: bytes) -> tuple[list[bytes], bool]:
    """Return the records of a segment of the old form up to its first damage, and whether it is whole."""
    records: list[bytes] = []
    offset = 0
    while offset + _OLD_HEAD.size <= len(buffer):
        size, crc = _OLD_HEAD.unpack_from(buffer, offset)
        data = buffer[offset + _OLD_HEAD.size : offset + _OLD_HEAD.size + size]
        if not size or len(data) < size or zlib.crc32(data) != crc:
            break
        records.append(data)
        offset += _OLD_HEAD.size + size
    return records, offset == len(buffer)
