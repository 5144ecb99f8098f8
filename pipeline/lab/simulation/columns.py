"""Random choice of the metrics that a simulated recording has."""

from __future__ import annotations

from tocsin.pipeline.lab.simulation.draw import Draw
from tocsin.pipeline.lab.simulation.levels import HOST_METRICS
from tocsin.schemas.metrics import GPU_METRICS
from tocsin.schemas.metrics import HOST_METRICS as BUILTIN_HOST_METRICS

METRIC_SETS: dict[str, tuple[str, ...]] = {
    "all": tuple(metric.name for metric in (*GPU_METRICS, *BUILTIN_HOST_METRICS)),
    "own": tuple(metric.name for metric in (*GPU_METRICS, *HOST_METRICS)),
    "minder": (
        "cpu_util_ratio",
        "pfc_tx_packets_per_second",
        "gpu_util_ratio",
        "gpu_power_watts",
        "gpu_tensor_active_ratio",
        "gpu_graphics_active_ratio",
        "nvlink_bytes_per_second",
    ),
    "smi": (
        "gpu_util_ratio",
        "gpu_power_watts",
        "gpu_temperature_celsius",
        "gpu_sm_clock_hertz",
        "gpu_memory_used_bytes",
        "pcie_bytes_per_second",
        "cpu_util_ratio",
        "memory_used_ratio",
        "disk_used_ratio",
        "tcp_bytes_per_second",
        "rdma_bytes_per_second",
    ),
}
"""Kind of monitoring -> metrics that a site with it collects."""

NEEDED: dict[str, tuple[str, ...]] = {
    "pcie_downgrade": ("pfc_tx_packets_per_second",),
    "aoc_error": ("pfc_tx_packets_per_second", "rdma_bytes_per_second"),
    "nic_dropout": ("pfc_tx_packets_per_second", "rdma_bytes_per_second"),
    "congestion": ("pfc_tx_packets_per_second",),
    "packet_burst": ("pfc_tx_packets_per_second",),
    "thermal_throttle": ("gpu_temperature_celsius", "gpu_sm_clock_hertz"),
    "warm_host": ("gpu_temperature_celsius",),
}
"""Kind of fault or disturbance -> metrics without which nothing would show it."""


def draw_columns(draw: Draw, must: str | None) -> tuple[str, ...]:
    """Draw the metrics of a recording; ``must``: a kind that it must be able to show."""
    needed_names = NEEDED.get(must or "", ())
    name = draw.weighted({"all": 0.45, "own": 0.1, "minder": 0.15, "smi": 0.15, "some": 0.15})
    if name != "some":
        return METRIC_SETS[name if set(needed_names) <= set(METRIC_SETS[name]) else "all"]
    kept = set(draw.some(len(METRIC_SETS["all"]), 8, 16))
    needed = {"cpu_util_ratio", "gpu_util_ratio", "gpu_power_watts", *needed_names}
    return tuple(metric for index, metric in enumerate(METRIC_SETS["all"]) if index in kept or metric in needed)
