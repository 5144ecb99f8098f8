"""How many machines to keep warm: a high percentile of the machines that fail together (ByteRobust: the 99th)."""

from __future__ import annotations

import math

from tocsin.schemas.errors import ConfigError

MOST_MACHINES = 1_000_000


def standby_count(machine_count: int, failure_ratio: float, quantile: float = 0.99) -> int:
    """Return the smallest number of standbys that covers the failures of a day with at least this probability.

    The failures of a day follow the binomial distribution: each machine fails on its own.

    Args:
        machine_count: machines of the job.
        failure_ratio: share of machines that fails in a day, 0 to 1.
        quantile: the probability, between 0 and 1.

    Raises:
        ConfigError: an argument is out of its range.

    Example:
        >>> [standby_count(machines, 0.0012) for machines in (128, 256, 512, 1024)]
        [2, 2, 3, 4]
    """
    if not 0 < machine_count <= MOST_MACHINES:
        raise ConfigError("machines", machine_count, f"from 1 to {MOST_MACHINES}")
    if not 0 <= failure_ratio <= 1:
        raise ConfigError("failure rate", failure_ratio, "from 0 to 1, a share of the machines in a day")
    if not 0 < quantile < 1:
        raise ConfigError("quantile", quantile, "between 0 and 1")
    if failure_ratio in (0, 1):
        return int(failure_ratio) * machine_count
    covered = 0.0
    for count in range(machine_count + 1):
        covered += _chance_of(count, machine_count, failure_ratio)
        if covered >= quantile:
            return count
    return machine_count


def _chance_of(count: int, machine_count: int, failure_ratio: float) -> float:
    """Return the probability that exactly so many machines fail in a day."""
    ways = math.lgamma(machine_count + 1) - math.lgamma(count + 1) - math.lgamma(machine_count - count + 1)
    return math.exp(ways + count * math.log(failure_ratio) + (machine_count - count) * math.log1p(-failure_ratio))
