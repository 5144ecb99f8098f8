"""Simulated cases under detector sets, side by side in processes: what the accuracy benches share."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tocsin.cli.score import rows_of
from tocsin.pipeline.lab.backtest.detector_sets import runner_of
from tocsin.pipeline.lab.backtest.summary import figures_of, table_lines
from tocsin.pipeline.lab.backtest.trial import Trial, judge
from tocsin.pipeline.lab.simulation.case import HEALTHY, draw_case
from tocsin.pipeline.lab.simulation.disturb import DISTURBANCES, disturb_all
from tocsin.pipeline.recording.tables import Recording

NONE, ALL = "none", "all"
CHANGES = (NONE, *DISTURBANCES, ALL)
"""What is done to a case before it is judged."""


@dataclass(frozen=True, slots=True)
class How:
    """What all cases of a bench share.

    Attributes:
        hosts: range of machines.
        sets: detector sets.
        changes: of ``CHANGES``: each case is judged once for each.
        duration_seconds: of the cases, None: drawn.
        models: detector -> payload.
    """

    hosts: tuple[int, int]
    sets: tuple[str, ...]
    changes: tuple[str, ...] = (NONE,)
    duration_seconds: float | None = None
    models: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Order:
    """One case of the ``held`` half to draw and judge; crosses to a process.

    Attributes:
        seed: of the case.
        kind: as ``draw_case`` takes it.
        how: the rest.
    """

    seed: int
    kind: str | None
    how: How


def judge_case(order: Order) -> list[Trial]:
    """Draw a case, and judge it once for each change."""
    how = order.how
    recording = draw_case(order.seed, how.hosts, order.kind, "held", duration_seconds=how.duration_seconds).recording()
    runners = [runner_of(name, how.models) for name in how.sets]
    return [judge(changed(recording, order.seed, name), runners) for name in how.changes]


def changed(recording: Recording, seed: int, name: str) -> Recording:
    """The recording as a change leaves it."""
    if name == ALL:
        return disturb_all(recording, seed)
    return recording if name == NONE else DISTURBANCES[name](recording, seed)


def judge_all(orders: Sequence[Order]) -> list[list[Trial]]:
    """All cases, in their order; where ``TOCSIN_BENCH_SECONDS`` is over, those that are done until then."""
    seconds = float(os.environ.get("TOCSIN_BENCH_SECONDS", "inf"))
    begin, found = time.monotonic(), []
    # spawn: numpy's threads do not survive a fork
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        for trials in pool.imap(judge_case, orders):
            found.append(trials)
            if time.monotonic() - begin > seconds:
                print(f"time is over: {len(found)} of {len(orders)} cases", flush=True)
                break
    return found


def case_count(default: int) -> int:
    """``TOCSIN_BENCH_CASES``, at least two: half of them are healthy."""
    return max(2, int(os.environ.get("TOCSIN_BENCH_CASES", default)))


def host_range(default: tuple[int, int]) -> tuple[int, int]:
    """``TOCSIN_BENCH_HOSTS``: 16 or 4-64."""
    low, _, high = os.environ.get("TOCSIN_BENCH_HOSTS", f"{default[0]}-{default[1]}").partition("-")
    return int(low), int(high or low)


def fault_and_healthy(first_seed: int, count: int, how: How) -> list[Order]:
    """For each seed one case with a fault and one without, half of ``count`` each."""
    return [Order(seed, kind, how) for seed in range(first_seed, first_seed + count // 2) for kind in (None, HEALTHY)]


def print_sets(trials: Sequence[Trial]) -> None:
    """The table by set, and what is false where nobody was at fault."""
    figures = figures_of(trials)
    print("\n".join(table_lines(figures)))
    for one in figures:
        print(f"{one.name}: {one.healthy_false_count} of the false accusations in healthy cases")


def print_kinds(trials: Sequence[Trial], names: Iterable[str]) -> None:
    """Of these sets, by kind and by cause."""
    wanted = tuple(names)
    for one in figures_of(trials):
        if one.name in wanted:
            print(f"\n{one.name}:")
            print("\n".join([*rows_of("kind", one.kinds), "", *rows_of("cause", one.causes)]))
