"""The ledger of a start: what is wasted, who waits, and for whom."""

from __future__ import annotations

import pytest

from tests.models.startup.kit import NS, T0_NS, make_start
from tocsin.models.startup.cost import Blame, blame, share, waiting_gpu_seconds, waste_gpu_seconds
from tocsin.models.startup.durations import StageTable, stage_tables
from tocsin.schemas.startup import Edge, StageMark


def _stage(ends: dict[str, float]) -> StageTable:
    marks = []
    for node, seconds in ends.items():
        marks.append(StageMark(T0_NS, "env_setup", Edge.BEGIN, node))
        marks.append(StageMark(T0_NS + round(seconds * NS), "env_setup", Edge.END, node))
    return stage_tables(marks)[0]


def test_waiting_and_blame_count_gpus() -> None:
    table, gpus = _stage({"a": 10.0, "b": 12.0, "c": 40.0}), {"a": 8, "b": 4, "c": 8}

    assert waiting_gpu_seconds(table, gpus) == pytest.approx(8 * 30 + 4 * 28)
    assert blame(table, gpus) == Blame("c", 28.0 * 20)
    assert blame(_stage({"a": 10.0}), gpus) is None


def test_waste_and_training_are_what_was_allocated() -> None:
    """Statement B5: over several starts of nodes with other numbers of GPUs, within 1 %."""
    waste = trained = allocated = 0.0
    for attempt in range(4):
        made = make_start(12, seed=attempt, attempt=attempt)
        gpus = {node: 4 + 4 * (at % 2) for at, node in enumerate(made.truth)}
        begins = {node: T0_NS + at * NS for at, node in enumerate(made.truth)}
        train_ns = max(mark.ts_ns for mark in made.marks)
        until_ns = train_ns + 3600 * NS
        waste += waste_gpu_seconds(gpus, begins, train_ns)
        trained += sum(gpus.values()) * (until_ns - train_ns) / NS
        allocated += sum(gpus[node] * (until_ns - begin_ns) / NS for node, begin_ns in begins.items())

    assert waste + trained == pytest.approx(allocated, rel=0.01)
    assert share(waste, allocated) == pytest.approx(waste / allocated)
    assert 0.05 < share(waste, allocated) < 0.1
    assert share(0.0, 0.0) == 0.0
