"""Stragglers are named before they end; a slow service accuses no machine; repeated slowness is a finding."""

from __future__ import annotations

from statistics import median

import pytest

from tests.models.startup.kit import NS, STAGES, T0_NS, make_start, until
from tocsin.models.startup.durations import StageTable, stage_tables
from tocsin.models.startup.stragglers import StartHistory, limit_seconds, stragglers
from tocsin.schemas.startup import Edge, StageMark


def _table(marks: list[StageMark], stage: str = "env_setup") -> StageTable:
    return next(table for table in stage_tables(marks) if table.stage == stage)


@pytest.mark.parametrize("seed", range(3))
def test_a_slow_node_is_named_before_it_ends(seed: int) -> None:
    """Statement B2: 1 of 100 is four times slower; named within 1.6 medians, long before its end."""
    made = make_start(seed=seed, slow={("n042", "env_setup"): 4.0})
    begin, end = made.truth["n042"]["env_setup"]
    middle = median(spans["env_setup"][1] - spans["env_setup"][0] for spans in made.truth.values())
    named = None
    for second in range(int(begin) + 1, int(end), 10):
        found = stragglers(_table(until(made.marks, second)), T0_NS + second * NS)
        assert {one.node for one in found} <= {"n042"}
        if found and named is None:
            named = second
            assert found[0].is_open
            assert found[0].stage == "env_setup"
            assert found[0].peer_count == 99

    assert named is not None
    assert named - begin <= 1.6 * middle
    assert [one.node for one in stragglers(_table(list(made.marks)), T0_NS + 10_000 * NS)] == ["n042"]


@pytest.mark.parametrize("seed", range(3))
def test_nobody_is_named_in_a_healthy_start(seed: int) -> None:
    made = make_start(50, seed=seed, noise=0.1)
    for second in range(0, 400, 20):
        for table in stage_tables(until(made.marks, second)):
            assert stragglers(table, T0_NS + second * NS) == []


def test_a_node_that_waits_while_few_have_ended_is_not_named() -> None:
    made = make_start(10, slow={(f"n{at:03d}", "image_load"): 0.1 for at in range(4)})
    early = until(made.marks, 25.0)
    table = _table(early, "image_load")

    assert len(table.node_seconds) == 4
    assert stragglers(table, T0_NS + 25 * NS) == []


def test_a_node_that_began_early_keeps_nobody_waiting() -> None:
    marks = [StageMark(T0_NS + (at > 0) * 60 * NS, "s", Edge.BEGIN, f"n{at}") for at in range(8)]
    marks += [StageMark(T0_NS + 65 * NS, "s", Edge.END, f"n{at}") for at in range(1, 8)]
    table = stage_tables(marks)[0]

    assert stragglers(table, T0_NS + 66 * NS) == []
    assert [one.node for one in stragglers(table, T0_NS + 80 * NS)] == ["n0"]


@pytest.mark.parametrize(("count", "named"), [(4, []), (5, ["n000"])])
def test_four_peers_are_needed(count: int, named: list[str]) -> None:
    made = make_start(count, slow={("n000", "env_setup"): 5.0}, noise=0.01)
    assert [one.node for one in stragglers(_table(list(made.marks)), T0_NS + 10_000 * NS)] == named


def test_a_lost_end_accuses_nobody() -> None:
    marks = [m for m in make_start(10).marks if (m.node, m.stage, m.edge) != ("n003", "env_setup", Edge.END)]
    assert stragglers(_table(marks), T0_NS + 10_000 * NS) == []


def test_the_limit_is_the_largest_of_three() -> None:
    assert limit_seconds([100.0] * 9) == 150.0
    assert limit_seconds([2.0] * 9) == 12.0
    assert limit_seconds([80.0, 90.0, 100.0, 110.0, 120.0]) == pytest.approx(100 + 6 * 1.4826 * 10)


def _history(count: int) -> StartHistory:
    history = StartHistory()
    for seed in range(count):
        history.add(stage_tables(make_start(20, seed=seed).marks), T0_NS + 10_000 * NS)
    return history


def test_a_slow_mirror_is_a_shared_service_and_no_machine() -> None:
    """Statement B3: all nodes are three times slower; the service is named before the stage ends."""
    made = make_start(20, seed=9, factors={"env_setup": 3.0})
    begin = made.truth["n000"]["env_setup"][0]
    history = _history(3)
    named = None
    for second in range(int(begin) + 1, 400, 10):
        for table in stage_tables(until(made.marks, second)):
            now_ns = T0_NS + second * NS
            assert stragglers(table, now_ns) == []
            if (shared := history.shared_slowness(table, now_ns)) is not None:
                assert (shared.stage, shared.start_count) == ("env_setup", 3)
                named = named or second

    assert named is not None
    assert named - begin <= 2.2 * 100
    assert named < min(spans["env_setup"][1] for spans in made.truth.values())


def test_a_short_history_and_another_size_say_nothing() -> None:
    slow = _table(list(make_start(20, factors={"env_setup": 3.0}).marks))
    large = _table(list(make_start(200, factors={"env_setup": 3.0}).marks))
    now_ns = T0_NS + 10_000 * NS

    assert _history(2).shared_slowness(slow, now_ns) is None
    assert _history(3).shared_slowness(large, now_ns) is None
    assert _history(3).shared_slowness(slow, now_ns) is not None


def test_a_hot_start_is_compared_with_hot_ones_only() -> None:
    """Statement B4: the baseline of hot starts is separate."""
    history = StartHistory()
    for seed in range(4):
        quick = make_start(20, seed=seed, start_kind="hot", stages=STAGES[1:], factors={"env_setup": 0.2})
        history.add(stage_tables(quick.marks), T0_NS + 10_000 * NS)
    now_ns = T0_NS + 10_000 * NS

    assert history.shared_slowness(_table(list(make_start(20).marks)), now_ns) is None
    hot = make_start(20, start_kind="hot", stages=STAGES[1:])
    assert history.shared_slowness(_table(list(hot.marks)), now_ns) is not None


def test_a_node_that_is_slow_in_three_of_its_last_five_starts_is_found() -> None:
    history = StartHistory()
    for seed, is_slow in enumerate([True, False, True, False, False, True]):
        slow = {("n001", "env_setup"): 3.0, ("n002", "image_load" if seed % 2 else "env_setup"): 3.0}
        made = make_start(20, seed=seed, slow=slow if is_slow else {})
        history.add(stage_tables(made.marks), T0_NS + 10_000 * NS)
        if seed == 4:
            assert history.repeated() == []
    assert history.repeated() == []  # the first of the three is the sixth last start

    history.add(stage_tables(make_start(20, seed=7, slow={("n001", "env_setup"): 3.0}).marks), T0_NS + 10_000 * NS)
    assert history.repeated() == [("n001", "env_setup", 3, 5)]
