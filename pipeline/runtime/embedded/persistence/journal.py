"""The journal: what an engine took and which ticks it worked off since its last snapshot, in that order.

Segments are append-only files; a snapshot begins a new one and names it. A segment begins with a magic word and a
random number of its own, from which its checksums start: no record that a stranger sent can hold what reads as an
entry. An entry is

    marker (4 bytes) | kind (1 byte) | length | CRC-32 of kind, length and payload | payload

with little-endian 32-bit numbers. **Guarantee**: what ``flush`` returned True for survives the end of the process,
however it ends (it is in the kernel's hands); nothing is forced to the disk per record, so a loss of power may
cost what came since the last snapshot. A reader skips a damaged entry (one record is lost, and counted) and ends
silently at a torn tail, which ``flush`` never said was written.
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
    """What an entry holds."""

    RECORD = 1
    """One record's bytes, taken."""
    TICK = 2
    """A tick (Unix nanoseconds) whose seconds are worked off after what stands before it."""
    FORGET = 3
    """A job (JSON) that was forgotten, as others needed the room."""
    ANEW = 4
    """Time began again: a tick, and the reason as text behind it."""
    EXCUSE = 5
    """A time until which nobody listened, and to which hosts (JSON)."""


class JournalEntry(NamedTuple):
    """One entry."""

    kind: JournalKind
    payload: bytes

    @property
    def tick_ns(self) -> int:
        """The time that a ``TICK`` or an ``ANEW`` names."""
        return int(_TICK.unpack_from(self.payload)[0])

    @property
    def reason(self) -> str:
        """The reason of an ``ANEW``."""
        return self.payload[_TICK.size :].decode()

    @property
    def excuse(self) -> tuple[int, frozenset[str]]:
        """Time and hosts of an ``EXCUSE``."""
        until_ns, hosts = json.loads(self.payload)
        return until_ns, frozenset(hosts)

    @property
    def job(self) -> JobKey:
        """The job of a ``FORGET``."""
        cluster, job_id, attempt = json.loads(self.payload)
        return JobKey(cluster, job_id, attempt)


@dataclass(frozen=True, slots=True)
class JournalConfig:
    """Settings.

    Attributes:
        most_bytes: of all segments since a snapshot; beyond, nothing is kept until the next snapshot is written.
        most_waiting_bytes: of what could not be written yet.
    """

    most_bytes: int = 512 * 1024 * 1024
    most_waiting_bytes: int = 64 * 1024 * 1024


def tick_entry(tick_ns: int, reason: str = "") -> bytes:
    """The payload of a ``TICK``; with a reason, of an ``ANEW``."""
    return _TICK.pack(tick_ns) + reason.encode()


def excuse_entry(until_ns: int, hosts: Iterable[str]) -> bytes:
    """The payload of an ``EXCUSE``."""
    return json.dumps([until_ns, sorted(hosts)]).encode()


def job_entry(job: JobKey) -> bytes:
    """The payload of a ``FORGET``."""
    return json.dumps([job.cluster, job.job_id, job.attempt]).encode()


def _crc(seed: int, kind: int, payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(_SIGNED.pack(kind, len(payload)), seed))


def _encode_entry(seed: int, kind: JournalKind, payload: bytes) -> bytes:
    return _HEAD.pack(_MARKER, kind, len(payload), _crc(seed, kind, payload)) + payload


