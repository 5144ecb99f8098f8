"""Which cause the deviating metrics of one machine tell."""

from __future__ import annotations

from typing import Any

import pytest

from tocsin.pipeline.rca.patterns import cause_of_metrics

PFC, ECN, CNP = "pfc_tx_packets_per_second", "ecn_packets_per_second", "cnp_packets_per_second"
NVLINK, TENSOR, RDMA = "nvlink_bytes_per_second", "gpu_tensor_active_ratio", "rdma_bytes_per_second"
UTIL, POWER, CLOCK, CPU = "gpu_util_ratio", "gpu_power_watts", "gpu_sm_clock_hertz", "cpu_util_ratio"


def high(*names: str) -> list[dict[str, Any]]:
    return [{"metric": name, "direction": "high", "value": 2.0, "expected": 1.0} for name in names]


def low(*names: str, value: float = 0.5) -> list[dict[str, Any]]:
    return [{"metric": name, "direction": "low", "value": value, "expected": 1.0} for name in names]


@pytest.mark.parametrize(
    ("metrics", "cause"),
    [
        ([*high("gpu_temperature_celsius"), *low(CLOCK)], "thermal_throttle"),
        ([*high("gpu_temperature_celsius"), *low(POWER)], "thermal_throttle"),
        (low(CLOCK, POWER), "power_cap"),
        ([*high(UTIL), *low(POWER)], "power_cap"),
        ([*high(TENSOR), *low(POWER)], "power_cap"),
        (low(POWER), "unknown"),
        (high(PFC), "pcie_downgrade"),
        (high(PFC, ECN, CNP), "pcie_downgrade"),
        (low(RDMA), "nic_dropout"),
        ([*high(PFC, CNP), *low(RDMA)], "nic_dropout"),
        (low(RDMA, NVLINK, TENSOR), "unknown"),
        (high(ECN, CNP), "unknown"),
        (low(NVLINK), "nvlink_error"),
        ([*low(NVLINK, value=0.4), *low(TENSOR, value=0.9)], "nvlink_error"),
        (low(NVLINK, TENSOR), "unknown"),
        (high(CPU), "cpu_contention"),
        ([{**high(CPU)[0], "score": 0.6}, *low(UTIL, POWER)], "loader_stall"),
        ([*high(CPU), *low(UTIL, POWER)], "cpu_contention"),
        (low(UTIL, POWER), "loader_stall"),
        (low(UTIL), "unknown"),
        (high("disk_latency_seconds"), "hdfs_error"),
        ([*high("disk_latency_seconds"), *low(UTIL, POWER)], "hdfs_error"),
        ([], "unknown"),
    ],
)
def test_the_pattern_tells(metrics: list[dict[str, Any]], cause: str) -> None:
    assert cause_of_metrics(metrics) == cause
