"""How right the verdicts are: 300 faults and 300 healthy jobs of 4 to 256 hosts, ours beside the plain detector.

Cases of the ``held`` half and of seeds that nothing was fitted on or looked at with: see ``docs/simulation.md``.
``TOCSIN_BENCH_CASES=40`` runs fewer (half of them with a fault), ``TOCSIN_BENCH_HOSTS=4-64`` smaller ones;
``TOCSIN_BENCH_SECONDS=600`` ends earlier with the cases that are done.
"""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Sequence

from tests.bench.judged import How, case_count, fault_and_healthy, host_range, judge_all, print_kinds, print_sets
from tocsin.pipeline.lab.backtest.summary import figures_of, table_lines
from tocsin.pipeline.lab.backtest.trial import Trial, fault_name

FIRST_SEED = 9_000_000
CASE_COUNT, HOSTS = 600, (4, 256)
SETS = ("ours", "plain")
_SIZES = ((0, 15), (16, 63), (64, 10**9))
_STOPS = ("fail_stop", "silent_corruption")
_TOLD = ("first_fatal_exit", "hardware_event", "nan_first_by_step")
"""Reasons of verdicts on stops that left an event."""


def main() -> None:
    """Print the tables."""
    report(FIRST_SEED, case_count(CASE_COUNT), host_range(HOSTS))


def report(first_seed: int, count: int, hosts: tuple[int, int]) -> None:
    """Judge so many cases from this seed on, and print all tables."""
    start = time.perf_counter()
    trials = [trial for trials in judge_all(fault_and_healthy(first_seed, count, How(hosts, SETS))) for trial in trials]
    print(f"{len(trials)} cases of the held half, half of them healthy, {hosts[0]} to {hosts[1]} hosts")
    print_sets(trials)
    stops = stop_delays(trials)
    if stops:
        print(f"ours: stops that left an event: {len(stops)}, median {statistics.median(stops):.1f} s")
    print_sizes(trials)
    print_kinds(trials, SETS)
    print_confusion(trials)
    print(f"\n{time.perf_counter() - start:.0f} s")


def stop_delays(trials: Sequence[Trial]) -> list[float]:
    """Onset to verdict of the first set's hits on faults that stop the job, where an event told of it."""
    return [
        one.delay_seconds
        for trial in trials
        for one in trial.answers[0].accusations
        if one.delay_seconds is not None
        and one.why in _TOLD
        and any(fault.get("kind") in _STOPS for fault in trial.faults or ())
    ]


def confusion(trials: Sequence[Trial]) -> dict[str, Counter[str]]:
    """True cause -> what the first set called it, ``missed`` among them; of cases with one fault."""
    found: dict[str, Counter[str]] = {}
    for trial in trials:
        if trial.faults is None or len(trial.faults) != 1:
            continue
        said = [one.cause for one in trial.answers[0].accusations if one.worth == "hit"]
        found.setdefault(fault_name(trial.faults[0]), Counter())[said[0] if said else "missed"] += 1
    return found


def print_confusion(trials: Sequence[Trial]) -> None:
    """What is confused with what."""
    print("\nours: what a cause was called")
    for cause, said in sorted(confusion(trials).items()):
        print(f"  {cause:24} " + ", ".join(f"{name} {count}" for name, count in said.most_common()))


def print_sizes(trials: Sequence[Trial]) -> None:
    """Small jobs and large ones apart."""
    for low, high in _SIZES:
        own = [trial for trial in trials if low <= trial.host_count <= high]
        if own:
            sizes = [trial.host_count for trial in own]
            print(f"\n{len(own)} cases of {min(sizes)} to {max(sizes)} hosts")
            print("\n".join(table_lines(figures_of(own))))