class Journal:
    """Appends; entries of several threads stand in the order of ``append``.

    Attributes:
        counters: ``entries``, ``bytes``; ``lost_entries``: not kept, for a named reason.
    """

    def __init__(
        self,
        folder: Path,
        segment: int,
        config: JournalConfig | None = None,
        on_loss: Callable[[], None] = lambda: None,
    ) -> None:
        """Begin a new segment.

        Args:
            folder: exists.
            segment: its number; no file of this number or a higher one exists.
            config: bounds.
            on_loss: called before the first entry is not kept: what was written is no whole history from there.

        Raises:
            OSError: the file cannot be made.
        """
        self._folder = folder
        self._config = config or JournalConfig()
        self._on_loss = on_loss
        self._lock = threading.Lock()
        self._waiting = bytearray()
        self._kept_bytes = 0
        self._said = ""
        self.loss: StateLoss | None = None
        self.counters: Counter[str] = Counter()
        self.segment = segment
        self._fd, self._seed = _create(segment_path(folder, segment))

    @property
    def is_whole(self) -> bool:
        """Whether all that was appended since the last cut is kept, or waits to be."""
        return self.loss is None

    @property
    def trouble(self) -> str:
        """Why what is taken is not kept just now, "": it is."""
        if self.loss is not None:
            return f"{self.loss.value}: nothing is kept until the next snapshot"
        return f"{self._said}: acknowledgements wait" if self._said else ""

    def append(self, kind: JournalKind, payload: bytes) -> None:
        """Take an entry; ``flush`` writes it."""
        with self._lock:
            if self.loss is None and self._kept_bytes + len(payload) > self._config.most_bytes:
                self.lose(StateLoss.JOURNAL_FULL, f"{self._kept_bytes} bytes since the last snapshot")
            if self.loss is not None:
                self.counters["lost_entries"] += 1
                return
            entry = _encode_entry(self._seed, kind, payload)
            self._waiting += entry
            self._kept_bytes += len(entry)
            self.counters["entries"] += 1
            self.counters["bytes"] += len(entry)

    def flush(self) -> bool:
        """Hand over all entries so far in one write.

        Returns:
            Whether nothing waits any more. False: the disk refuses; the same entries are tried again by the next
            call, until ``most_waiting_bytes`` wait: then they are given up, for a named reason.
        """
        with self._lock:
            return self._flush()

    def _flush(self) -> bool:
        try:
            while self._waiting:
                written = os.write(self._fd, self._waiting)
                del self._waiting[:written]
        except OSError as error:
            self._say(f"{error.strerror or error}")
            if len(self._waiting) > self._config.most_waiting_bytes:
                self.lose(StateLoss.JOURNAL_UNWRITABLE, str(error))
                self._waiting.clear()
                return True
            return False
        self._said = ""
        return True

    def lose(self, loss: StateLoss, detail: str) -> None:
        """Give the journal up, for a named reason, until the next snapshot is written."""
        self._on_loss()
        self.loss = loss
        _LOG.error("journal given up until the next snapshot", extra={"reason": loss.value, "detail": detail})

    def _say(self, text: str) -> None:
        """Log a trouble once."""
        if text != self._said:
            self._said = text
            _LOG.error("journal cannot be written: acknowledgements wait", extra={"error": text})

    def cut(self) -> int:
        """Begin a new segment, where a snapshot of this moment goes on; return its number.

        Raises:
            OSError: it cannot be made; the old one goes on.
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
        """Write what waits and let the file go; abandoned, as by the end of the process, only the latter."""
        with self._lock:
            if self._fd >= 0:
                if not is_abandoned:
                    self._flush()
                os.close(self._fd)
                self._fd = -1


@dataclass(slots=True)
class ReadTally:
    """What a reader met.

    Attributes:
        entry_count: whole entries.
        damaged_count: damaged places, each of which cost at least one entry.
        torn_bytes: behind the last whole entry of the newest segment.
    """

    entry_count: int = 0
    damaged_count: int = 0
    torn_bytes: int = 0


def segment_path(folder: Path, number: int) -> Path:
    """Where a segment lies."""
    return folder / f"journal-{number:012d}.log"


def segments(folder: Path) -> list[int]:
    """The segments of a folder, ascending; files of other names are none."""
    return sorted(int(found[1]) for path in folder.iterdir() if (found := _NAME.fullmatch(path.name)))


def remove_before(folder: Path, number: int) -> None:
    """Remove the segments that a snapshot has made superfluous."""
    for one in segments(folder):
        if one < number:
            remove_old(segment_path(folder, one))


def read_journal(folder: Path, first: int, tally: ReadTally) -> Iterator[JournalEntry]:
    """All whole entries from a segment on, in order.

    Raises:
        SnapshotError: a segment between the first and the last is missing: what follows it is another history.
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
    """The last tick of the segments from one on, None: they hold none.

    Raises:
        SnapshotError: as ``read_journal``.
        OSError: so, too.
    """
    for number in reversed([one for one in segments(folder) if one >= first]):
        entries = _read(segment_path(folder, number), ReadTally(), is_last=True)
        ticks = [entry.tick_ns for entry in entries if entry.kind in {JournalKind.TICK, JournalKind.ANEW}]
        if ticks:
            return ticks[-1]
    return None


def _read(path: Path, tally: ReadTally, *, is_last: bool) -> Iterator[JournalEntry]:
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
    """The entry that begins there, None: no whole one; and where it ends by its own account."""
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
    """Where the next whole entry begins; the end where none does."""
    if claimed_end > at and _entry_at(data, claimed_end, seed)[0] is not None:
        return claimed_end
    while (at := data.find(_MARKER, at + 1)) >= 0:
        if _entry_at(data, at, seed)[0] is not None:
            return at
    return len(data)


def _create(path: Path) -> tuple[int, int]:
    """A new segment's descriptor, and where its checksums start."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_EXCL, 0o600)
    seed = int.from_bytes(os.urandom(4), "little")
    try:
        os.write(fd, _FIRST.pack(_MAGIC, seed))
    except OSError:
        os.close(fd)
        path.unlink(missing_ok=True)
        raise
    return fd, seed
