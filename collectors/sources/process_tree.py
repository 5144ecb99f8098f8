"""Host metrics of a **simulated** host: the process tree of one rank (drill only).

Several ranks on one machine that act as hosts would all report the same machine. With ``--as-process-tree PID`` an
agent's host metrics come from the process tree of PID instead: its share of one core, and its resident memory as
a share of the machine's. Network bytes are not known per process and stay empty.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Final

from tocsin.collectors.api import Collector, NothingHere, Reading
from tocsin.collectors.sources.host import NS_PER_SECOND
from tocsin.collectors.sources.procfs import (
    GONE_STATES,
    ProcessStat,
    Roots,
    parse_meminfo,
    parse_process_stat,
    read_text,
)
from tocsin.collectors.sources.settings import SourceSettings

TREE_TICKS: Final = 5
"""Samples between two walks of the tree, each of which reads a file per thread."""


@dataclass(frozen=True, slots=True)
class ProcessTreeConfig:
    """Settings of a simulated host's collector.

    Attributes:
        pid: root of the process tree.
        roots: mount point of /proc.
        period_seconds: time between samples.
    """

    pid: int
    roots: Roots = field(default_factory=Roots)
    period_seconds: float = 1.0


class ProcessTreeCollector:
    """Reports a process tree's CPU and memory as host metrics; its name shows that it is no host collector."""

    name = "pose_process_tree"

    def __init__(self, config: ProcessTreeConfig) -> None:
        """Create the collector; nothing is read yet."""
        self.period_seconds = config.period_seconds
        self._config = config
        self._ticks_per_second = os.sysconf("SC_CLK_TCK")
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._start_ticks = 0
        self._memory_bytes = 0
        self._pids: list[int] = []
        self._calls = 0
        self._cpu_ticks: int | None = None
        self._cpu_ns = 0

    def collect(self, now_ns: int) -> Reading:
        """Return the tree's CPU and memory now."""
        if self._calls % TREE_TICKS == 0:
            self._pids = self._tree()
        self._calls += 1
        root = self._stat(self._config.pid)
        # the pid may be another process's by now: its start time tells
        self._start_ticks = self._start_ticks or (root.start_ticks if root else 0)
        if root is None or root.state in GONE_STATES or root.start_ticks != self._start_ticks:
            self._cpu_ticks = None
            raise NothingHere(f"process {self._config.pid} is gone")
        others = (self._stat(pid) for pid in self._pids if pid != self._config.pid)
        stats = [root, *(stat for stat in others if stat and stat.state not in GONE_STATES)]
        rss_bytes = sum(stat.rss_page_count for stat in stats) * self._page_bytes
        values = {"memory_used_ratio": min(1.0, rss_bytes / self._total_memory_bytes())}
        values.update(self._cpu_util(sum(stat.cpu_ticks for stat in stats), now_ns))
        return Reading(host=values)

    def _cpu_util(self, ticks: int, now_ns: int) -> dict[str, float]:
        """Return the share of **one** core since the last call, because the simulated host has one."""
        before, before_ns = self._cpu_ticks, self._cpu_ns
        self._cpu_ticks, self._cpu_ns = ticks, now_ns
        if before is None or now_ns <= before_ns:
            return {}
        seconds = (ticks - before) / self._ticks_per_second
        return {"cpu_util_ratio": min(1.0, max(0.0, seconds * NS_PER_SECOND / (now_ns - before_ns)))}

    def _total_memory_bytes(self) -> int:
        """Return the machine's memory, read once."""
        if not self._memory_bytes:
            self._memory_bytes = parse_meminfo(read_text(f"{self._config.roots.proc}/meminfo"))["MemTotal"]
        return self._memory_bytes

    def _stat(self, pid: int) -> ProcessStat | None:
        """Return the parsed stat file of a process, None if it is gone."""
        try:
            return parse_process_stat(read_text(f"{self._config.roots.proc}/{pid}/stat"))
        except (FileNotFoundError, ProcessLookupError):
            return None

    def _tree(self) -> list[int]:
        """Return the process ids of the tree."""
        found: list[int] = []
        ahead = [self._config.pid]
        while ahead:
            pid = ahead.pop()
            found.append(pid)
            ahead.extend(self._children(pid))
        return found

    def _children(self, pid: int) -> list[int]:
        """Return the process ids of a process's children."""
        tasks = f"{self._config.roots.proc}/{pid}/task"
        children: list[int] = []
        try:
            for thread in os.listdir(tasks):
                children.extend(map(int, read_text(f"{tasks}/{thread}/children").split()))
        except (FileNotFoundError, ProcessLookupError):
            pass  # it left while it was read, or the kernel lists no children
        return children


def from_settings(settings: SourceSettings) -> list[Collector]:
    """Return the collector of the process tree that poses as a host."""
    config = ProcessTreeConfig(settings.process_tree_pid, settings.roots, settings.period_seconds)
    return [ProcessTreeCollector(config)]
