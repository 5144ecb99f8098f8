"""The journal: accepted records and processed ticks since the last snapshot, in order.

The journal consists of append-only segment files. Each snapshot starts a new segment and stores its number. A segment
starts with a magic word and a random seed for its checksums, so no record from a stranger can contain a forged entry.
An entry is

    marker (4 bytes) | kind (1 byte) | length | CRC-32 of kind, length and payload | payload

with little-endian 32-bit numbers. **Guarantee**: entries for which ``flush`` returned True survive the end of the
process, because the kernel holds them. They are not forced to disk, so a power loss may cost the entries since the last
snapshot. A reader skips and counts damaged entries. It stops silently at an incomplete last entry, for which ``flush``
never returned True.
"""

from __future__ import annotations

import json
import logging
import mmap
import os
import re
import struct
import threading
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from tocsin.pipeline.runtime.embedded.persistence.regular_files import open_regular, remove_old
from tocsin.schemas.errors import SnapshotError
from tocsin.schemas.reasons import StateLoss
from tocsin.schemas.records import JobKey

_LOG = logging.getLogger("tocsin.state")
_MARKER = b"\xf5TJ1"
_HEAD = struct.Struct("<4sBII")
_SIGNED = struct.Struct("<BI")
_TICK = struct.Struct("<q")
_FIRST = struct.Struct("<8sI")
_MAGIC = b"tocsinJ1"
_NAME = re.compile(r"journal-([0-9]{12})\.log")
_MOST_PAYLOAD_BYTES = 1 << 26


class JournalKind(IntEnum):
    """Kind of a journal entry."""

    RECORD = 1
    """The bytes of one accepted record."""
    TICK = 2
    """A tick (Unix nanoseconds) that was processed after all entries before it."""
    FORGET = 3
    """A job (JSON) that was forgotten because memory was full."""
    ANEW = 4
    """A restart of time: a tick, then the reason as text."""
    EXCUSE = 5
    """A time and the hosts (JSON) that the engine did not listen to until then."""


class JournalEntry(NamedTuple):
    """One journal entry."""

    kind: JournalKind
    payload: bytes

    @property
    def tick_ns(self) -> int:
        """Time of a ``TICK`` or ``ANEW`` entry."""
        return int(_TICK.unpack_from(self.payload)[0])

    @property
    def reason(self) -> str:
        """Reason of an ``ANEW`` entry."""
        return self.payload[_TICK.size :].decode()

    @property
    def excuse(self) -> tuple[int, frozenset[str]]:
        """Time and hosts of an ``EXCUSE`` entry."""
        until_ns, hosts = json.loads(self.payload)
        return until_ns, frozenset(hosts)

    @property
    def job(self) -> JobKey:
        """Job of a ``FORGET`` entry."""
        cluster, job_id, attempt = json.loads(self.payload)
        return JobKey(cluster, job_id, attempt)


@dataclass(frozen=True, slots=True)
class JournalConfig:
    """Bounds of the journal.

    Attributes:
        most_bytes: maximum size of all segments since a snapshot; beyond it nothing is kept until the next snapshot.
        most_waiting_bytes: maximum size of entries that the disk has refused so far.
    """

    most_bytes: int = 512 * 1024 * 1024
    most_waiting_bytes: int = 64 * 1024 * 1024


def tick_entry(tick_ns: int, reason: str = "") -> bytes:
    """Return the payload of a ``TICK`` entry, or of an ``ANEW`` entry if a reason is given."""
    return _TICK.pack(tick_ns) + reason.encode()


def excuse_entry(until_ns: int, hosts: Iterable[str]) -> bytes:
    """Return the payload of an ``EXCUSE`` entry."""
    return json.dumps([until_ns, sorted(hosts)]).encode()


def job_entry(job: JobKey) -> bytes:
    """Return the payload of a ``FORGET`` entry."""
    return json.dumps([job.cluster, job.job_id, job.attempt]).encode()


def _crc(seed: int, kind: int, payload: bytes) -> int:
    """Return the CRC-32 of an entry's kind, length and payload, starting from the segment's seed."""
    return zlib.crc32(payload, zlib.crc32(_SIGNED.pack(kind, len(payload)), seed))


def _encode_entry(seed: int, kind: JournalKind, payload: bytes) -> bytes:
    """Return an entry as bytes."""
    return _HEAD.pack(_MARKER, kind, len(payload), _crc(seed, kind, payload)) + payload


