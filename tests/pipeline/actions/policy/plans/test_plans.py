"""Plans: the tables of ByteRobust (SOSP'25), and what must hold of every plan."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.pipeline.actions.policy.plans.backup import plan_backup
from tocsin.pipeline.actions.policy.plans.layout import Layout, parse_layout
from tocsin.pipeline.actions.policy.plans.over_evict import over_evict, vote_of_rounds
from tocsin.pipeline.actions.policy.plans.replay_groups import plan_replay
from tocsin.pipeline.actions.policy.plans.standby import standby_count
from tocsin.schemas.errors import ConfigError


def test_the_papers_replay_finds_machine_13() -> None:
    plan = plan_replay(4, 6)

    assert (plan.group_size, plan.group_count) == (4, 6)
    assert plan.horizontal(3) == (12, 13, 14, 15)
    assert plan.vertical(1) == (1, 7, 13, 19)
    assert plan.suspects(3, 1) == (13,)


@given(st.integers(1, 8), st.integers(1, 64))
def test_a_replay_finds_each_machine_alone(pipeline_size: int, data_size: int) -> None:
    if data_size < pipeline_size:
        with pytest.raises(ConfigError):
            plan_replay(pipeline_size, data_size)
        return
    plan = plan_replay(pipeline_size, data_size)

    assert plan.machine_count == pipeline_size * data_size
    assert plan.group_size % pipeline_size == 0
    assert plan.group_size <= plan.group_count
    for machine in range(plan.machine_count):
        first = [a for a in range(plan.group_count) if machine in plan.horizontal(a)]
        second = [b for b in range(plan.group_count) if machine in plan.vertical(b)]
        assert len(first) == len(second) == 1
        assert plan.suspects(first[0], second[0]) == (machine,)


def test_a_replay_is_as_large_as_it_can_be_or_as_asked() -> None:
    assert plan_replay(8, 128).replica_count == 4
    assert plan_replay(8, 128, 1).group_size == 8
    with pytest.raises(ConfigError, match=r"replicas = 8: must be one of 1, 2, 4"):
        plan_replay(8, 128, 8)
    with pytest.raises(ConfigError, match="second faulty group = 6"):
        plan_replay(4, 6).suspects(0, 6)


@pytest.mark.parametrize("failure_ratio", [0.00117, 0.0012, 0.00125])
def test_the_papers_standbys(failure_ratio: float) -> None:
    assert [standby_count(machines, failure_ratio) for machines in (128, 256, 512, 1024)] == [2, 2, 3, 4]


@pytest.mark.parametrize("failure_ratio", [0.00115, 0.00127])
def test_other_rates_give_other_standbys(failure_ratio: float) -> None:
    assert [standby_count(machines, failure_ratio) for machines in (128, 256, 512, 1024)] != [2, 2, 3, 4]


@given(st.integers(1, 300), st.floats(0, 1), st.floats(0.01, 0.999))
def test_standbys_are_those_of_the_binomial(machines: int, failure_ratio: float, quantile: float) -> None:
    from scipy.stats import binom

    found = standby_count(machines, failure_ratio, quantile)

    assert binom.cdf(found, machines, failure_ratio) >= quantile - 1e-9
    assert found == 0 or binom.cdf(found - 1, machines, failure_ratio) < quantile + 1e-9


@pytest.mark.parametrize("arguments", [(0, 0.1, 0.99), (10, 1.5, 0.99), (10, -0.1, 0.99), (10, 0.1, 1.0)])
def test_standbys_of_nonsense(arguments: tuple[int, float, float]) -> None:
    with pytest.raises(ConfigError):
        standby_count(*arguments)


PAPER = parse_layout("tp=2,pp=4,dp=4", 2)


def test_the_papers_hang_evicts_one_pipeline() -> None:
    plan = over_evict(PAPER, (12, 13, 14, 15))
    assert plan is not None

    assert (plan.dimension, plan.machines, plan.healthy_count) == ("pp", (12, 13, 14, 15), 0)


def test_two_bad_machines_of_a_pipeline_of_eight_cost_six_healthy_ones() -> None:
    plan = over_evict(parse_layout("tp=8,pp=8,dp=150", 8), (17, 19))
    assert plan is not None
    assert (plan.dimension, len(plan.machines), plan.healthy_count) == ("pp", 8, 6)


def test_outliers_that_no_small_group_holds_go_to_the_checks() -> None:
    assert over_evict(PAPER, (0, 5)) is None
    assert over_evict(PAPER, (12, 13), most_machines=3) is None


def test_the_smallest_group_goes() -> None:
    plan = over_evict(parse_layout("tp=4,pp=8,dp=2", 2), (0, 1))
    assert plan is not None

    assert (plan.dimension, plan.machines) == ("tp", (0, 1))


def test_rounds_are_added_up() -> None:
    plan = vote_of_rounds(PAPER, [(12, 13), (3,), (14,), (), (3, 13)])
    assert plan is not None

    assert (plan.dimension, plan.machines, plan.outliers) == ("pp", (12, 13, 14, 15), (12, 13, 14))


@pytest.mark.parametrize("outliers", [(), (16,), (-1,)])
def test_outliers_of_nonsense(outliers: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError):
        over_evict(PAPER, outliers)


def test_the_papers_backup() -> None:
    plan = plan_backup(parse_layout("tp=2,dp=2,pp=4", 2))

    assert plan.shares_no_group
    assert [plan.peers[rank] for rank in (8, 9, 2, 3)] == [2, 3, 8, 9]


SIZES = st.integers(1, 5)


@given(SIZES, SIZES, SIZES, st.permutations(["tp", "pp", "dp"]), st.integers(1, 4))
def test_no_eviction_of_one_group_takes_both_copies(
    tp: int, pp: int, dp: int, order: list[str], per_machine: int
) -> None:
    sizes = {"tp": tp, "pp": pp, "dp": dp}
    if tp * pp * dp % per_machine or tp * pp * dp == per_machine:
        return
    layout = Layout({name: sizes[name] for name in order}, per_machine)
    plan = plan_backup(layout)

    assert sorted(plan.peers) == list(range(layout.rank_count)), "each rank keeps one copy"
    for rank, peer in enumerate(plan.peers):
        here, there = layout.machine_of(rank), layout.machine_of(peer)
        assert here != there
        if plan.shares_no_group:
            for name, size in sizes.items():
                if size > 1:
                    assert not any({here, there} <= group for group in layout.machine_groups(name))


@pytest.mark.parametrize(("pp", "dp"), list(product((2, 3, 4, 8), (2, 3, 4, 6))))
def test_two_dimensions_beyond_a_machine_always_share_no_group(pp: int, dp: int) -> None:
    assert plan_backup(Layout({"tp": 8, "pp": pp, "dp": dp}, 8)).shares_no_group


def test_one_dimension_takes_the_neighbouring_machine() -> None:
    plan = plan_backup(parse_layout("dp=32", 8))

    assert not plan.shares_no_group
    assert [plan.peers[rank] for rank in (0, 8, 31)] == [8, 16, 7]
    with pytest.raises(ConfigError):
        plan_backup(parse_layout("dp=8", 8))


@pytest.mark.parametrize("text", ["", "tp", "tp=0", "tp=2,tp=2", "xp=2", "tp=-1", "tp=x"])
def test_a_layout_of_nonsense(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_layout(text)


def test_coordinates_and_ranks_are_inverse() -> None:
    for rank in range(PAPER.rank_count):
        assert PAPER.rank_at(PAPER.coordinates(rank)) == rank
    for name, size in PAPER.sizes.items():
        groups = list(PAPER.groups(name))
        assert {len(group) for group in groups} == {size}
        assert sorted(rank for group in groups for rank in group) == list(range(PAPER.rank_count))
