"""Simulated recordings for training the default models: one seed, the ``fit`` half, always the same bytes.

Healthy ones alternate with ones with a long fault. Faults last at least 13 minutes: calls every eight minutes that
require four of continuity cannot detect shorter ones, and a threshold fitted on undetectable faults would be
meaningless.
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
"""Number of recordings and range of hosts: 20 hours, 10 machine-days. 20,000 windows of each metric are drawn from
them; more would not improve 400 weights."""


@dataclass(frozen=True, slots=True)
class CaseRequest:
    """One case to write; sent to a worker process.

    Attributes:
        folder: target folder, new or empty.
        seed: seed of the case.
        is_healthy: whether the case has no fault.
        half: half of the parameter ranges.
        hosts: range of the number of machines.
    """

    folder: Path
    seed: int
    is_healthy: bool
    half: Half
    hosts: tuple[int, int]


def long_cases(count: int, half: Half, hosts: tuple[int, int], first_seed: int) -> Iterator[Case]:
    """Yield ``count`` cases, every second one healthy, the others with a fault of at least 13 minutes."""
    found = 0
    for seed in itertools.count(first_seed):
        if found == count:
            return
        case = draw_case(seed, hosts, HEALTHY if found % 2 else None, half, duration_seconds=CASE_SECONDS)
        if all(fault["end_ns"] - fault["onset_ns"] >= LEAST_FAULT_NS for fault in case.truth()["faults"]):
            found += 1
            yield case


def metrics_only(case: Case) -> Recording:
    """Return the part of a case that Minder reads, without steps and events."""
    whole = case.recording()
    tables = {name: whole.tables[name] for name in ("topology", "host_metrics") if name in whole.tables}
    return replace(whole, tables=tables)


def write_defaults(
    folder: Path, seed: int, executor: Executor, count: int = DEFAULT_COUNT, on_progress: Progress | None = None
) -> list[Path]:
    """Write the recordings from which the default models are trained, and return their folders.

    Args:
        folder: target folder, which gets ``case-0000`` and so on.
        seed: 0 for those of the models that are part of tocsin.
        executor: distributes the work to processes.
        count: number of recordings.
        on_progress: called with the progress.
    """
    first_seed = FIRST_SEEDS["fit"] + 1_000_000_000 * seed
    cases = long_cases(count, "fit", DEFAULT_HOSTS, first_seed)
    orders = [
        CaseRequest(folder / f"case-{index:04d}", case.seed, case.kind == HEALTHY, "fit", DEFAULT_HOSTS)
        for index, case in enumerate(cases)
    ]
    return list(for_each(executor, write_one, orders, on_progress, "simulating"))


def write_one(order: CaseRequest) -> Path:
    """Write one of these recordings and return its folder."""
    kind = HEALTHY if order.is_healthy else None
    case = draw_case(order.seed, order.hosts, kind, order.half, duration_seconds=CASE_SECONDS)
    write_recording(order.folder, metrics_only(case))
    return order.folder
