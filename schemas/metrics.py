"""The metric columns of ``host_metrics`` and the tables that frames refer to.

A frame carries no names. It refers to a *metric table*, an ordered list of columns.
Table 1 is the list of the recording format and never changes. Users' own metrics
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
        scope: ``gpu``: one row per GPU. ``host``: one row for the machine.
        low: lower limit in base units; None: learned from data.
        high: upper limit in base units; None: learned from data.
        bad: which direction is suspicious in a comparison with peers.
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
"""Largest magnitude of a user's metric. A wrapped counter is 1.8e19; float32 can still multiply two numbers of this
size."""
_CEILINGS: dict[str, float] = {
    "_ratio": 2.0,
    "_watts": 4e3,
    "_celsius": 200.0,
    "_hertz": 1e10,
    "_bytes": 1e14,
    "_bytes_per_second": 1e14,
    "_packets_per_second": 1e11,
}
"""Unit suffix -> largest possible value of a built-in metric: several times what today's largest accelerator, port or
host can do.

A higher reading is a driver's error number or a wrapped counter. Ratios of nominal values may be a little above 1.
"""
_BUILTIN_NAMES = frozenset(metric.name for metric in (*GPU_METRICS, *HOST_METRICS))


def possible_range(metric: Metric) -> tuple[float, float]:
    """Return the least and the largest value, in base units, that a sample of the metric can have.

    A value outside is no sample but an error of its source.
    """
    low = -_MOST if metric.low is None else metric.low
    if metric.name not in _BUILTIN_NAMES:
        return low, _MOST
    return low, max(ceiling for suffix, ceiling in _CEILINGS.items() if metric.name.endswith(suffix))


BUILTIN_TABLE_ID = 1
FIRST_CUSTOM_TABLE_ID = 16


@dataclass(frozen=True, slots=True)
class MetricTable:
    """An ordered list of metric columns, which gives the rows of a frame's matrices their meaning.

    Attributes:
        table_id: 1 for the built-in table, 16 and up for users' own.
        gpu: columns of the per-GPU matrix.
        host: columns of the host matrix.
    """

    table_id: int
    gpu: tuple[Metric, ...]
    host: tuple[Metric, ...]


BUILTIN_TABLE = MetricTable(BUILTIN_TABLE_ID, GPU_METRICS, HOST_METRICS)
