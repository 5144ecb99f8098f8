"""Simulated recordings for training the default models: one seed, the ``fit`` half, always the same bytes.

Healthy ones alternate with ones with a long fault. Faults last at least 13 minutes: calls every eight minutes that
require four of continuity cannot detect shorter ones, and a threshold fitted on undetectable faults would be
meaningless.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tocsin.pipeline.lab.parallel import Executor, Progress, for_each
from tocsin.pipeline.lab.simulation.case import HEALTHY, Case, draw_case
from tocsin.pipeline.lab.simulation.draw import Half
from tocsin.pipeline.recording.tables import Recording
from tocsin.pipeline.recording.writer import write_recording
from tocsin.schemas.records import NS_PER_SECOND

CASE_SECONDS = 1800.0
_TELLING = ("waits", "full")
"""Levels of step detail with at least the time that a rank waits for others."""
LEAST_FAULT_NS = 780 * NS_PER_SECOND
FIRST_SEEDS = {"fit": 3_000_000, "held": 4_000_000}
FIRST_STEP_SEED = 3_500_000
STEP_COUNT, STEP_HOSTS = 32, (4, 12)
"""Number of recordings of steps and range of hosts, for the networks of ``bilstm``: 300 sequences of each at most are
used, so that more machines would not teach more."""
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
        duration_seconds: length of the case, None: its own.
    """

    folder: Path
    seed: int
    is_healthy: bool
    half: Half
    hosts: tuple[int, int]
    duration_seconds: float | None = CASE_SECONDS


def long_cases(count: int, half: Half, hosts: tuple[int, int], first_seed: int) -> Iterator[Case]:
    """Yield ``count`` cases, every second one healthy, the others with a fault of at least 13 minutes."""
    return _cases(count, _fault_is_long, first_seed, hosts, half, CASE_SECONDS)


def step_cases(count: int, first_seed: int) -> Iterator[Case]:
    """Yield ``count`` cases whose ranks tell the phases of their steps, every second one healthy."""
    return _cases(count, _tells_phases, first_seed, STEP_HOSTS, "fit", None)


def _cases(
    count: int,
    fits: Callable[[Case], bool],
    first_seed: int,
    hosts: tuple[int, int],
    half: Half,
    duration_seconds: float | None,
) -> Iterator[Case]:
    """Yield the first ``count`` cases that fit, every second one healthy."""
    found = 0
    for seed in itertools.count(first_seed):
        if found == count:
            return
        case = draw_case(seed, hosts, HEALTHY if found % 2 else None, half, duration_seconds=duration_seconds)
        if fits(case):
            found += 1
            yield case


def _fault_is_long(case: Case) -> bool:
    """Return whether every fault of a case lasts at least 13 minutes."""
    return all(fault["end_ns"] - fault["onset_ns"] >= LEAST_FAULT_NS for fault in case.truth()["faults"])


def _tells_phases(case: Case) -> bool:
    """Return whether the ranks of a case tell the phases of their steps."""
    return case.shape.step_detail in _TELLING


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
    request = CaseRequest(folder / "case", 0, False, "fit", DEFAULT_HOSTS)
    orders = _requests(request, long_cases(count, "fit", DEFAULT_HOSTS, first_seed))
    return list(for_each(executor, write_one, orders, on_progress, "simulating"))


def write_step_defaults(
    folder: Path, seed: int, executor: Executor, count: int = STEP_COUNT, on_progress: Progress | None = None
) -> list[Path]:
    """Write the recordings of steps from which the networks of ``bilstm`` are trained, and return their folders.

    Args:
        folder: target folder, which gets ``steps-0000`` and so on.
        seed: 0 for those of the models that are part of tocsin.
        executor: distributes the work to processes.
        count: number of recordings.
        on_progress: called with the progress.
    """
    request = CaseRequest(folder / "steps", 0, False, "fit", STEP_HOSTS, duration_seconds=None)
    orders = _requests(request, step_cases(count, FIRST_STEP_SEED + 1_000_000_000 * seed))
    return list(for_each(executor, write_steps, orders, on_progress, "simulating steps"))


def _requests(request: CaseRequest, cases: Iterable[Case]) -> list[CaseRequest]:
    """Return a request like this one for each case, its folder's name with the number of the case."""
    return [
        replace(
            request,
            folder=request.folder.with_name(f"{request.folder.name}-{index:04d}"),
            seed=case.seed,
            is_healthy=case.kind == HEALTHY,
        )
        for index, case in enumerate(cases)
    ]


def write_one(order: CaseRequest) -> Path:
    """Write the metrics of one of these recordings and return its folder."""
    write_recording(order.folder, metrics_only(_case_of(order)))
    return order.folder


def write_steps(order: CaseRequest) -> Path:
    """Write the steps of one of these recordings, and what its job announced; return its folder."""
    whole = _case_of(order).recording()
    tables = {name: columns for name, columns in whole.tables.items() if name != "host_metrics"}
    write_recording(order.folder, replace(whole, tables=tables, user_metrics={}))
    return order.folder


def _case_of(order: CaseRequest) -> Case:
    """Return the case of a request."""
    kind = HEALTHY if order.is_healthy else None
    return draw_case(order.seed, order.hosts, kind, order.half, duration_seconds=order.duration_seconds)
