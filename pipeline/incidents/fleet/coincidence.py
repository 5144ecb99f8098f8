"""Probability that many hosts give the same signal by coincidence: the tail of a Poisson distribution."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tocsin.pipeline.incidents.fleet.config import DAY_NS, FleetConfig


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


def exceeding_window(config: FleetConfig, first_ns: Sequence[int], hosts_count: int, now_ns: int) -> tuple[int, int]:
    """Return the shortest window in which more hosts gave a signal than independent faults explain.

    Args:
        config: settings.
        first_ns: per host, when it last gave the signal.
        hosts_count: hosts of the fleet.
        now_ns: end of all windows.

    Returns:
        The window in ns and the number of hosts in it; (0, 0): there is none.
    """
    for window_ns in config.windows_ns:
        count = sum(now_ns - ts_ns <= window_ns for ts_ns in first_ns)
        mean = hosts_count * config.faults_per_machine_day * window_ns / DAY_NS
        if count >= config.min_hosts_count and poisson_tail(count, mean) < config.chance_ratio:
            return window_ns, count
    return 0, 0
