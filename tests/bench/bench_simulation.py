"""How fast cases are made, and how hard they are: the plain detector's table.

The alarm line is fitted on ``fit`` seeds and judged on ``held`` seeds, whose parameters lie in
other bands of the ranges.
"""

from __future__ import annotations

import itertools
import time

from tocsin.pipeline.lab.simulation.case import HEALTHY, draw_case
from tocsin.pipeline.lab.simulation.difficulty import (
    best_threshold,
    sample,
    table,
    tally,
)

SEEDS = range(1_000_000, 1_000_200)
HOSTS = (4, 64)
LARGE_HOST_COUNT = 10_000


def main() -> None:
    """Print the times, then both tables."""
    start = time.perf_counter()
    draw_case(1, 32, "power_cap", duration_seconds=1200.0).recording()
    print(f"32 hosts x 20 minutes: {time.perf_counter() - start:.2f} s")
    chunks = draw_case(1, LARGE_HOST_COUNT, HEALTHY, duration_seconds=3600.0).chunks()
    next(chunks)
    start = time.perf_counter()
    seconds = sum((part.manifest.end_ns - part.manifest.start_ns) / 1e9 for part in itertools.islice(chunks, 5))
    print(f"{LARGE_HOST_COUNT} hosts: {seconds / (time.perf_counter() - start):.1f} times real time")
    fit = sample(SEEDS, HOSTS, "fit")
    threshold = best_threshold(fit)
    held = sample(SEEDS, HOSTS, "held")
    best = best_threshold(held)
    print(f"\nthe plain detector; {len(fit)} cases a half, half of them healthy, {HOSTS[0]} to {HOSTS[1]} hosts")
    for name, cases, line in (("fit", fit, threshold), ("held", held, threshold), ("held, its best", held, best)):
        result = tally(cases, line)
        rate = result.false_count / result.machine_days_count
        print(
            f"{name}, alarm line {line}: precision {result.precision:.3f} recall {result.recall:.3f} "
            f"F1 {result.f1:.3f} median {result.median_seconds:.0f} s, {rate:.2f} false a machine-day"
        )
    print(f"\nheld, alarm line {threshold}\n\n{table(held, threshold)}")
