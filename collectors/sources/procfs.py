"""Pure parsers of /proc files, and the mount points that tests replace."""

from __future__ import annotations

import os
from collections.abc import Container
from dataclasses import dataclass
from typing import Final

from tocsin.schemas.errors import CollectorError


@dataclass(frozen=True, slots=True)
class Roots:
    """Mount points of the kernel's file systems (a container sees the host's under /host).

    Attributes:
        proc: mount point of procfs.
        sys: mount point of sysfs.
    """

    proc: str = "/proc"
    sys: str = "/sys"


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Accumulated time of all CPUs, in clock ticks.

    Attributes:
        busy_ticks: time except idle and iowait.
        total_ticks: all time.
    """

    busy_ticks: int
    total_ticks: int


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """The used fields of /proc/PID/stat.

    Attributes:
        state: one letter; T and t: stopped, Z and X: dead.
        cpu_ticks: user and system time, including waited-for children, in clock ticks.
        start_ticks: start time in clock ticks since boot; unique together with the pid.
        rss_page_count: resident memory in pages.
        parent_pid: process id of its parent, 0 for none.
    """

    state: str
    cpu_ticks: int
    start_ticks: int
    rss_page_count: int
    parent_pid: int = 0


_CHUNK_BYTES: Final = 16_384
_PAGE_BYTES: Final = 4_096
_PLAIN: Final = -1
MAX_KEPT: Final = 256
"""Most files that one collector keeps open, of the 1,024 that a process may have."""
GONE_STATES: Final = "ZXx"
STOPPED_STATES: Final = "Tt"


def read_text(path: str) -> str:
    """Return a small file's text; raises what ``os.open`` raises.

    Without a file object, which would make three more system calls for each file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.read(descriptor, _CHUNK_BYTES)
        while more := os.read(descriptor, _CHUNK_BYTES):  # the kernel may hand out a table page by page
            data += more
    finally:
        os.close(descriptor)
    return data.decode("ascii", "replace")


class KeptFiles:
    """Reader of small files that are read repeatedly; generated ones stay open, because opening costs most.

    For one thread. A generated file gives its present content from its beginning each time, and fails once its process
    or device is gone; then it is opened again. Regular files (a log daemon's copy, a test's tree) may be replaced under
    their name, so they are opened each time.
    """

    def __init__(self) -> None:
        """Start without open files."""
        self._kept: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def read(self, path: str) -> str:
        """Return the first 4,096 bytes of a file as text; raises what ``os.open`` and ``os.read`` raise."""
        kept = self._kept.get(path)
        if kept is not None and kept != _PLAIN:
            try:
                return os.pread(kept, _PAGE_BYTES, 0).decode("ascii", "replace")
            except OSError:
                self.close(path)
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        keep = False
        try:
            data = os.pread(descriptor, _PAGE_BYTES, 0)
            if kept is None and data and len(self._kept) < MAX_KEPT:
                keep = _is_made_up(descriptor, len(data))
                self._kept[path] = descriptor if keep else _PLAIN
        finally:
            if not keep:
                os.close(descriptor)
        return data.decode("ascii", "replace")

    def close(self, path: str) -> None:
        """Close one file."""
        descriptor = self._kept.pop(path, _PLAIN)
        if descriptor != _PLAIN:
            os.close(descriptor)

    def close_others(self, paths: Container[str]) -> None:
        """Close all files except these."""
        for path in [path for path in self._kept if path not in paths]:
            self.close(path)


def _is_made_up(descriptor: int, byte_count: int) -> bool:
    """Return whether a file's content is generated on reading: procfs states the size 0, sysfs a page."""
    size = os.fstat(descriptor).st_size
    return size == 0 or byte_count < min(size, _PAGE_BYTES)


def parse_cpu_times(text: str) -> CpuTimes:
    """Parse the first line of /proc/stat.

    Guest time is already counted in user time, so the sum stops before it.

    >>> parse_cpu_times("cpu  10 0 20 60 10 0 0 0 5 0")
    CpuTimes(busy_ticks=30, total_ticks=100)
    """
    line = text.partition("\n")[0].split()
    if len(line) < 6 or line[0] != "cpu":
        raise CollectorError(f"stat: first line {' '.join(line)[:60]!r} is not the sum of all CPUs")
    ticks = [int(item) for item in line[1:9]]
    total = sum(ticks)
    return CpuTimes(total - ticks[3] - ticks[4], total)


def parse_meminfo(text: str) -> dict[str, int]:
    """Parse /proc/meminfo into name -> bytes.

    >>> parse_meminfo("MemTotal:  2 kB" + chr(10) + "HugePages_Total: 0")
    {'MemTotal': 2048, 'HugePages_Total': 0}
    """
    values: dict[str, int] = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        number, _, unit = rest.strip().partition(" ")
        if number.isdigit():
            values[name] = int(number) * (1024 if unit == "kB" else 1)
    return values


def memory_used_ratio(text: str) -> float:
    """Return the share of memory that is not available to new programs, from the text of /proc/meminfo."""
    values = parse_meminfo(text)
    try:
        return 1.0 - values["MemAvailable"] / values["MemTotal"]
    except (KeyError, ZeroDivisionError) as error:
        raise CollectorError(f"meminfo: {error} is missing or zero") from error


def parse_net_dev(text: str) -> dict[str, int]:
    r"""Parse /proc/net/dev into interface -> bytes received plus bytes sent.

    >>> parse_net_dev("a\nb\n eth0: 7 1 0 0 0 0 0 0 5 1 0 0 0 0 0 0\n")
    {'eth0': 12}
    """
    values: dict[str, int] = {}
    for line in text.splitlines()[2:]:
        name, _, rest = line.rpartition(":")
        fields = rest.split()
        if name and len(fields) >= 16:
            values[name.strip()] = int(fields[0]) + int(fields[8])
    return values


def parse_process_stat(text: str) -> ProcessStat:
    """Parse /proc/PID/stat; the command's name may contain blanks and brackets.

    >>> parse_process_stat("7 (a) b) R 1 1 1 0 -1 0 0 0 0 0 3 4 1 0 20 0 1 0 99 4096 12 0").cpu_ticks
    8
    """
    fields = text.rpartition(")")[2].split(None, 22)
    if len(fields) < 22:
        raise CollectorError(f"process stat {text[:60]!r} has {len(fields)} fields after the name, wanted 22")
    cpu_ticks = sum(int(item) for item in fields[11:15])
    return ProcessStat(fields[0], cpu_ticks, int(fields[19]), int(fields[21]), int(fields[1]))
