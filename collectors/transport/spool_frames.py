"""Frame format of the spool's segments, and the search for whole frames after damage.

A frame is: the segment's token (8 bytes), the record's number in its segment, its length, a CRC-32 of all that and of
the record, the record. The token is random for each segment and part of its file name. So the next whole
frame after damage is found by searching for the token, and no text of a program can pass for a frame. The number
shows how many records the damage cost.
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
    """A whole record in a buffer: its bytes, the end of its frame, its number in the segment."""

    data: bytes
    end: int
    number: int


class SpoolGap(NamedTuple):
    """Damaged bytes: where whole frames continue, and the number of lost records."""

    end: int
    lost_count: int


@dataclass(slots=True)
class Segment:
    """One file of the spool.

    Attributes:
        number: order of the segment among the others.
        token: bytes with which each of its frames begins.
        size: bytes that hold frames.
        count: records written, including damaged ones.
        gaps: offset of damage -> gap.
    """

    number: int
    token: bytes
    size: int = 0
    count: int = 0
    gaps: dict[int, SpoolGap] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the segment's file."""
        return f"{self.number:08d}-{self.token.hex()}.spool"

    def lost_count(self, from_offset: int = 0) -> int:
        """Return the number of records lost by damage from an offset on."""
        return sum(gap.lost_count for offset, gap in self.gaps.items() if offset >= from_offset)


def new_segment(number: int) -> Segment:
    """Return an empty segment with a random token."""
    return Segment(number, os.urandom(8))


def segment_of_name(name: str) -> Segment | None:
    """Return the segment of a file name, None if the name is of another kind."""
    found = _NAME.fullmatch(name)
    return Segment(int(found[1]), bytes.fromhex(found[2])) if found else None


def pack(segment: Segment, data: bytes) -> bytes:
    """Return the frame of the segment's next record."""
    head = _HEAD.pack(segment.token, segment.count, len(data), 0)[:_CHECKED]
    return head + zlib.crc32(data, zlib.crc32(head)).to_bytes(4, "little") + data


def record_bytes(head: bytes, token: bytes, room: int) -> int:
    """Return the record length that a frame's head states, -1 if it is no head or the record exceeds ``room``."""
    if len(head) < _HEAD.size:
        return -1
    found, _, size, _ = _HEAD.unpack_from(head)
    return size if found == token and 0 < size <= min(room, MAX_RECORD_BYTES) else -1


def frame_at(buffer: bytes, offset: int, token: bytes) -> SpoolFrame | None:
    """Return the whole frame that begins at an offset, None without one."""
    head = buffer[offset : offset + _HEAD.size]
    size = record_bytes(head, token, len(buffer) - offset - _HEAD.size)
    if size < 0:
        return None
    _, index, _, crc = _HEAD.unpack(head)
    end = offset + _HEAD.size + size
    data = buffer[end - size : end]
    return SpoolFrame(data, end, index) if zlib.crc32(data, zlib.crc32(head[:_CHECKED])) == crc else None


def frame_after(buffer: bytes, offset: int, token: bytes, index: int) -> tuple[int, SpoolFrame] | None:
    """Return the offset of the next whole frame, and the frame, whose number is at least ``index``.

    None without one.
    """
    while (offset := buffer.find(token, offset)) >= 0:
        frame = frame_at(buffer, offset, token)
        if frame is not None and frame.number >= index:
            return offset, frame
        offset += 1
    return None


def scan(segment: Segment, buffer: bytes) -> tuple[set[tuple[int, int]], int]:
    """Find the frames in a file, and note them and the damage in its segment.

    Args:
        segment: an empty segment, to which size, count and gaps are added.
        buffer: content of the file.

    Returns:
        (end, number of the next record) of each whole frame, and the number of records in the damaged tail, at least 1
        if there is one.
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
    """Estimate the number of records in a tail without a whole frame, by the remains of their heads."""
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
    """Return the content of a spool file, None if it is no regular file of this user."""
    try:
        with open(open_private(name, os.O_RDONLY, dir_fd=folder_fd), "rb") as file:
            return file.read()
    except OSError as error:
        log.warning("not a spool segment", extra={"path": name, "error": error.strerror or str(error)})
        return None


def is_old_name(name: str) -> bool:
    """Return whether a file name has the old format, before frames had tokens."""
    return _OLD_NAME.fullmatch(name) is not None


def old_records(buffer: bytes) -> tuple[list[bytes], bool]:
    """Return the records of a segment in the old format up to its first damage, and whether it is undamaged."""
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
