"""Arnold's spread of groups, compared with its definition on one-hot vectors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.models.placement.groups import (
    HostGroups,
    RankCoordinates,
    block_coordinates,
    groups_of_coordinates,
    host_groups,
)
from tocsin.models.placement.spares import rank_spares
from tocsin.models.placement.spread import job_spread, kind_spread, pods_touched, spread_of
from tocsin.schemas.kinds import GroupKind


def defined_spread(pods: list[int], width: int) -> int:
    """D as it is written: positions in which two of the one-hot vectors differ."""
    vectors = np.eye(width, dtype=int)[pods]
    return int((vectors.max(axis=0) != vectors.min(axis=0)).sum())


def aligned(rows: int, stages: int) -> dict[GroupKind, HostGroups]:
    """A job of rows x stages hosts with 8 GPUs each, tensor-parallel over the host."""
    return groups_of_coordinates(block_coordinates(rows * stages, 8, 8, stages))


@settings(max_examples=20, deadline=None)
@given(st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=6), min_size=1, max_size=6))
def test_spread_is_as_defined(groups: list[list[int]]) -> None:
    flat = np.array([pod for group in groups for pod in group])
    ends = np.cumsum([len(group) for group in groups]).tolist()
    made = host_groups((str(end), range(end - len(group), end)) for end, group in zip(ends, groups, strict=True))

    touched = pods_touched(made, flat)

    assert touched.tolist() == [len(set(group)) for group in groups]
    assert spread_of(touched).tolist() == [defined_spread(group, 5) for group in groups]
    found = kind_spread(made, flat)
    assert found.max_pod_count == max(len(set(group)) for group in groups)
    assert found.max_spread == max(defined_spread(group, 5) for group in groups)
    assert len(set(groups[found.worst_index])) == found.max_pod_count


def test_hosts_of_an_unknown_minipod_are_left_out() -> None:
    groups = host_groups([("a", [0, 1, 2]), ("b", [1])])

    assert pods_touched(groups, np.array([0, -1, 1])).tolist() == [2, 0]


def test_groups_of_coordinates_are_sets_of_hosts() -> None:
    groups = aligned(rows=3, stages=2)

    assert groups[GroupKind.PP].matrix() is not None
    assert [groups[GroupKind.PP].hosts_of(at).tolist() for at in range(3)] == [[0, 3], [1, 4], [2, 5]]
    assert [groups[GroupKind.DP].hosts_of(at).tolist() for at in range(2)] == [[0, 1, 2], [3, 4, 5]]
    assert groups[GroupKind.TP].sizes.tolist() == [1] * 6
    assert groups[GroupKind.PP].names[0] == "pp of dp 0, tp 0"


def test_two_data_parallel_ranks_of_one_host_are_one_pipeline_group() -> None:
    groups = groups_of_coordinates(block_coordinates(4, 8, 4, 2))  # rows = DP / (8 / TP) = 4 / 2

    assert groups[GroupKind.PP].sizes.tolist() == [2, 2]
    assert groups[GroupKind.DP].sizes.tolist() == [2, 2]


def test_groups_that_share_hosts_or_differ_in_size_are_no_matrix() -> None:
    assert host_groups([("a", [0, 1]), ("b", [1, 2])]).matrix() is None
    assert host_groups([("a", [0, 1]), ("b", [2])]).matrix() is None
    assert host_groups([]).matrix() is None


def test_one_moved_host_is_seen_and_its_group_named() -> None:
    groups = aligned(rows=4, stages=4)
    pod = np.tile([0, 0, 1, 1], 4)
    assert job_spread(groups, pod, 0.3).max_pods_pp == 1

    pod[9] = 0  # row 1, stage 2: its group stands in minipod 0
    assert job_spread(groups, pod, 0.3).max_pods_pp == 1
    pod[9] = 1
    after = job_spread(groups, pod, 0.3)

    assert after.max_pods_pp == 2
    assert groups[GroupKind.PP].names[after.kinds[GroupKind.PP].worst_index] == "pp of dp 1, tp 0"


def test_weights() -> None:
    spread = job_spread(aligned(rows=4, stages=4), np.tile([0, 0, 1, 1], 4), 0.25)

    assert (spread.max_pods_dp, spread.max_pods_pp) == (2, 1)
    assert spread.weighted_pods == pytest.approx(0.25 * 2 + 0.75 * 1)
    assert spread.weighted_spread == pytest.approx(0.25 * 2)  # D of one minipod is 0


@settings(max_examples=15, deadline=None)
@given(
    pod=st.lists(st.integers(0, 3), min_size=6, max_size=6),
    spares=st.lists(st.integers(0, 3), min_size=2, max_size=5),
    evicted=st.integers(0, 5),
    alpha=st.sampled_from([0.0, 0.3, 0.6, 1.0]),
)
def test_the_first_spare_has_the_least_weighted_spread(
    pod: list[int], spares: list[int], evicted: int, alpha: float
) -> None:
    groups = aligned(rows=3, stages=2)
    ranked = rank_spares(groups, np.array(pod), evicted, np.array(spares), alpha)

    def with_spare(at: int) -> float:
        changed = [spares[at] if host == evicted else where for host, where in enumerate(pod)]
        worst = {
            kind: max(defined_spread([changed[h] for h in of.hosts_of(g)], 4) for g in range(len(of.names)))
            for kind, of in groups.items()
        }
        return alpha * worst[GroupKind.DP] + (1 - alpha) * worst[GroupKind.PP]

    assert sorted(one.spare_index for one in ranked) == list(range(len(spares)))
    assert ranked[0].spread.weighted_spread == pytest.approx(min(map(with_spare, range(len(spares)))))
    for one in ranked:
        assert one.spread.weighted_spread == pytest.approx(with_spare(one.spare_index))


def test_coordinates_need_not_begin_at_zero() -> None:
    ranks = RankCoordinates(*(np.array(column) for column in ([0, 1, 2, 3], [4, 5, 4, 5], [7, 7, 8, 8], [-1] * 4)))

    assert groups_of_coordinates(ranks)[GroupKind.PP].names == ("pp of dp 4, tp -1", "pp of dp 5, tp -1")
