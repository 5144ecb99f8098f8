"""The ledger of a start: what is wasted, who waits, and for whom."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.models.startup.kit import NS, T0_NS, make_start
from tocsin.models.startup.cost import Blame, blame, share, spent_on_stages, waiting_gpu_seconds, waste_gpu_seconds
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


def test_a_start_is_cut_into_stages_and_waiting_for_the_last_host() -> None:
    def marks(node: str, *spans: tuple[str, float, float | None]) -> list[StageMark]:
        return [
            StageMark(T0_NS + round(at * NS), stage, edge, node)
            for stage, begin, end in spans
            for edge, at in ((Edge.BEGIN, begin), (Edge.END, end))
            if at is not None
        ]

    tables = stage_tables(
        [
            *marks("a", ("env_setup", 0, 20), ("model_init", 62, 100), ("checkpoint_resume", 70, 90)),
            *marks("b", ("env_setup", 5, 60), ("model_init", 61, None)),
        ]
    )
    spent = spent_on_stages(tables, {"a": 8, "b": 4}, T0_NS, T0_NS + 110 * NS)
    found = {stage: (one.own_gpu_ns / NS, one.waiting_gpu_ns / NS) for (_, stage), one in spent.items()}

    assert found == {
        "env_setup": (20 * 8 + 55 * 4, 40 * 8),
        "model_init": ((38 - 20) * 8 + 49 * 4, 10 * 8),  # b is in it until training begins
        "checkpoint_resume": (20 * 8, 0),
    }


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from(("x", "y", "z")), st.sampled_from(Edge), st.integers(0, 60)),
        max_size=30,
    ),
    st.integers(0, 30),
    st.integers(1, 60),
)
def test_no_instant_of_a_gpu_counts_twice(drawn: list[tuple[str, str, Edge, int]], begin: int, length: int) -> None:
    tables = stage_tables([StageMark(at, stage, edge, node) for node, stage, edge, at in drawn])
    gpus = {"a": 3, "b": 1}
    spent = spent_on_stages(tables, gpus, begin, begin + length)

    assert all(one.own_gpu_ns >= 0 and one.waiting_gpu_ns >= 0 for one in spent.values())
    assert sum(one.own_gpu_ns + one.waiting_gpu_ns for one in spent.values()) <= 4 * length
