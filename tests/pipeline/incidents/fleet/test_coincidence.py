"""When so many hosts cannot be a coincidence."""

from __future__ import annotations

import math

import pytest

from tocsin.pipeline.incidents.fleet.coincidence import (
    SHARE_RATIO,
    exceeding_window,
    faults_per_machine_day,
    poisson_tail,
)
from tocsin.pipeline.incidents.fleet.config import DAY_NS, FleetConfig
from tocsin.schemas.causes import CAUSES


@pytest.mark.parametrize("mean", [0.01, 0.5, 1.2, 8.0])
def test_the_tail_is_one_minus_the_probabilities_below_it(mean: float) -> None:
    for count in range(math.ceil(mean) + 1, 15):
        below = sum(math.exp(-mean) * mean**k / math.factorial(k) for k in range(count))
        assert poisson_tail(count, mean) == pytest.approx(1.0 - below, rel=1e-6, abs=1e-12)


def test_the_tail_at_its_ends() -> None:
    assert poisson_tail(0, 3.0) == 1.0
    assert poisson_tail(2, 3.0) == 1.0  # fewer than expected are never looked at
    assert poisson_tail(1, 0.0) == 0.0
    assert 0.0 <= poisson_tail(20_000, 1.0) < 1e-300


@pytest.mark.parametrize(
    ("hosts_count", "times_days", "is_common"),
    [
        (300, [0.1, 0.6], False),  # two a day are chance
        (300, [0.05 * row for row in range(12)], True),
        (300, [float(row) for row in range(30)], False),  # one a day, for a month: as many as the rate gives
        (300, [row / 9 for row in range(270)], True),  # nine a day
        (16_000, [0.02 * row for row in range(50)], False),  # a large fleet has more
        (8, [0.001, 0.002, 0.003, 0.004], True),
        (8, [0.001, 0.002, 0.003], False),  # fewer than four never are
    ],
)
def test_a_number_of_hosts_is_weighed_by_fleet_and_window(
    hosts_count: int, times_days: list[float], *, is_common: bool
) -> None:
    now_ns = 100 * DAY_NS
    first_ns = [now_ns - int(days * DAY_NS) for days in times_days]
    window_ns, count = exceeding_window(FleetConfig(), first_ns, hosts_count, now_ns, "unknown")
    assert bool(window_ns) is is_common
    assert (count >= 4) is is_common


@pytest.mark.parametrize(
    ("hosts_count", "in_days", "count", "cause", "is_common"),
    [
        (4_000, 7.0, 12, "ecc_error", False),  # the most frequent fault of all
        (4_000, 7.0, 12, "aoc_error", False),  # five are expected
        (1_000, 7.0, 12, "ecc_error", False),
        (1_000, 7.0, 12, "nvlink_error", True),
        (1_000, 7.0, 12, "gpu_card_drop", True),
        (300, 1.0, 6, "gpu_card_drop", True),
        (300, 1.0, 6, "ecc_error", False),
        (300, 1.0, 6, "power_cap", False),  # the table does not have it: all faults might be of this cause
    ],
)
def test_a_rare_cause_on_many_hosts_is_common_where_a_frequent_one_is_chance(
    hosts_count: int, in_days: float, count: int, cause: str, *, is_common: bool
) -> None:
    now_ns = 100 * DAY_NS
    times = [now_ns - int(in_days * DAY_NS * (row + 0.5) / count) for row in range(count)]
    window_ns, _ = exceeding_window(FleetConfig(), times, hosts_count, now_ns, cause)
    assert bool(window_ns) is is_common


def test_no_cause_is_more_frequent_than_all_faults() -> None:
    config = FleetConfig()
    rates = {cause: faults_per_machine_day(config, cause) for cause in SHARE_RATIO}
    assert set(SHARE_RATIO) <= {name for name, cause in CAUSES.items() if cause.blames == "machine"}
    assert sum(SHARE_RATIO.values()) < 1.0
    assert max(rates.values()) <= config.faults_per_machine_day
    assert min(rates, key=rates.__getitem__) == "aoc_error"
