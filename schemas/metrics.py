"""The metric columns of ``host_metrics`` and the tables that frames refer to.

A frame carries no names: it names a *metric table*, an ordered list of columns.
Table 1 is the list of the recording format and never changes; users' own metrics
get tables from ``FIRST_CUSTOM_TABLE_ID`` up, announced by the agent (``MetricTable``).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Scope = Literal["gpu", "host"]
BadDirection = Literal["high", "low", "both"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric column.

    Attributes:
        name: column name, with its unit as suffix.
        scope: ``gpu``: one row per GPU; ``host``: one row for the machine.
        low: the metric's own lower limit in base units (None: learned).
        high: the metric's own upper limit in base units (None: learned).
        bad: which direction is suspicious among peers.
    """

    name: str
    scope: Scope
    low: float | None = None
    high: float | None = None
    bad: BadDirection = "both"


GPU_METRICS: tuple[Metric, ...] = (
    Metric("gpu_util_ratio", "gpu", 0.0, 1.0),
    Metric("gpu_sm_active_ratio", "gpu", 0.0, 1.0),
    Metric("gpu_tensor_active_ratio", "gpu", 0.0, 1.0),
    Metric("gpu_graphics_active_ratio", "gpu", 0.0, 1.0),
    Metric("gpu_fp_active_ratio", "gpu", 0.0, 1.0),
    Metric("gpu_dram_active_ratio", "gpu", 0.0, 1.0),
    Metric("pcie_usage_ratio", "gpu", 0.0, 1.0),
    Metric("gpu_power_watts", "gpu", 0.0, None),
    Metric("gpu_temperature_celsius", "gpu", 0.0, 120.0, "high"),
    Metric("gpu_sm_clock_hertz", "gpu", 0.0, None, "low"),
    Metric("gpu_memory_used_bytes", "gpu", 0.0, None),
    Metric("nvlink_bytes_per_second", "gpu", 0.0, None),
    Metric("pcie_bytes_per_second", "gpu", 0.0, None),
)
"""The 13 metrics of one GPU, in the order of table 1."""

HOST_METRICS: tuple[Metric, ...] = (
    Metric("cpu_util_ratio", "host", 0.0, 1.0),
    Metric("memory_used_ratio", "host", 0.0, 1.0),
    Metric("disk_used_ratio", "host", 0.0, 1.0, "high"),
    Metric("tcp_bytes_per_second", "host", 0.0, None),
    Metric("rdma_bytes_per_second", "host", 0.0, None),
    Metric("pfc_tx_packets_per_second", "host", 0.0, None, "high"),
    Metric("ecn_packets_per_second", "host", 0.0, None, "high"),
    Metric("cnp_packets_per_second", "host", 0.0, None, "high"),
)
"""The 8 metrics of a machine, in the order of table 1."""

_MOST = 1e18
"""Of a users' metric: a counter that wrapped is 1.8e19, and float32 can still multiply two such numbers."""
_CEILINGS: dict[str, float] = {
    "_ratio": 2.0,
    "_watts": 4e3,
    "_celsius": 200.0,
    "_hertz": 1e10,
    "_bytes": 1e14,
    "_bytes_per_second": 1e14,
    "_packets_per_second": 1e11,
}
"""By unit, of the built-in metrics: several times what the largest accelerator, port or host of today can do.

A reading above is none: a driver's error number, or a counter that wrapped. Ratios of nominal values may be a little
above 1.
"""
_BUILTIN_NAMES = frozenset(metric.name for metric in (*GPU_METRICS, *HOST_METRICS))


def possible_range(metric: Metric) -> tuple[float, float]:
    """Least and largest number, in base units, that a sample of it can be: what lies outside is no sample."""
    low = -_MOST if metric.low is None else metric.low
    if metric.name not in _BUILTIN_NAMES:
        return low, _MOST
    return low, max(ceiling for suffix, ceiling in _CEILINGS.items() if metric.name.endswith(suffix))


BUILTIN_TABLE_ID = 1
FIRST_CUSTOM_TABLE_ID = 16


@dataclass(frozen=True, slots=True)
class MetricTable:
    """An ordered list of columns: what the matrices of a frame mean.

    Attributes:
        table_id: 1 for the built-in table, 16 and up for users' own.
        gpu: columns of the per-GPU matrix.
        host: columns of the host matrix.
    """

    table_id: int
    gpu: tuple[Metric, ...]
    host: tuple[Metric, ...]


BUILTIN_TABLE = MetricTable(BUILTIN_TABLE_ID, GPU_METRICS, HOST_METRICS)
