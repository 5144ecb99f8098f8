"""Which cause a pattern of deviating metrics tells."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any


def cause_of_metrics(metrics: Sequence[Mapping[str, Any]]) -> str:
    """The cause that the pattern of deviating metrics tells, ``unknown`` where it tells none.

    A host sends PFC frames when it cannot take what it receives (its PCIe is the bottleneck: Minder, section 2), and
    what waits in its buffers is marked as congestion. A host whose port is gone moves less over RDMA and computes as
    ever.
    """
    seen = {
        (str(metric["metric"]), str(metric["direction"]))
        for metric in metrics
        if metric["metric"] != _CPU[0] or metric.get("score", 1.0) >= 1.0  # a daemon's burst tells nothing
    }
    if any(direction == "high" and _SLOW_STORAGE.search(name) for name, direction in seen):
        return "hdfs_error"
    if _NVLINK in seen and not _falls_with_work(metrics):
        seen.add(_NVLINK_ALONE)
    for cause, wanted, unwanted in _PATTERNS:
        if wanted <= seen and not unwanted & seen:
            return cause
    return "unknown"


def _falls_with_work(metrics: Sequence[Mapping[str, Any]]) -> bool:
    """Whether NVLink traffic is low because little is computed: a GPU that computes less also sends less."""
    falls = {str(metric["metric"]): _fall_ratio(metric) for metric in metrics if metric["direction"] == "low"}
    own = falls.get(_NVLINK[0], 0.0)
    return any(falls.get(name, 0.0) > _WORK_SHARE_RATIO * own for name in _WORK)


def _fall_ratio(metric: Mapping[str, Any]) -> float:
    value, expected = metric.get("value"), metric.get("expected")
    return 1.0 - value / expected if value is not None and expected else 0.0


_SLOW_STORAGE = re.compile(r"(disk|storage|filesystem|file_system|hdfs|nfs).*(latency|wait|seconds)")
"""A user's own metric of how long storage takes."""
_WORK = ("gpu_tensor_active_ratio", "gpu_sm_active_ratio", "gpu_dram_active_ratio", "gpu_fp_active_ratio")
_WORK_SHARE_RATIO = 0.6
_TEMPERATURE, _CLOCK = ("gpu_temperature_celsius", "high"), ("gpu_sm_clock_hertz", "low")
_PFC, _RDMA = ("pfc_tx_packets_per_second", "high"), ("rdma_bytes_per_second", "low")
_PCIE_USAGE, _PCIE = ("pcie_usage_ratio", "high"), ("pcie_bytes_per_second", "low")
_NVLINK, _CPU = ("nvlink_bytes_per_second", "low"), ("cpu_util_ratio", "high")
_NVLINK_ALONE = ("nvlink_bytes_per_second", "alone")
_UTIL, _POWER = ("gpu_util_ratio", "low"), ("gpu_power_watts", "low")
_SM, _TENSOR = ("gpu_sm_active_ratio", "low"), ("gpu_tensor_active_ratio", "low")
_Pattern = frozenset[tuple[str, str]]
_PATTERNS: tuple[tuple[str, _Pattern, _Pattern], ...] = (
    ("thermal_throttle", frozenset({_TEMPERATURE, _CLOCK}), frozenset()),
    ("thermal_throttle", frozenset({_TEMPERATURE, _POWER}), frozenset({_UTIL, _SM})),
    ("power_cap", frozenset({_CLOCK}), frozenset({_TEMPERATURE, _CPU})),
    # Without clocks: busier than its peers (it is the one that they wait for) and yet it draws less.
    ("power_cap", frozenset({_POWER, ("gpu_util_ratio", "high")}), frozenset({_TEMPERATURE, _CPU})),
    ("power_cap", frozenset({_POWER, ("gpu_graphics_active_ratio", "high")}), frozenset({_TEMPERATURE, _CPU})),
    ("power_cap", frozenset({_POWER, ("gpu_tensor_active_ratio", "high")}), frozenset({_TEMPERATURE, _CPU})),
    ("pcie_downgrade", frozenset({_PFC, _PCIE_USAGE}), frozenset()),
    ("pcie_downgrade", frozenset({_PCIE_USAGE}), frozenset({_CPU})),
    ("nic_dropout", frozenset({_RDMA}), frozenset({_NVLINK, _UTIL, _SM, _TENSOR, _CPU})),
    ("pcie_downgrade", frozenset({_PFC}), frozenset({_RDMA, _CPU})),
    ("nvlink_error", frozenset({_NVLINK_ALONE}), frozenset({_PFC, _RDMA, _CPU, _CLOCK, _UTIL})),
    ("cpu_contention", frozenset({_CPU}), frozenset({_PFC, _CLOCK, _TEMPERATURE})),
    # Idle GPUs of a job that goes on, and nothing else: they wait for what their host brings them.
    ("loader_stall", frozenset({_UTIL, _POWER}), frozenset({_PFC, _RDMA, _CLOCK, _TEMPERATURE})),
)
"""(cause, deviations that must be there, deviations that must not), the most telling first."""
