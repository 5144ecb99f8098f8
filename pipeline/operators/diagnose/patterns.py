"""Which cause a pattern of deviating metrics tells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def cause_of_metrics(metrics: Sequence[dict[str, Any]]) -> str:
    """The cause that the pattern of deviating metrics tells, ``unknown`` where it tells none.

    PFC frames are sent by a host that cannot take what it receives (its PCIe is the bottleneck: Minder,
    section 2); marks and notifications of congestion rise where packets are repeated.
    """
    seen = {(str(metric["metric"]), str(metric["direction"])) for metric in metrics}
    for cause, wanted, unwanted in _PATTERNS:
        if wanted <= seen and not unwanted & seen:
            return cause
    return "unknown"


_TEMPERATURE, _CLOCK = ("gpu_temperature_celsius", "high"), ("gpu_sm_clock_hertz", "low")
_PFC, _ECN = ("pfc_tx_packets_per_second", "high"), ("ecn_packets_per_second", "high")
_CNP, _RDMA = ("cnp_packets_per_second", "high"), ("rdma_bytes_per_second", "low")
_PCIE_USAGE, _PCIE = ("pcie_usage_ratio", "high"), ("pcie_bytes_per_second", "low")
_NVLINK, _CPU = ("nvlink_bytes_per_second", "low"), ("cpu_util_ratio", "high")
_Pattern = frozenset[tuple[str, str]]
_PATTERNS: tuple[tuple[str, _Pattern, _Pattern], ...] = (
    ("thermal_throttle", frozenset({_TEMPERATURE, _CLOCK}), frozenset()),
    ("power_cap", frozenset({_CLOCK}), frozenset({_TEMPERATURE, _CPU})),
    ("pcie_downgrade", frozenset({_PFC, _PCIE_USAGE}), frozenset()),
    ("pcie_downgrade", frozenset({_PFC, _PCIE}), frozenset({_CNP})),
    ("pcie_downgrade", frozenset({_PCIE_USAGE}), frozenset({_CPU})),
    ("aoc_error", frozenset({_PFC, _CNP}), frozenset()),
    ("aoc_error", frozenset({_ECN, _RDMA}), frozenset()),
    ("aoc_error", frozenset({_CNP, _RDMA}), frozenset()),
    ("pcie_downgrade", frozenset({_PFC}), frozenset({_ECN, _CNP, _CPU})),
    ("nvlink_error", frozenset({_NVLINK}), frozenset({_PFC, _RDMA, _CPU, _CLOCK})),
    ("cpu_contention", frozenset({_CPU}), frozenset({_PFC, _CLOCK, _TEMPERATURE})),
)
"""(cause, deviations that must be there, deviations that must not), the most telling first."""
