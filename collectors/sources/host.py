"""CPU, memory and network metrics of the host, from /proc."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Final

from tocsin.collectors.api import Collector, NothingHere, Reading
from tocsin.collectors.sources.procfs import (
    CpuTimes,
    KeptFiles,
    Roots,
    memory_used_ratio,
    parse_cpu_times,
    parse_net_dev,
    read_text,
)
from tocsin.collectors.sources.settings import SourceSettings

NS_PER_SECOND: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class HostConfig:
    """Settings of the host collector.

    Attributes:
        roots: mount points of /proc and /sys.
        period_seconds: time between samples.
    """

    roots: Roots = field(default_factory=Roots)
    period_seconds: float = 1.0


class HostCollector:
    """Reports CPU, memory and network use; rates need two samples, so the first call gives levels only."""

    name = "host"

    def __init__(self, config: HostConfig) -> None:
        """Create the collector; nothing is read yet."""
        self.period_seconds = config.period_seconds
        self._config = config
        self._files = KeptFiles()
        self._cpu: CpuTimes | None = None
        self._listed: set[str] = set()
        self._counted: list[str] = []
        self._network_bytes: int | None = None
        self._network_ns = 0

    def collect(self, now_ns: int) -> Reading:
        """Return the host's metrics now."""
        values: dict[str, float] = {}
        absent: list[str] = []
        sources = (self._cpu_util, self._memory, lambda: self._network(now_ns))
        for source in sources:
            try:
                values.update(source())
            except (FileNotFoundError, NothingHere) as error:
                absent.append(str(error))  # of this one; the others are read all the same
        if absent and not values:
            raise NothingHere("; ".join(absent))
        return Reading(host=values)

    def _memory(self) -> dict[str, float]:
        """Return the memory use."""
        return {"memory_used_ratio": memory_used_ratio(self._files.read(f"{self._config.roots.proc}/meminfo"))}

    def _cpu_util(self) -> dict[str, float]:
        """Return the CPU use since the last call; empty for the first call."""
        times = parse_cpu_times(self._files.read(f"{self._config.roots.proc}/stat"))
        before, self._cpu = self._cpu, times
        if before is None or times.total_ticks <= before.total_ticks:
            return {}
        busy = (times.busy_ticks - before.busy_ticks) / (times.total_ticks - before.total_ticks)
        # iowait may go backwards (proc(5)), which makes busy a little too large
        return {"cpu_util_ratio": min(1.0, max(0.0, busy))}

    def _network(self, now_ns: int) -> dict[str, float]:
        """Return bytes a second of the physical interfaces, both directions.

        Read from /proc/net/dev and not from IpExt of /proc/net/netstat, which counts loopback and leaves IPv6 out.
        Only interfaces with a device behind them count, so that bonds, bridges and containers do not count a byte
        twice. RDMA traffic passes neither counter and has its own metric.
        """
        devices = parse_net_dev(read_text(f"{self._config.roots.proc}/net/dev"))
        if devices.keys() != self._listed:
            self._listed = set(devices)
            physical = [name for name in devices if self._has_device(name)]
            # A container's only interface is virtual: then everything but loopback.
            self._counted = physical or [name for name in devices if name != "lo"]
        total = sum(devices[name] for name in self._counted)
        before, before_ns = self._network_bytes, self._network_ns
        self._network_bytes, self._network_ns = total, now_ns
        if before is None or now_ns <= before_ns or total < before:
            return {}  # the first sample, or an interface left
        return {"tcp_bytes_per_second": (total - before) * NS_PER_SECOND / (now_ns - before_ns)}

    def _has_device(self, interface: str) -> bool:
        """Return whether an interface has a device behind it."""
        return os.path.exists(f"{self._config.roots.sys}/class/net/{interface}/device")


def from_settings(settings: SourceSettings) -> list[Collector]:
    """Return the collector of the host's metrics."""
    return [HostCollector(HostConfig(settings.roots, settings.period_seconds))]
