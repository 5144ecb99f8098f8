"""Durations from marks that come late, twice or never; attempts and kinds of starts that must not mix."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.models.startup.kit import NS, STAGES, T0_NS, make_start
from tocsin.models.startup.durations import StageTable, stage_tables
from tocsin.schemas.startup import Edge, StageMark


def _by_stage(tables: list[StageTable]) -> dict[str, StageTable]:
    return {table.stage: table for table in tables}


@pytest.mark.parametrize("seed", range(5))
def test_durations_are_exact_from_marks_out_of_order_twice_and_missing(seed: int) -> None:
    """Statement B1 of the reference: 20 % out of order, 1 % twice, 1 % missing."""
    made = make_start(seed=seed)
    chance = random.Random(seed)
    marks, missing = [], set()
    for mark in made.marks:
        if chance.random() < 0.01:
            missing.add((mark.node, mark.stage, mark.edge))
            continue
        marks += [mark] * (2 if chance.random() < 0.01 else 1)
    for at in range(len(marks)):
        if chance.random() < 0.2:
            to = min(len(marks) - 1, at + chance.randrange(50))
            marks[at], marks[to] = marks[to], marks[at]
    assert missing

    tables = _by_stage(stage_tables(marks))

    assert tuple(tables) == STAGES
    for stage, table in tables.items():
        for span in table.spans:
            begin, end = made.truth[span.node][stage]
            gone = {edge for node, of, edge in missing if (node, of) == (span.node, stage)}
            assert span.seconds == (None if gone else pytest.approx(end - begin, abs=1.0))
            assert span.is_open == (gone == {Edge.END} and stage == STAGES[-1])
        ends = [made.truth[span.node][stage][1] for span in table.spans if span.end_ns is not None]
        begins = [made.truth[span.node][stage][0] for span in table.spans if span.begin_ns is not None]
        assert table.job_seconds == pytest.approx(max(ends) - min(begins), abs=1.0)


def test_a_missing_end_is_open_and_a_lost_one_is_not() -> None:
    made = make_start(5)
    for stage, state in (("model_init", "open"), ("env_setup", "lost")):
        gone = [mark for mark in made.marks if (mark.node, mark.stage, mark.edge) != ("n002", stage, Edge.END)]
        table = _by_stage(stage_tables(gone))[stage]
        assert table.open_nodes == (["n002"] if state == "open" else [])
        assert table.lost_count == (0 if state == "open" else 1)
        assert next(span.seconds for span in table.spans if span.node == "n002") is None


def test_a_stage_inside_another_one_does_not_end_it() -> None:
    marks = []
    for node in ("a", "b", "c"):
        times = (
            (0, "model_init", Edge.BEGIN),
            (5, "checkpoint_resume", Edge.BEGIN),
            (9, "checkpoint_resume", Edge.END),
            (20, "model_init", Edge.END),
        )
        marks += [StageMark(T0_NS + at * NS, stage, edge, node) for at, stage, edge in times]
    table = _by_stage(stage_tables(marks[:-1]))["model_init"]

    assert table.open_nodes == ["c"]


def test_a_node_is_open_while_one_of_its_processes_is() -> None:
    marks = [StageMark(T0_NS, "env_setup", Edge.BEGIN, "a", rank) for rank in "01"]
    marks.append(StageMark(T0_NS + NS, "env_setup", Edge.END, "a", "0"))
    assert stage_tables(marks)[0].open_nodes == ["a"]

    marks.append(StageMark(T0_NS + 3 * NS, "env_setup", Edge.END, "a", "1"))
    assert stage_tables(marks)[0].node_seconds == [3.0]


def test_a_hot_start_changes_nothing_of_full_ones() -> None:
    """Statement B4: it has tables of its own, and no image is loaded in it."""
    full = make_start(6, seed=1)
    hot = make_start(6, seed=2, start_kind="hot", stages=STAGES[1:], factors={"env_setup": 0.1})
    together = stage_tables([*full.marks, *hot.marks])

    kinds = {(table.start_kind, table.stage) for table in together}
    assert kinds == {*(("full", stage) for stage in STAGES), *(("hot", stage) for stage in STAGES[1:])}
    alone = _by_stage(stage_tables(full.marks))
    for table in together:
        if table.start_kind == "full":
            assert table == alone[table.stage]


def test_attempts_never_mix() -> None:
    """Statement B6: a node fails in the middle of its start and is replaced; the next attempt counts for itself."""
    first = [mark for mark in make_start(6, seed=1).marks if (mark.node, mark.stage) != ("n003", "env_setup")]
    second = make_start(6, seed=2, attempt=1)
    later = [StageMark(m.ts_ns + 500 * NS, m.stage, m.edge, m.node, m.member, "full", 1) for m in second.marks]
    tables = stage_tables([*later, *first])

    assert [table.attempt for table in tables] == [0] * 3 + [1] * 3
    env = [table for table in tables if table.stage == "env_setup"]
    assert [len(table.spans) for table in env] == [5, 6]
    for table in tables:
        truth = make_start(6, seed=1 + table.attempt).truth
        for span in table.spans:
            begin, end = truth[span.node][table.stage]
            assert span.seconds == pytest.approx(end - begin, abs=1e-6)


@given(st.permutations(range(36)))
def test_the_order_of_marks_does_not_matter(order: list[int]) -> None:
    marks = make_start(6).marks
    assert stage_tables([marks[at] for at in order]) == stage_tables(marks)
