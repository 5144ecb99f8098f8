"""Which hosts carry no rank of the job."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tocsin.pipeline.job.placement import Placement
from tocsin.schemas.records import JobKey, RankPlace, Topology


def placed(sizes: Mapping[str, int], world_size: int) -> Placement:
    """Return a placement of hosts with so many ranks each."""
    placement, rank = Placement(), 0
    for host, count in sizes.items():
        places = tuple(RankPlace(rank + at, host, world_size=world_size) for at in range(count))
        placement.take(Topology(JobKey("c", "j"), host, 1, places))
        rank += count
    return placement


@pytest.mark.parametrize(
    ("sizes", "world_size", "outside"),
    [
        pytest.param({"a": 8, "b": 8}, 16, {"x", "y"}, id="all ranks are known"),
        pytest.param({"a": 8, "b": 8}, 24, {"x", "y"}, id="one host is missing, two may be it"),
        pytest.param({"a": 8, "b": 8}, 32, set(), id="two hosts are missing"),
        pytest.param({"a": 8, "b": 3}, 17, {"x", "y"}, id="ranks of a known host are missing, too"),
        pytest.param({"a": 8, "b": 8}, 0, set(), id="nobody tells how many ranks there are"),
        pytest.param({"q": 8}, 8, set(), id="names differ"),
        pytest.param({}, 8, set(), id="nothing was announced"),
    ],
)
def test_hosts_without_a_rank(sizes: Mapping[str, int], world_size: int, outside: set[str]) -> None:
    assert placed(sizes, world_size).outsiders(["a", "b", "x", "y"]) == outside


def test_a_host_that_is_announced_later_carries_ranks_from_then_on() -> None:
    placement = placed({"a": 2, "b": 2}, 4)
    assert placement.outsiders(["a", "x"]) == {"x"}

    placement.take(Topology(JobKey("c", "j"), "x", 2, (RankPlace(2, "x", world_size=4),)))
    assert placement.outsiders(["a", "x"]) == frozenset()
