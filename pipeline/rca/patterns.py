"""Table of causes by the set of metrics that deviate on a machine, and in which direction."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any


def cause_of_metrics(metrics: Sequence[Mapping[str, Any]]) -> str:
    """Return the cause whose pattern the deviating metrics match, ``unknown`` where none does.

    A host sends PFC frames when it cannot take what it receives, because its PCIe is the bottleneck (Minder, section
    2). A host whose port is gone moves less over RDMA and computes at its usual rate.

    Args:
        metrics: deviating metrics of one anomaly, each with ``metric``, ``direction``, ``score``, ``value`` and
            ``expected``.
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
    """Return whether a GPU work metric fell by more than 0.6 of the fall of NVLink traffic.

    Less NVLink traffic is then a consequence of less computing, and no fault of the link.
    """
    falls = {str(metric["metric"]): _fall_ratio(metric) for metric in metrics if metric["direction"] == "low"}
    own = falls.get(_NVLINK[0], 0.0)
    return any(falls.get(name, 0.0) > _WORK_SHARE_RATIO * own for name in _WORK)


def _fall_ratio(metric: Mapping[str, Any]) -> float:
    """Return by which share of its expected value a metric lies below it; 0.0 where either number is missing."""
    value, expected = metric.get("value"), metric.get("expected")
    return 1.0 - value / expected if value is not None and expected else 0.0


_SLOW_STORAGE = re.compile(r"(disk|storage|filesystem|file_system|hdfs|nfs).*(latency|wait|seconds)")
"""Names of user-defined metrics that measure how long storage takes."""
_WORK = ("gpu_tensor_active_ratio", "gpu_sm_active_ratio", "gpu_dram_active_ratio", "gpu_fp_active_ratio")
"""Metrics of the work that a GPU does."""
_WORK_SHARE_RATIO = 0.6
"""Share of NVLink's fall from which on a fall of GPU work explains it."""
_TEMPERATURE, _CLOCK = ("gpu_temperature_celsius", "high"), ("gpu_sm_clock_hertz", "low")
_PFC, _RDMA = ("pfc_tx_packets_per_second", "high"), ("rdma_bytes_per_second", "low")
_PCIE_USAGE, _PCIE = ("pcie_usage_ratio", "high"), ("pcie_bytes_per_second", "low")
_NVLINK, _CPU = ("nvlink_bytes_per_second", "low"), ("cpu_util_ratio", "high")
_NVLINK_ALONE = ("nvlink_bytes_per_second", "alone")
"""Pseudo deviation: NVLink traffic is low although the GPUs' work is not."""
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
"""Rows of (cause, deviations that must be present, deviations that must be absent); the first matching row wins."""
