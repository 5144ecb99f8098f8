"""Simulated recordings that the default models are trained on: one seed, the ``fit`` half, always the same bytes.

Healthy ones and ones with a long fault in turn. Faults last at least 13 minutes: calls every eight
minutes that ask for four of continuity cannot see shorter ones, and a threshold fitted on what cannot
be seen would be fitted on nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tocsin.pipeline.lab.parallel import Executor, Progress, for_each
from tocsin.pipeline.lab.simulation.case import HEALTHY, Case, draw_case
from tocsin.pipeline.lab.simulation.draw import Half
from tocsin.pipeline.recording.tables import Recording
from tocsin.pipeline.recording.writer import write_recording
from tocsin.schemas.records import NS_PER_SECOND

CASE_SECONDS = 1800.0
LEAST_FAULT_NS = 780 * NS_PER_SECOND
FIRST_SEEDS = {"fit": 3_000_000, "held": 4_000_000}
DEFAULT_COUNT, DEFAULT_HOSTS = 40, (4, 32)
"""20 hours, 10 machine-days: 20,000 windows of each metric are drawn from them, and more teach 400 weights nothing."""


@dataclass(frozen=True, slots=True)
class CaseRequest:
    """One case to write; crosses to a worker process.

    Attributes:
        folder: new or empty.
        seed: of the case.
        is_healthy: without a fault.
        half: of the parameter ranges.
        hosts: range of machines.
    """

    folder: Path
    seed: int
    is_healthy: bool
    half: Half
    hosts: tuple[int, int]


def long_cases(count: int, half: Half, hosts: tuple[int, int], first_seed: int) -> Iterator[Case]:
    """Half of them healthy, the others with a fault of at least 13 minutes."""
    found = 0
    for seed in itertools.count(first_seed):
        if found == count:
            return
        case = draw_case(seed, hosts, HEALTHY if found % 2 else None, half, duration_seconds=CASE_SECONDS)
        if all(fault["end_ns"] - fault["onset_ns"] >= LEAST_FAULT_NS for fault in case.truth()["faults"]):
            found += 1
            yield case


def metrics_only(case: Case) -> Recording:
    """What Minder reads of a case; steps and events are left out."""
    whole = case.recording()
    tables = {name: whole.tables[name] for name in ("topology", "host_metrics") if name in whole.tables}
    return replace(whole, tables=tables)


def write_defaults(
    folder: Path, seed: int, mapper: Executor, count: int = DEFAULT_COUNT, told: Progress | None = None
) -> list[Path]:
    """Write the recordings of the default models.

    Args:
        folder: gets ``case-0000`` and so on.
        seed: 0: those of the models that ship with tocsin.
        mapper: shares the work out.
        count: how many.
        told: progress.
    """
    first_seed = FIRST_SEEDS["fit"] + 1_000_000_000 * seed
    cases = long_cases(count, "fit", DEFAULT_HOSTS, first_seed)
    orders = [
        CaseRequest(folder / f"case-{index:04d}", case.seed, case.kind == HEALTHY, "fit", DEFAULT_HOSTS)
        for index, case in enumerate(cases)
    ]
    return list(for_each(mapper, write_one, orders, told, "simulating"))


def write_one(order: CaseRequest) -> Path:
    """Write one of them."""
    kind = HEALTHY if order.is_healthy else None
    case = draw_case(order.seed, order.hosts, kind, order.half, duration_seconds=CASE_SECONDS)
    write_recording(order.folder, metrics_only(case))
    return order.folder
