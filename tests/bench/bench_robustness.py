"""What real sites do to telemetry, and what it costs: the same cases as they are, with each disturbance, with all.

Disturbances: ``pipeline/lab/simulation/disturb.py``; cases: the first of ``accuracy``'s. ``TOCSIN_BENCH_CASES=40`` runs
fewer (half of them with a fault), ``TOCSIN_BENCH_HOSTS=4-64`` others. Each case is judged six times.
"""

from __future__ import annotations

import time

from tests.bench.bench_accuracy import FIRST_SEED, SETS
from tests.bench.judged import CHANGES, How, case_count, fault_and_healthy, host_range, judge_all
from tocsin.pipeline.lab.backtest.summary import (
    HEAD,
    cells,
    figures_of,
    lined_up,
)

CASE_COUNT, HOSTS = 200, (4, 128)


def main() -> None:
    """Print a table a set, a line a disturbance."""
    count, hosts, start = case_count(CASE_COUNT), host_range(HOSTS), time.perf_counter()
    orders = fault_and_healthy(FIRST_SEED, count, How(hosts, SETS, CHANGES))
    by_case = judge_all(orders)
    figures = [figures_of([trials[index] for trials in by_case]) for index in range(len(CHANGES))]
    print(f"{len(by_case)} cases of the held half, half of them healthy, {hosts[0]} to {hosts[1]} hosts")
    for index, name in enumerate(SETS):
        rows = [cells(change, of_sets[index].total) for change, of_sets in zip(CHANGES, figures, strict=True)]
        print("\n".join(["", *lined_up([(name, *HEAD[1:]), *rows])]))
    print(f"\n{time.perf_counter() - start:.0f} s")
