"""Ours beside Minder to the letter, its ablations, the Mahalanobis baseline and the plain detector, on the same cases.

Cases of the ``held`` half, half of them healthy; faults last at least 13 minutes, or calls every eight minutes that
ask for four could not see them all. Minder's model is the one that ships with tocsin (``tocsin train --defaults``:
fitted on the ``fit`` half, each variant with its own threshold); ``TOCSIN_BENCH_MODEL=FILE`` takes another. Below the
table stands what a set could not judge: among few machines no z-score reaches Minder's threshold
(``threshold_unreachable``, 13 of the 60 cases); their faults count as missed.
``TOCSIN_BENCH_CASES`` (60), ``TOCSIN_BENCH_HOSTS`` (4-32; Minder's cost grows with the square).
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from tests.bench.judged import How, Order, case_count, host_range, judge_all, print_kinds, print_sets
from tocsin.pipeline.lab.backtest.detector_sets import (
    MINDER,
    MINDER_SETS,
    OURS,
    PLAIN,
)
from tocsin.pipeline.lab.registry.builtin import builtin_cards, builtin_payload
from tocsin.pipeline.lab.simulation.case import HEALTHY
from tocsin.pipeline.lab.training.simulated import CASE_SECONDS, long_cases

FIRST_SEED = 9_500_000
CASE_COUNT, HOSTS = 60, (4, 32)
SETS = (OURS, *MINDER_SETS, PLAIN)


def main() -> None:
    """Print the table."""
    count, hosts, start = case_count(CASE_COUNT), host_range(HOSTS), time.perf_counter()
    how = How(hosts, SETS, duration_seconds=CASE_SECONDS, models={MINDER: minder_model()})
    cases = long_cases(count, "held", hosts, FIRST_SEED)
    orders = [Order(case.seed, HEALTHY if case.kind == HEALTHY else None, how) for case in cases]
    trials = [trial for trials in judge_all(orders) for trial in trials]
    print(f"{len(trials)} cases of half an hour, half of them healthy, {hosts[0]} to {hosts[1]} hosts, held half")
    print_sets(trials)
    print_kinds(trials, (OURS, MINDER))
    print(f"\n{time.perf_counter() - start:.0f} s")


def minder_model() -> bytes:
    """The payload of Minder's model."""
    named = os.environ.get("TOCSIN_BENCH_MODEL")
    return Path(named).read_bytes() if named else builtin_payload(builtin_cards()[MINDER])
