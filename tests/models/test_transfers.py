"""Which rank's groups are all slow, beside groups of the same kind that are spread over as many minipods."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pytest

from tocsin.models.transfers import GroupSpeed, SlowLink, find_slow_link

PAIRS = {f"tp{index}": (2 * index, 2 * index + 1) for index in range(4)}
ROWS = {f"dp{index}": tuple(range(index, 8, 2)) for index in range(2)}


def found(slow: Collection[str], pods: Mapping[int, str]) -> SlowLink | None:
    """The slow link among eight ranks whose slow groups take 0.3 s instead of 0.1 s.

    Args:
        slow: names of the slow groups.
        pods: rank -> minipod, without those that lie in "a".
    """
    groups = [
        GroupSpeed(ranks, name[:2], 0.3 if name in slow else 0.1, 0.1, frozenset(pods.get(rank, "a") for rank in ranks))
        for name, ranks in {**PAIRS, **ROWS}.items()
    ]
    return find_slow_link(groups, 2.0, 0.004)


@pytest.mark.parametrize("rank", range(8))
@pytest.mark.parametrize(
    "pods", [{}, {2: "b", 3: "b"}, dict.fromkeys(range(4), "b"), {rank: str(rank // 2) for rank in range(8)}]
)
def test_the_rank_of_all_slow_groups_is_named_wherever_equals_are_fine(rank: int, pods: dict[int, str]) -> None:
    link = found([f"tp{rank // 2}", f"dp{rank % 2}"], pods)
    assert link is not None
    assert (link.rank, link.peer_seconds) == (rank, 0.1)
    assert link.ratio == pytest.approx(3.0)


def test_groups_that_alone_cross_minipods_have_no_equals_and_name_nobody() -> None:
    assert found(["tp0", "dp0"], {0: "b"}) is None


@pytest.mark.parametrize("rank", [2, 3, 5, 6])
def test_a_rank_is_named_by_a_group_that_has_equals_and_one_that_is_spread_most(rank: int) -> None:
    link = found([f"tp{rank // 2}", f"dp{rank % 2}"], {0: "b"})
    assert link is not None
    assert link.rank == rank


@pytest.mark.parametrize("slow", [("tp1", "dp1", "dp0"), ("tp1", "dp1", "tp0"), ("dp0", "dp1")])
def test_several_groups_of_a_kind_that_became_slower_name_nobody(slow: tuple[str, ...]) -> None:
    assert found(slow, {0: "b"}) is None


@pytest.mark.parametrize(("rank", "other"), [(0, 7), (7, 0), (3, 4)])
def test_machines_alone_in_different_minipods_are_no_equals(rank: int, other: int) -> None:
    """The way to the minipod of one is congested, the way to the other's is not: nobody's link is slow for that."""
    assert found([f"tp{rank // 2}", f"dp{rank % 2}"], {rank: "b", other: "c"}) is None
