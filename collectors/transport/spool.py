"""Bounded queue of records that wait for the engine, on disk or in memory.

On disk: append-only segment files of frames (``spool_frames``). When the bound is reached, the oldest segment is
dropped and its records are counted. A crash may tear the last frame, which is cut off at the next start. Records
acknowledged but not yet noted in ``cursor`` are sent twice after a crash; the engine drops exact
duplicates. Damage costs only the records that it touches, and they are counted; damage that is still there at the
next start is counted again.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from collections import deque
from collections.abc import Iterable
from operator import attrgetter
from typing import Final, NamedTuple, Protocol

from tocsin.collectors.transport.spool_frames import (
    HEAD_BYTES,
    Segment,
    SpoolFrame,
    SpoolGap,
    frame_after,
    frame_at,
    is_old_name,
    new_segment,
    old_records,
    pack,
    read_file,
    record_bytes,
    scan,
    segment_of_name,
)
from tocsin.schemas.errors import SpoolError
from tocsin.schemas.private_files import open_folder, open_private

log = logging.getLogger(__name__)

_CURSOR_EVERY: Final = 256
_CURSOR_BYTES: Final = 256
MIN_SEGMENT_BYTES: Final = 64 * 1024
MAX_SEGMENT_BYTES: Final = 8 * 1024 * 1024


class Position(NamedTuple):
    """The end of a record in the spool; positions are ordered."""

    segment: int
    end: int
    record: int


class Spool(Protocol):
    """Interface of a bounded queue that is read ahead and committed later; used by one thread."""

    @property
    def dropped_count(self) -> int:
        """Number of records lost (no room, damaged), since start."""

    def __len__(self) -> int:
        """Return the number of records not committed."""

    def append(self, data: bytes) -> None:
        """Add a record at the end."""

    def read(self) -> tuple[bytes, Position] | None:
        """Return the next unread record and its position, None at the end."""

    def has_unread(self) -> bool:
        """Return whether ``read`` has a record to return."""

    def rewind(self) -> None:
        """Continue reading at the first record not committed."""

    def commit(self, position: Position) -> None:
        """Remove the records up to and including this position."""

    def close(self) -> None:
        """Note the last committed position and close."""


class MemorySpool:
    """A spool in memory, for agents without a disk; it is lost with the process."""

    def __init__(self, limit_bytes: int) -> None:
        """Create a spool of at most ``limit_bytes``."""
        self._limit_bytes = limit_bytes
        self._records: deque[bytes] = deque()
        self._bytes = 0
        self._first = 0
        self._read = 0
        self.dropped_count = 0

    def __len__(self) -> int:
        return len(self._records)

    def append(self, data: bytes) -> None:
        """Add a record; the oldest ones are dropped if there is no room."""
        self._records.append(data)
        self._bytes += len(data)
        while self._bytes > self._limit_bytes and len(self._records) > 1:
            self._drop()
            self.dropped_count += 1

    def read(self) -> tuple[bytes, Position] | None:
        """Return the next unread record and its position, None at the end."""
        if not self.has_unread():
            return None
        data = self._records[self._read - self._first]
        self._read += 1
        return data, Position(0, self._read, self._read)

    def has_unread(self) -> bool:
        """Return whether there is an unread record."""
        return self._read - self._first < len(self._records)

    def rewind(self) -> None:
        """Continue reading at the first record."""
        self._read = self._first

    def commit(self, position: Position) -> None:
        """Remove the records up to this position."""
        while self._records and self._first < position.record:
            self._drop()

    def close(self) -> None:
        """Remove all records."""
        self._records.clear()

    def _drop(self) -> None:
        """Remove the first record."""
        self._bytes -= len(self._records.popleft())
        self._first += 1
        self._read = max(self._read, self._first)


class DiskSpool:
    """A spool in segment files of a folder; other files are left alone, and no other user's link is followed."""

    def __init__(self, folder: str, limit_bytes: int) -> None:
        """Open or create the folder and read what an earlier agent left.

        Raises:
            SpoolError: the folder cannot be used, or another agent uses it.
        """
        self._path = folder
        self._limit_bytes = limit_bytes
        self._segment_bytes = max(MIN_SEGMENT_BYTES, min(MAX_SEGMENT_BYTES, limit_bytes // 16))
        self.dropped_count = 0
        self._is_full_logged = False
        self._segments: deque[Segment] = deque()
        self._folder = self._lock = self._write_fd = self._read_fd = -1
        self._read_number = -1
        self._commits = 0
        self._done = self._next = Position(1, 0, 0)
        try:
            self._folder = open_folder(folder)
            self._lock = open_private("lock", os.O_RDWR | os.O_CREAT, dir_fd=self._folder)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._open()
        except BlockingIOError as error:
            self._close_all()
            raise SpoolError(f"spool {folder} is used by another agent") from error
        except OSError as error:
            self._close_all()
            raise SpoolError(f"spool {folder}: {error.filename or ''} {error.strerror or error}") from error

    def __len__(self) -> int:
        return sum(self._left(segment) for segment in self._segments)

    def append(self, data: bytes) -> None:
        """Write a record at the end; if the disk is full it is dropped and counted."""
        last = self._segments[-1]
        written, size = 0, HEAD_BYTES + len(data)
        try:
            if last.size and last.size + size > self._segment_bytes:
                last = self._new_segment(last.number + 1)
            written = os.write(self._write_fd, pack(last, data))
        except OSError as error:
            if not self._is_full_logged:
                self._is_full_logged = True
                log.error("spool cannot be written", extra={"error": error.strerror})  # noqa: TRY400  # the text is all
        if written != size:
            with contextlib.suppress(OSError):
                os.ftruncate(self._write_fd, last.size)  # no half frame in the middle of a segment
            self.dropped_count += 1
            return
        last.size += written
        last.count += 1
        while len(self._segments) > 1 and sum(s.size for s in self._segments) > self._limit_bytes:
            self.dropped_count += self._left(self._segments[0])
            self._drop_first()

    def read(self) -> tuple[bytes, Position] | None:
        """Return the next unread record and its position, None at the end."""
        number, offset, index = self._next
        for segment in self._from(number):
            if segment.number > number:
                number, offset, index = segment.number, 0, 0
            frame = self._frame(segment, offset, index)
            if frame is not None:
                self._next = Position(number, frame.end, frame.number + 1)
                return frame.data, self._next
        return None

    def has_unread(self) -> bool:
        """Return whether there is an unread record."""
        number, offset, _ = self._next
        return any(segment.size > (offset if segment.number == number else 0) for segment in self._from(number))

    def rewind(self) -> None:
        """Continue reading at the first record not committed."""
        self._next = self._done

    def commit(self, position: Position) -> None:
        """Remove the records up to this position; finished segments are deleted."""
        if position <= self._done:
            return  # its segment was dropped in the meantime
        while self._segments[0].number < position.segment:
            self._drop_first()
        self._done = position
        first = self._segments[0]
        if position.record == first.count:
            if len(self._segments) == 1:
                self._new_segment(first.number + 1)
            self._drop_first()
        self._commits += 1
        if self._commits % _CURSOR_EVERY == 0:
            self._note()

    def close(self) -> None:
        """Note the last committed position and close the folder."""
        self._note()
        self._close_all()

    def _close_all(self) -> None:
        for fd in (self._write_fd, self._read_fd, self._lock, self._folder):
            if fd >= 0:
                os.close(fd)
        self._write_fd = self._read_fd = self._lock = self._folder = -1

    def _left(self, segment: Segment) -> int:
        """Return the number of records of a segment that can still be sent."""
        is_first = segment.number == self._done.segment
        done = self._done if is_first else Position(segment.number, 0, 0)
        return segment.count - done.record - segment.lost_count(done.end)

    def _open(self) -> None:
        """Find the segments, cut off torn tails, and begin a new one."""
        names = sorted(os.listdir(self._folder))
        found = sorted(filter(None, map(segment_of_name, names)), key=attrgetter("number"))
        noted = self._cursor()
        ends: set[tuple[int, int]] = set()
        for segment in found:
            if (buffer := read_file(self._folder, segment.name)) is None:
                continue
            segment_ends = self._check(segment, buffer)
            ends = segment_ends if segment.number == noted.segment else ends
            self._segments.append(segment)
        self._done = Position(self._segments[0].number if self._segments else 1, 0, 0)
        if noted.segment == self._done.segment and (noted.end, noted.record) in ends:
            self._done = noted
        self._next = self._done
        self.dropped_count += sum(s.lost_count() for s in self._segments)
        if self._segments:  # what is damaged before the cursor was sent
            first = self._segments[0]
            self.dropped_count -= first.lost_count() - first.lost_count(self._done.end)
        self._new_segment(found[-1].number + 1 if found else 1)
        self._take_over(filter(is_old_name, names))
        while len(self._segments) > 1 and not self._left(self._segments[0]):
            self._drop_first()

    def _check(self, segment: Segment, buffer: bytes) -> set[tuple[int, int]]:
        """Find a segment's records and cut off what follows the last whole one; return the records' ends."""
        ends, lost_count = scan(segment, buffer)
        if segment.gaps or lost_count:
            damage = {"path": segment.name, "gaps": len(segment.gaps), "tail_bytes": len(buffer) - segment.size}
            log.warning("damaged spool segment", extra=damage)
        if lost_count:
            self.dropped_count += lost_count
            descriptor = open_private(segment.name, os.O_WRONLY, dir_fd=self._folder)
            os.ftruncate(descriptor, segment.size)
            os.close(descriptor)
        return ends

    def _take_over(self, names: Iterable[str]) -> None:
        """Move the records of segments in the old format into new ones."""
        for name in names:
            if (buffer := read_file(self._folder, name)) is not None:
                records, is_whole = old_records(buffer)
                for record in records:
                    self.append(record)
                self.dropped_count += not is_whole
                os.unlink(name, dir_fd=self._folder)

    def _cursor(self) -> Position:
        """Return the position that an earlier agent noted, zeros if there is none."""
        try:
            with open(open_private("cursor", os.O_RDONLY, dir_fd=self._folder), "rb") as file:
                return Position(*map(int, file.read(_CURSOR_BYTES).split()))
        except (OSError, ValueError, TypeError):
            return Position(0, 0, 0)

    def _note(self) -> None:
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink("cursor.new", dir_fd=self._folder)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            with open(open_private("cursor.new", flags, dir_fd=self._folder), "w", encoding="ascii") as file:
                file.write(f"{self._done.segment} {self._done.end} {self._done.record}\n")
            os.replace("cursor.new", "cursor", src_dir_fd=self._folder, dst_dir_fd=self._folder)
        except OSError as error:
            log.warning("spool cursor not noted", extra={"error": error.strerror})

    def _new_segment(self, number: int) -> Segment:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
        segment = new_segment(number)
        try:
            descriptor = open_private(segment.name, flags, dir_fd=self._folder)
        except FileNotFoundError:  # a cleaner of temporary files removed the folder
            os.close(self._folder)
            self._folder = -1
            self._folder = open_folder(self._path)
            descriptor = open_private(segment.name, flags, dir_fd=self._folder)
        if self._write_fd >= 0:
            os.close(self._write_fd)
        self._write_fd = descriptor
        self._segments.append(segment)
        return segment

    def _drop_first(self) -> None:
        first = self._segments.popleft()
        if self._read_number == first.number:  # an open file keeps its room on the disk
            os.close(self._read_fd)
            self._read_fd = self._read_number = -1
        with contextlib.suppress(FileNotFoundError):
            os.unlink(first.name, dir_fd=self._folder)
        self._done = Position(self._segments[0].number, 0, 0)
        self._next = max(self._next, self._done)

    def _from(self, number: int) -> list[Segment]:
        return [segment for segment in self._segments if segment.number >= number]

    def _frame(self, segment: Segment, offset: int, index: int) -> SpoolFrame | None:
        """Return a segment's next whole record from an offset on, None if there is none."""
        while offset < segment.size:
            if offset in segment.gaps:
                gap = segment.gaps[offset]
                offset, index = gap.end, index + gap.lost_count
                continue
            try:
                frame = self._read_frame(segment, offset)
                if frame is not None:
                    return frame
                self._note_damage(segment, offset, index)
            except OSError as error:
                log.error("spool cannot be read", extra={"error": error.strerror})  # noqa: TRY400  # the text is all
                self._give_up(segment, offset, index)
        return None

    def _read_frame(self, segment: Segment, offset: int) -> SpoolFrame | None:
        if self._read_number != segment.number:
            if self._read_fd >= 0:
                os.close(self._read_fd)
                self._read_fd = self._read_number = -1
            self._read_fd = open_private(segment.name, os.O_RDONLY, dir_fd=self._folder)
            self._read_number = segment.number
        head = os.pread(self._read_fd, HEAD_BYTES, offset)
        size = record_bytes(head, segment.token, segment.size - offset - HEAD_BYTES)
        if size < 0:
            return None
        frame = frame_at(head + os.pread(self._read_fd, size, offset + HEAD_BYTES), 0, segment.token)
        return None if frame is None else frame._replace(end=offset + frame.end)

    def _note_damage(self, segment: Segment, offset: int, index: int) -> None:
        """Note a gap for a record that changed on disk, up to the next whole one."""
        buffer = os.pread(self._read_fd, segment.size - offset, offset)
        found = frame_after(buffer, 1, segment.token, index + 1)
        if found is None:
            self._give_up(segment, offset, index)
            return
        start, frame = found
        log.error("spool record damaged", extra={"path": segment.name, "offset": offset, "lost": frame.number - index})
        segment.gaps[offset] = SpoolGap(offset + start, frame.number - index)
        self.dropped_count += frame.number - index

    def _give_up(self, segment: Segment, offset: int, index: int) -> None:
        """Count the rest of a segment as lost, because no whole record follows."""
        log.error("spool segment damaged", extra={"path": segment.name, "lost": segment.count - index})
        self.dropped_count += segment.count - index
        segment.size, segment.count = offset, index
        if segment is self._segments[-1]:
            self._new_segment(segment.number + 1)
