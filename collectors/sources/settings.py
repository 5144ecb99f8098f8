"""What the sources of a training host are set to; the command line makes it from the agent's flags."""

from __future__ import annotations

from dataclasses import dataclass

from tocsin.collectors.sources.procfs import Roots


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """Settings of all sources; each source reads those that its entry in the registry names.

    Attributes:
        roots: mount points of /proc and /sys.
        period_seconds: time between two samples of the host's metrics and of its hardware.
        process_tree_pid: process whose tree poses as the host, for a drill; 0: the host itself.
        disk_path: file system whose fill is reported; "": none.
        nvml: NVIDIA GPUs: "auto", "off", or "fake:N" for N simulated GPUs.
        rdma: InfiniBand and RoCE ports: "auto" or "off".
        kmsg_path: kernel log: /dev/kmsg or a log file; "": none.
        prometheus_urls: pages of exporters.
        prometheus_mapping_path: JSON file that says which metric of these pages is which column; "": the built-in one.
        prometheus_seconds: time between two scrapes.
    """

    roots: Roots
    period_seconds: float
    process_tree_pid: int
    disk_path: str
    nvml: str
    rdma: str
    kmsg_path: str
    prometheus_urls: tuple[str, ...]
    prometheus_mapping_path: str
    prometheus_seconds: float
