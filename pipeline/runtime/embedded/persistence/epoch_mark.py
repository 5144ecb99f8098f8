"""A file that says which slice bundle the engine is processing, so that a restart knows where the process died.

The file is memory-mapped and its disk space is reserved beforehand, so a mark costs a small copy and works on a full
disk. After two deaths in a row at the same bundle, the bundle is processed without its records.
"""

from __future__ import annotations

import json
import mmap
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tocsin.schemas.records import JobKey

_SIZE_BYTES: Final = 16_384
_JUDGING_AT: Final = 0
_SUSPECT_AT: Final = 8192
_INCOMPLETE_AT: Final = _SIZE_BYTES - 1
_LENGTH_BYTES: Final = 2
_ROOM_BYTES: Final = _SUSPECT_AT - _LENGTH_BYTES - 1
"""Space for one mark; several times what the two longest names need (``validate.MAX_NAME_BYTES`` each)."""


@dataclass(frozen=True, slots=True)
class BundleKey:
    """Identifies a slice bundle: one job's second.

    Attributes:
        job: the job.
        end_ns: end of the second.
    """

    job: JobKey
    end_ns: int


@dataclass(frozen=True, slots=True)
class FatalBundle:
    """A slice bundle at which the process died.

    Attributes:
        bundle: the bundle.
        end_count: number of consecutive deaths at it.
    """

    bundle: BundleKey
    end_count: int


class EpochMark:
    """The memory-mapped mark file.

    Attributes:
        suspect: the bundle at which the previous process died, None = it died at none.
    """

    def __init__(self, path: Path) -> None:
        """Open or create the file, and read what the previous process left in it.

        Raises:
            OSError: the file cannot be opened, or the disk is full.
        """
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if os.fstat(fd).st_size != _SIZE_BYTES:
                os.ftruncate(fd, 0)
                os.posix_fallocate(fd, 0, _SIZE_BYTES)
            self._map = mmap.mmap(fd, _SIZE_BYTES)
        finally:
            os.close(fd)
        self.suspect = self._look_back()

    def _look_back(self) -> FatalBundle | None:
        """Return the bundle at which the previous process died, with the count of deaths, and clear the mark."""
        died_in, before = self._get(_JUDGING_AT), self._get(_SUSPECT_AT)
        self.judged()
        if died_in is None:
            self._clear(_SUSPECT_AT)
            return None
        count = before[1] + 1 if before is not None and before[0] == died_in[0] else 1
        self._set(_SUSPECT_AT, died_in[0], count)
        return FatalBundle(died_in[0], count)

    def judging(self, job: JobKey, end_ns: int) -> None:
        """Mark that a slice bundle is being processed."""
        self._set(_JUDGING_AT, BundleKey(job, end_ns), 0)

    def judged(self) -> None:
        """Mark that no slice bundle is being processed."""
        self._clear(_JUDGING_AT)

    @property
    def is_incomplete(self) -> bool:
        """Whether the journal lacks entries since the newest snapshot."""
        return self._map[_INCOMPLETE_AT] != 0

    def set_incomplete(self) -> None:
        """Mark the journal as incomplete; this needs no disk space."""
        self._map[_INCOMPLETE_AT] = 1

    def set_whole(self) -> None:
        """Mark the journal as complete, because a new snapshot contains everything before it."""
        self._map[_INCOMPLETE_AT] = 0

    def _set(self, at: int, bundle: BundleKey, count: int) -> None:
        # names as they are, whatever is in them: escaped they would be up to six times as long
        """Write one mark (bundle and count) at this offset, its length last so that a partial mark is invalid."""
        cluster, job_id = (name.encode("utf-8", "surrogatepass") for name in (bundle.job.cluster, bundle.job.job_id))
        numbers = json.dumps([bundle.job.attempt, bundle.end_ns, count, len(cluster)]).encode()
        text = numbers + b"\n" + cluster + job_id
        body = zlib.crc32(text).to_bytes(4, "little") + text
        self._clear(at)
        if len(body) > _ROOM_BYTES:
            return  # no record's names are so long
        self._map[at + _LENGTH_BYTES : at + _LENGTH_BYTES + len(body)] = body
        # last: half a mark is none
        self._map[at : at + _LENGTH_BYTES] = len(body).to_bytes(_LENGTH_BYTES, "little")

    def _clear(self, at: int) -> None:
        """Erase the mark at this offset."""
        self._map[at : at + _LENGTH_BYTES] = bytes(_LENGTH_BYTES)

    def _get(self, at: int) -> tuple[BundleKey, int] | None:
        """Return the bundle and count of the mark at this offset, None if there is no valid mark."""
        length = int.from_bytes(self._map[at : at + _LENGTH_BYTES], "little")
        body = self._map[at + _LENGTH_BYTES : at + _LENGTH_BYTES + length]
        if length <= 4 or zlib.crc32(body[4:]) != int.from_bytes(body[:4], "little"):
            return None
        try:
            return _read(body[4:])
        except (ValueError, TypeError, RecursionError):
            return None

    def close(self) -> None:
        """Close the file."""
        self._map.close()


def _read(text: bytes) -> tuple[BundleKey, int]:
    """Parse the text of a mark into its bundle and count.

    Raises:
        ValueError, TypeError, RecursionError: the text is not a valid mark.
    """
    numbers, _, names = text.partition(b"\n")
    attempt, end_ns, count, cluster_bytes = (int(value) for value in json.loads(numbers))
    cluster, job_id = (name.decode("utf-8", "surrogatepass") for name in (names[:cluster_bytes], names[cluster_bytes:]))
    return BundleKey(JobKey(cluster, job_id, attempt), end_ns), count