class Journal:
    """Appends entries; entries from several threads are written in the order of their ``append`` calls.

    Attributes:
        counters: ``entries``, ``bytes``, and ``lost_entries`` (not kept since ``loss`` was set).
    """

    def __init__(
        self,
        folder: Path,
        segment: int,
        config: JournalConfig | None = None,
        on_loss: Callable[[], None] = lambda: None,
    ) -> None:
        """Start a new segment.

        Args:
            folder: an existing folder.
            segment: number of the segment; no segment with this or a higher number exists.
            config: bounds, None = the defaults.
            on_loss: called before the first entry is dropped, because the journal is incomplete from there on.

        Raises:
            OSError: the file cannot be created.
        """
        self._folder = folder
        self._config = config or JournalConfig()
        self._on_loss = on_loss
        self._lock = threading.Lock()
        self._waiting = bytearray()
        self._kept_bytes = 0
        self._logged_error = ""
        self.loss: StateLoss | None = None
        self.counters: Counter[str] = Counter()
        self.segment = segment
        self._fd, self._seed = _create(segment_path(folder, segment))

    @property
    def is_whole(self) -> bool:
        """Whether all entries since the last cut are written or waiting to be."""
        return self.loss is None

    @property
    def trouble(self) -> str:
        """Reason why new entries are currently not kept, "" = they are."""
        if self.loss is not None:
            return f"{self.loss.value}: nothing is kept until the next snapshot"
        return f"{self._logged_error}: acknowledgements wait" if self._logged_error else ""

    def append(self, kind: JournalKind, payload: bytes) -> None:
        """Add an entry to the buffer; ``flush`` writes it."""
        with self._lock:
            if self.loss is None and self._kept_bytes + len(payload) > self._config.most_bytes:
                self._lose(StateLoss.JOURNAL_FULL, f"{self._kept_bytes} bytes since the last snapshot")
            if self.loss is not None:
                self.counters["lost_entries"] += 1
                return
            entry = _encode_entry(self._seed, kind, payload)
            self._waiting += entry
            self._kept_bytes += len(entry)
            self.counters["entries"] += 1
            self.counters["bytes"] += len(entry)

    def flush(self) -> bool:
        """Write all buffered entries.

        Returns:
            True if no entry waits any more. False if the disk refuses: the next call tries the same entries again. Once
                more than ``most_waiting_bytes`` wait, they are dropped and ``loss`` is set.
        """
        with self._lock:
            return self._flush()

    def _flush(self) -> bool:
        """Do the work of ``flush``; the caller holds the lock."""
        try:
            while self._waiting:
                written = os.write(self._fd, self._waiting)
                del self._waiting[:written]
        except OSError as error:
            self._log_error(f"{error.strerror or error}")
            if len(self._waiting) > self._config.most_waiting_bytes:
                self._lose(StateLoss.JOURNAL_UNWRITABLE, str(error))
                self._waiting.clear()
                return True
            return False
        self._logged_error = ""
        return True

    def _lose(self, loss: StateLoss, detail: str) -> None:
        """Stop keeping entries until the next snapshot, and log why."""
        self._on_loss()
        self.loss = loss
        _LOG.error("journal given up until the next snapshot", extra={"reason": loss.value, "detail": detail})

    def _log_error(self, text: str) -> None:
        """Log a write error unless it was the last one logged."""
        if text != self._logged_error:
            self._logged_error = text
            _LOG.error("journal cannot be written: acknowledgements wait", extra={"error": text})

    def cut(self) -> int:
        """Start a new segment, which continues from a snapshot of this moment, and return its number.

        Raises:
            OSError: the segment cannot be created; the old one stays in use.
        """
        with self._lock:
            self._flush()
            fd, seed = _create(segment_path(self._folder, self.segment + 1))
            os.close(self._fd)
            self._fd, self._seed = fd, seed
            self.segment += 1
            self._waiting.clear()  # the snapshot holds it, or the disk is full and it will not be written either
            self._kept_bytes, self.loss = 0, None
            return self.segment

    def close(self, *, is_abandoned: bool = False) -> None:
        """Write buffered entries and close the file; ``is_abandoned`` skips the writing, as if the process had died."""
        with self._lock:
            if self._fd >= 0:
                if not is_abandoned:
                    self._flush()
                os.close(self._fd)
                self._fd = -1


@dataclass(slots=True)
class ReadTally:
    """Counts of what a journal reader found.

    Attributes:
        entry_count: complete entries.
        damaged_count: damaged places, each of which lost at least one entry.
        torn_bytes: bytes after the last complete entry of the newest segment.
    """

    entry_count: int = 0
    damaged_count: int = 0
    torn_bytes: int = 0


