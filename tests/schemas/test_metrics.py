"""What a sample of a metric can be."""

import pytest

from tocsin.schemas.metrics import BUILTIN_TABLE, Metric, possible_range

LARGEST = {
    "gpu_power_watts": 2700.0,  # a superchip
    "gpu_temperature_celsius": 130.0,
    "gpu_sm_clock_hertz": 3e9,
    "gpu_memory_used_bytes": 288e9,
    "nvlink_bytes_per_second": 1.8e12,
    "pcie_bytes_per_second": 256e9,
    "tcp_bytes_per_second": 100e9,
    "rdma_bytes_per_second": 1.6e12,  # eight ports of 800 Gb/s, both ways
    "pfc_tx_packets_per_second": 1e9,
}
WRAPPED = (1.8446744e19, -1.0)
"""A counter read as 64 bits, and one that went back."""


@pytest.mark.parametrize("metric", [*BUILTIN_TABLE.gpu, *BUILTIN_TABLE.host], ids=lambda metric: metric.name)
def test_what_hardware_can_do_can_be_and_a_counter_that_wrapped_cannot(metric: Metric) -> None:
    low, high = possible_range(metric)

    assert low <= 0.0
    assert LARGEST.get(metric.name, 1.0) <= high
    assert not any(low <= number <= high for number in WRAPPED)


def test_of_a_users_metric_only_what_no_measurement_is_cannot_be() -> None:
    low, high = possible_range(Metric("queue_ratio", "host"))

    assert (low, high) == (-1e18, 1e18)
    assert possible_range(Metric("queue_ratio", "host", 0.0, 1.0)) == (0.0, 1e18)
