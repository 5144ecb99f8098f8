"""What waits for the engine: a bounded queue of records, on disk or in memory.

On disk: append-only segment files of frames (length, CRC-32, bytes). The oldest
segment goes first when the bound is reached, and its records are counted. A crash
may tear the last frame: it is cut off at the next start. Records that were
acknowledged but not yet noted in ``cursor`` are sent twice after a crash; the
engine drops exact duplicates. What is damaged when the folder is opened counts as one
record lost: how many they were is not known.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import struct
import zlib
from collections import deque
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from tocsin.schemas.errors import SpoolError

log = logging.getLogger(__name__)

_FRAME: Final = struct.Struct("<II")
_CURSOR_EVERY: Final = 256
MIN_SEGMENT_BYTES: Final = 64 * 1024
MAX_SEGMENT_BYTES: Final = 8 * 1024 * 1024


class Position(NamedTuple):
    """Where a record ends in the spool: positions are ordered."""

    segment: int
    end: int
    record: int


class Spool(Protocol):
    """A bounded queue that is read ahead and committed behind. Used by one thread."""

    @property
    def dropped_count(self) -> int:
        """Return how many records were lost (no room, damaged), since start."""

    def __len__(self) -> int:
        """Return how many records are not committed."""

    def append(self, data: bytes) -> None:
        """Add a record at the end."""

    def read(self) -> tuple[bytes, Position] | None:
        """Return the next record that was not read, None at the end."""

    def has_unread(self) -> bool:
        """Return whether ``read`` has something to return."""

    def rewind(self) -> None:
        """Read again from the first record that is not committed."""

    def commit(self, position: Position) -> None:
        """Forget the records up to and including this one."""

    def close(self) -> None:
        """Note how far it was committed."""


class MemorySpool:
    """A spool for agents without a disk: gone with the process."""

    def __init__(self, limit_bytes: int) -> None:
        """Hold at most so many bytes."""
        self._limit_bytes = limit_bytes
        self._records: deque[bytes] = deque()
        self._bytes = 0
        self._first = 0
        self._read = 0
        self.dropped_count = 0

    def __len__(self) -> int:
        return len(self._records)

    def append(self, data: bytes) -> None:
        """Add a record; the oldest go when there is no room."""
        self._records.append(data)
        self._bytes += len(data)
        while self._bytes > self._limit_bytes and len(self._records) > 1:
            self._drop()
            self.dropped_count += 1

    def read(self) -> tuple[bytes, Position] | None:
        """Return the next record that was not read."""
        if not self.has_unread():
            return None
        data = self._records[self._read - self._first]
        self._read += 1
        return data, Position(0, self._read, self._read)

    def has_unread(self) -> bool:
        """Return whether something was not read."""
        return self._read - self._first < len(self._records)

    def rewind(self) -> None:
        """Read again from the first."""
        self._read = self._first

    def commit(self, position: Position) -> None:
        """Forget the records up to this one."""
        while self._records and self._first < position.record:
            self._drop()

    def close(self) -> None:
        """Forget everything."""
        self._records.clear()

    def _drop(self) -> None:
        self._bytes -= len(self._records.popleft())
        self._first += 1
        self._read = max(self._read, self._first)


@dataclass(slots=True)
class _Segment:
    number: int
    size: int
    count: int


class DiskSpool:
    """Segments ``00000001.spool`` ... in a folder of its own."""

    def __init__(self, folder: str, limit_bytes: int) -> None:
        """Open or make the folder and find what an earlier agent left.

        Raises:
            SpoolError: the folder cannot be used, or another agent uses it.
        """
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._segment_bytes = max(MIN_SEGMENT_BYTES, min(MAX_SEGMENT_BYTES, limit_bytes // 16))
        self.dropped_count = 0
        self._said_full = False
        try:
            os.makedirs(folder, exist_ok=True)
            self._lock = os.open(os.path.join(folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise SpoolError(f"spool {folder} is used by another agent") from error
        except OSError as error:
            raise SpoolError(f"spool {folder}: {error.strerror}") from error
        self._segments: deque[_Segment] = deque()
        self._write_fd = -1
        self._read_fd = -1
        self._read_number = -1
        self._commits = 0
        self._done = self._next = Position(1, 0, 0)
        try:
            self._open()
        except OSError as error:
            os.close(self._lock)
            raise SpoolError(f"spool {folder}: {error.filename or ''} {error.strerror}") from error

    def __len__(self) -> int:
        return sum(segment.count for segment in self._segments) - self._done.record

    def append(self, data: bytes) -> None:
        """Write a record to the end; a full disk drops it, and that is counted."""
        frame = _FRAME.pack(len(data), zlib.crc32(data)) + data
        last = self._segments[-1]
        written = 0
        try:
            if last.size and last.size + len(frame) > self._segment_bytes:
                last = self._new_segment(last.number + 1)
            written = os.write(self._write_fd, frame)
        except OSError as error:
            if not self._said_full:
                self._said_full = True
                log.error("spool cannot be written", extra={"error": error.strerror})  # noqa: TRY400  # the text is all
        if written != len(frame):
            with contextlib.suppress(OSError):
                os.ftruncate(self._write_fd, last.size)  # no half frame in the middle of a segment
            self.dropped_count += 1
            return
        last.size += written
        last.count += 1
        while len(self._segments) > 1 and sum(s.size for s in self._segments) > self._limit_bytes:
            self.dropped_count += self._segments[0].count - self._done.record
            self._drop_first()

    def read(self) -> tuple[bytes, Position] | None:
        """Return the next record that was not read, None at the end."""
        number, offset, index = self._next
        for segment in self._from(number):
            if segment.number > number:
                number, offset, index = segment.number, 0, 0
            if offset < segment.size:
                try:
                    data = self._frame(number, offset)
                except (OSError, SpoolError) as error:
                    self._give_up(segment, offset, index, error)
                    continue
                self._next = Position(number, offset + _FRAME.size + len(data), index + 1)
                return data, self._next
        return None

    def has_unread(self) -> bool:
        """Return whether something was not read."""
        number, offset, _ = self._next
        return any(segment.size > (offset if segment.number == number else 0) for segment in self._from(number))

    def rewind(self) -> None:
        """Read again from the first record that is not committed."""
        self._next = self._done

    def commit(self, position: Position) -> None:
        """Forget the records up to this one; finished segments are deleted."""
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
        """Note how far it was committed and let the folder go."""
        self._note()
        for fd in (self._write_fd, self._read_fd, self._lock):
            if fd >= 0:
                os.close(fd)
        self._write_fd = self._read_fd = self._lock = -1

    def _open(self) -> None:
        """Find the segments, cut torn tails off, and begin a new one."""
        numbers = sorted(
            int(name[:-6]) for name in os.listdir(self._folder) if name.endswith(".spool") and name[:-6].isdigit()
        )
        for number in numbers:
            self._segments.append(self._check(number))
        first = self._segments[0].number if self._segments else 1
        self._done = Position(first, 0, 0)
        self._restore_cursor()
        self._next = self._done
        self._new_segment(numbers[-1] + 1 if numbers else 1)
        while len(self._segments) > 1 and self._segments[0].count == self._done.record:
            self._drop_first()

    def _check(self, number: int) -> _Segment:
        """Count a segment's whole records; what follows them is cut off."""
        path = self._path(number)
        with open(path, "rb") as file:
            data = file.read()
        offset = count = 0
        while offset + _FRAME.size <= len(data):
            size, crc = _FRAME.unpack_from(data, offset)
            end = offset + _FRAME.size + size
            # a size of zero: room that a crash left unwritten; no record is empty
            if not size or end > len(data) or zlib.crc32(data[offset + _FRAME.size : end]) != crc:
                break
            offset, count = end, count + 1
        if offset < len(data):
            log.warning("torn spool segment cut", extra={"path": path, "lost_bytes": len(data) - offset})
            self.dropped_count += 1
            os.truncate(path, offset)
        return _Segment(number, offset, count)

    def _restore_cursor(self) -> None:
        """Take the noted position where it still fits the files."""
        try:
            with open(os.path.join(self._folder, "cursor"), encoding="ascii") as file:
                noted = Position(*map(int, file.read().split()))
        except (OSError, ValueError, TypeError):
            return
        first = self._segments[0] if self._segments else None
        if first and noted.segment == first.number and noted.end <= first.size and noted.record <= first.count:
            self._done = noted

    def _note(self) -> None:
        path = os.path.join(self._folder, "cursor")
        try:
            with open(path + ".new", "w", encoding="ascii") as file:
                file.write(f"{self._done.segment} {self._done.end} {self._done.record}\n")
            os.replace(path + ".new", path)
        except OSError as error:
            log.warning("spool cursor not noted", extra={"error": error.strerror})

    def _new_segment(self, number: int) -> _Segment:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        os.makedirs(self._folder, exist_ok=True)  # a cleaner of temporary files may have been here
        descriptor = os.open(self._path(number), flags, 0o644)
        if self._write_fd >= 0:
            os.close(self._write_fd)
        self._write_fd = descriptor
        self._segments.append(_Segment(number, 0, 0))
        return self._segments[-1]

    def _drop_first(self) -> None:
        first = self._segments.popleft()
        if self._read_number == first.number:  # an open file keeps its room on the disk
            os.close(self._read_fd)
            self._read_fd = self._read_number = -1
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(first.number))
        self._done = Position(self._segments[0].number, 0, 0)
        self._next = max(self._next, self._done)

    def _from(self, number: int) -> list[_Segment]:
        return [segment for segment in self._segments if segment.number >= number]

    def _give_up(self, segment: _Segment, offset: int, index: int, error: Exception) -> None:
        """A record on disk is damaged: without its length the rest of its segment is lost, too."""
        log.error("spool segment damaged", extra={"error": str(error), "lost": segment.count - index})
        self.dropped_count += segment.count - index
        segment.size, segment.count = offset, index
        if segment is self._segments[-1]:
            self._new_segment(segment.number + 1)

    def _frame(self, number: int, offset: int) -> bytes:
        if self._read_number != number:
            if self._read_fd >= 0:
                os.close(self._read_fd)
            self._read_fd = os.open(self._path(number), os.O_RDONLY | os.O_CLOEXEC)
            self._read_number = number
        head = os.pread(self._read_fd, _FRAME.size, offset)
        size, crc = _FRAME.unpack(head) if len(head) == _FRAME.size else (0, -1)
        data = os.pread(self._read_fd, size, offset + _FRAME.size)
        if zlib.crc32(data) != crc:
            raise SpoolError(f"{self._path(number)} changed under the agent at byte {offset}")
        return data

    def _path(self, number: int) -> str:
        return os.path.join(self._folder, f"{number:08d}.spool")
