"""Probability that many hosts give the same signal by coincidence: the tail of a Poisson distribution.

How often independent faults give a signal depends on its cause. The shares are those of Minder (NSDI'25), Table 1:
faults of machines in seven months of production.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from tocsin.pipeline.incidents.fleet.config import DAY_NS, FleetConfig

SHARE_RATIO: Final[Mapping[str, float]] = {
    "ecc_error": 0.389,
    "gpu_execution_error": 0.077,
    "pcie_downgrade": 0.066,
    "machine_unreachable": 0.060,
    "nic_dropout": 0.057,
    "hdfs_error": 0.057,
    "gpu_card_drop": 0.020,
    "nvlink_error": 0.017,
    "aoc_error": 0.009,
}
"""Cause -> its share of all faults of machines. A cause that is not here counts as if all faults were of it."""


def faults_per_machine_day(config: FleetConfig, cause: str) -> float:
    """Return how many independent faults of a cause a machine has in a day, at most.

    Args:
        config: settings.
        cause: word of ``schemas.causes``.
    """
    return config.faults_per_machine_day * min(1.0, config.share_margin_ratio * SHARE_RATIO.get(cause, 1.0))


def poisson_tail(count: int, mean_count: float) -> float:
    """Return the probability that a Poisson variable with this mean is at least ``count``."""
    if count <= 0:
        return 1.0
    if mean_count <= 0:
        return 0.0
    if count <= mean_count:
        return 1.0  # never of interest: as many as are expected
    term = math.exp(count * math.log(mean_count) - mean_count - math.lgamma(count + 1))
    total, k = 0.0, count
    while term > total * 1e-12 and term > 0.0:
        total += term
        k += 1
        term *= mean_count / k
    return min(1.0, total)


def exceeding_window(
    config: FleetConfig, first_ns: Sequence[int], hosts_count: int, now_ns: int, cause: str
) -> tuple[int, int]:
    """Return the shortest window in which more hosts gave a signal than independent faults explain.

    Args:
        config: settings.
        first_ns: per host, when it last gave the signal.
        hosts_count: hosts of the fleet.
        now_ns: end of all windows.
        cause: the signal's cause.

    Returns:
        The window in ns and the number of hosts in it; (0, 0): there is none.
    """
    rate = faults_per_machine_day(config, cause)
    for window_ns in config.windows_ns:
        count = sum(now_ns - ts_ns <= window_ns for ts_ns in first_ns)
        mean = hosts_count * rate * window_ns / DAY_NS
        if count >= config.min_hosts_count and poisson_tail(count, mean) < config.chance_ratio:
            return window_ns, count
    return 0, 0
