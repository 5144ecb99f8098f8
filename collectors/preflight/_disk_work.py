"""Child process: writes a file for some seconds, reads it back, and says what others wrote meanwhile.

The file is removed before it has any content, so nothing is left after a kill. Blocks go past the page cache (O_DIRECT)
where the file system allows that.

Usage: ``python -m tocsin.collectors.preflight._disk_work FOLDER SECONDS BYTES BLOCK``; prints one JSON object.
"""

from __future__ import annotations

import errno
import json
import mmap
import os
import sys
import tempfile
import time
from typing import Final

_SECTOR_BYTES: Final = 512  # of /proc/diskstats, whatever the disk's own are
_HEADER_BYTES: Final = 16


def disk_of(path: str, sys_root: str = "/sys") -> str:
    """Return the name of the whole disk under a path, "" where there is none (a network or memory file system)."""
    device = os.stat(path).st_dev
    link = f"{sys_root}/dev/block/{os.major(device)}:{os.minor(device)}"
    try:
        place = os.path.realpath(link, strict=True)
    except OSError:
        return ""
    if os.path.exists(f"{place}/partition"):
        place = os.path.dirname(place)
    return os.path.basename(place)


def written_bytes(disk: str, proc_root: str = "/proc") -> int | None:
    """Return the bytes that were written to a disk since the start, None where the kernel does not tell."""
    try:
        with open(f"{proc_root}/diskstats", encoding="ascii") as file:
            for line in file:
                fields = line.split()
                if len(fields) > 9 and fields[2] == disk:
                    return int(fields[9]) * _SECTOR_BYTES
    except (OSError, ValueError):
        return None
    return None


class BlockFile:
    """A file without a name, whose blocks say which they are.

    Attributes:
        is_direct: whether its blocks go past the page cache.
    """

    def __init__(self, folder: str, block_bytes: int) -> None:
        """Make the file in a folder.

        Raises:
            OSError: the folder cannot be written.
        """
        self._buffer = mmap.mmap(-1, block_bytes)  # begins at a page, as O_DIRECT wants it
        self._body = os.urandom(block_bytes - _HEADER_BYTES)
        self._file, path = tempfile.mkstemp(prefix="tocsin-preflight-", dir=folder)
        self.is_direct = False
        try:
            direct = os.open(path, os.O_RDWR | os.O_DIRECT)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
        else:
            os.close(self._file)
            self._file, self.is_direct = direct, True
        finally:
            os.unlink(path)

    def write(self, index: int) -> None:
        """Write one block in its place."""
        self._buffer[:_HEADER_BYTES] = index.to_bytes(_HEADER_BYTES, "little")
        self._buffer[_HEADER_BYTES:] = self._body
        written = os.pwrite(self._file, self._buffer, index * len(self._buffer))
        if written != len(self._buffer):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def flush(self) -> None:
        """Wait until all is on the disk, and forget it in the page cache."""
        os.fsync(self._file)
        os.posix_fadvise(self._file, 0, 0, os.POSIX_FADV_DONTNEED)

    def is_as_written(self, index: int) -> bool:
        """Read one block and return whether it is the one that was written."""
        count = os.preadv(self._file, [self._buffer], index * len(self._buffer))
        return (
            count == len(self._buffer)
            and self._buffer[:_HEADER_BYTES] == index.to_bytes(_HEADER_BYTES, "little")
            and self._buffer[_HEADER_BYTES:] == self._body
        )

    def close(self) -> None:
        """Free the file and its space."""
        os.close(self._file)
        self._buffer.close()


def work(folder: str, seconds: float, size_bytes: int, block_bytes: int) -> dict[str, object]:
    """Write and read for half of the time each and return the bandwidths, and the bytes that others wrote.

    Raises:
        OSError: the disk refuses.
    """
    disk = disk_of(folder)
    blocks = BlockFile(folder, block_bytes)
    try:
        before, start = written_bytes(disk), time.perf_counter()
        count = 0
        while count * block_bytes < size_bytes and (not count or time.perf_counter() - start < seconds / 2):
            blocks.write(count)
            count += 1
        blocks.flush()
        write_seconds, after = time.perf_counter() - start, written_bytes(disk)
        start, wrong_count, read_count = time.perf_counter(), 0, 0
        while read_count < count and (not read_count or time.perf_counter() - start < seconds / 2):
            wrong_count += not blocks.is_as_written(read_count)
            read_count += 1
        read_seconds = time.perf_counter() - start
    finally:
        blocks.close()
    own_bytes = count * block_bytes
    others = None if before is None or after is None else max(0, after - before - own_bytes)
    return {
        "disk": disk,
        "is_direct": blocks.is_direct,
        "own_bytes": own_bytes,
        "others_bytes": others,
        "write_bytes_per_second": own_bytes / write_seconds,
        "read_bytes_per_second": read_count * block_bytes / read_seconds,
        "wrong_count": wrong_count,
    }


def main(arguments: list[str]) -> dict[str, object]:
    """Return the answer, or the disk's refusal as ``{"refusal": TEXT}``."""
    folder, seconds, size, block = arguments
    try:
        return work(folder, float(seconds), int(size), int(block))
    except OSError as error:
        return {"refusal": f"{folder}: {error.strerror or error}"}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(sys.argv[1:])) + "\n")
