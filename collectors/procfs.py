"""Pure parsers of /proc texts, and the path roots that tests replace."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from tocsin.schemas.errors import CollectorError


@dataclass(frozen=True, slots=True)
class Roots:
    """Where the kernel's file systems are mounted (a container sees the host's under /host).

    Attributes:
        proc: procfs.
        sys: sysfs.
    """

    proc: str = "/proc"
    sys: str = "/sys"


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Accumulated time of all CPUs, in clock ticks.

    Attributes:
        busy_ticks: all but idle and iowait.
        total_ticks: everything.
    """

    busy_ticks: int
    total_ticks: int


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """The fields of /proc/PID/stat that are used.

    Attributes:
        state: one letter; T and t: stopped, Z and X: dead.
        cpu_ticks: user and system time, waited-for children included, in clock ticks.
        start_ticks: when it started, in clock ticks since boot: with the pid it is unique.
        rss_page_count: resident memory in pages.
    """

    state: str
    cpu_ticks: int
    start_ticks: int
    rss_page_count: int


_CHUNK_BYTES: Final = 16_384
GONE_STATES: Final = "ZXx"
STOPPED_STATES: Final = "Tt"


def read_text(path: str) -> str:
    """Return a small file's text; raise what ``os.open`` raises.

    Without a file object, which asks the kernel three more things about each file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = os.read(descriptor, _CHUNK_BYTES)
        while more := os.read(descriptor, _CHUNK_BYTES):  # the kernel may hand out a table page by page
            data += more
    finally:
        os.close(descriptor)
    return data.decode("ascii", "replace")


def parse_cpu_times(text: str) -> CpuTimes:
    """Read the first line of /proc/stat.

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
    """Read /proc/meminfo into bytes by name.

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
    """Return the share of memory that no new program could get, from /proc/meminfo."""
    values = parse_meminfo(text)
    try:
        return 1.0 - values["MemAvailable"] / values["MemTotal"]
    except (KeyError, ZeroDivisionError) as error:
        raise CollectorError(f"meminfo: {error} is missing or zero") from error


def parse_net_dev(text: str) -> dict[str, int]:
    r"""Read /proc/net/dev: interface -> bytes received plus bytes sent.

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
    """Read /proc/PID/stat; the command's name may hold blanks and brackets.

    >>> parse_process_stat("7 (a) b) R 1 1 1 0 -1 0 0 0 0 0 3 4 1 0 20 0 1 0 99 4096 12 0").cpu_ticks
    8
    """
    fields = text.rpartition(")")[2].split()
    if len(fields) < 22:
        raise CollectorError(f"process stat {text[:60]!r} has {len(fields)} fields after the name, wanted 22")
    cpu_ticks = sum(int(item) for item in fields[11:15])
    return ProcessStat(fields[0], cpu_ticks, int(fields[19]), int(fields[21]))