def segment_path(folder: Path, number: int) -> Path:
    """Return the path of a segment's file."""
    return folder / f"journal-{number:012d}.log"


def segments(folder: Path) -> list[int]:
    """Return the numbers of the segments in a folder, ascending."""
    return sorted(int(found[1]) for path in folder.iterdir() if (found := _NAME.fullmatch(path.name)))


def remove_before(folder: Path, number: int) -> None:
    """Remove the segments with lower numbers, which a snapshot has replaced."""
    for one in segments(folder):
        if one < number:
            remove_old(segment_path(folder, one))


def read_journal(folder: Path, first: int, tally: ReadTally) -> Iterator[JournalEntry]:
    """Yield all complete entries from segment ``first`` on, in order, and count them in ``tally``.

    Raises:
        SnapshotError: a segment is missing before the last one.
        OSError: a file cannot be read.
    """
    found = [number for number in segments(folder) if number >= first]
    if found and found[0] != first:
        raise SnapshotError(f"{segment_path(folder, first)} is missing, and there are later ones")
    for expected, number in enumerate(found, first):
        if number != expected:
            raise SnapshotError(f"{segment_path(folder, expected)} is missing, and there are later ones")
        yield from _read(segment_path(folder, number), tally, is_last=number == found[-1])


def newest_tick_ns(folder: Path, first: int) -> int | None:
    """Return the last tick in the segments from ``first`` on, None if they hold no tick.

    Raises:
        SnapshotError: as ``read_journal``.
        OSError: as ``read_journal``.
    """
    for number in reversed([one for one in segments(folder) if one >= first]):
        entries = _read(segment_path(folder, number), ReadTally(), is_last=True)
        ticks = [entry.tick_ns for entry in entries if entry.kind in {JournalKind.TICK, JournalKind.ANEW}]
        if ticks:
            return ticks[-1]
    return None


def _read(path: Path, tally: ReadTally, *, is_last: bool) -> Iterator[JournalEntry]:
    """Yield the complete entries of one segment, skipping damaged places."""
    if path.is_file() and not path.stat().st_size and is_last:
        return
    with open_regular(path) as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if len(data) < _FIRST.size or data[: len(_MAGIC)] != _MAGIC:
            raise SnapshotError(f"{path} does not begin as a journal")
        seed, at = _FIRST.unpack_from(data, 0)[1], _FIRST.size
        while at < len(data):
            entry, end = _entry_at(data, at, seed)
            if entry is not None:
                tally.entry_count += 1
                yield entry
                at = end
                continue
            begin, at = at, _next_whole(data, at, end, seed)
            if at < len(data) or not is_last:
                tally.damaged_count += 1
                _LOG.warning("journal entry damaged", extra={"path": str(path), "byte": begin, "skipped": at - begin})
            else:
                tally.torn_bytes += at - begin


def _entry_at(data: mmap.mmap, at: int, seed: int) -> tuple[JournalEntry | None, int]:
    """Return the entry that starts at this offset (None if it is damaged or incomplete) and its claimed end."""
    if at + _HEAD.size > len(data):
        return None, at
    marker, kind, length, crc = _HEAD.unpack_from(data, at)
    end = at + _HEAD.size + length
    if marker != _MARKER or length > _MOST_PAYLOAD_BYTES or end > len(data):
        return None, at
    payload = data[at + _HEAD.size : end]
    if _crc(seed, kind, payload) != crc or kind not in tuple(JournalKind):
        return None, end
    return JournalEntry(JournalKind(kind), payload), end


def _next_whole(data: mmap.mmap, at: int, claimed_end: int, seed: int) -> int:
    """Return the offset of the next complete entry, or the end of the data if there is none."""
    if claimed_end > at and _entry_at(data, claimed_end, seed)[0] is not None:
        return claimed_end
    while (at := data.find(_MARKER, at + 1)) >= 0:
        if _entry_at(data, at, seed)[0] is not None:
            return at
    return len(data)


def _create(path: Path) -> tuple[int, int]:
    """Create a segment file; return its descriptor and the random seed of its checksums."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_EXCL, 0o600)
    seed = int.from_bytes(os.urandom(4), "little")
    try:
        os.write(fd, _FIRST.pack(_MAGIC, seed))
    except OSError:
        os.close(fd)
        path.unlink(missing_ok=True)
        raise
    return fd, seed
