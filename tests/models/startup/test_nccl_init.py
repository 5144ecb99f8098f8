"""Communicators: the host that delayed the others, and ranks that have not finished or begun."""

import pytest

from tocsin.models.startup.nccl_init import CommunicatorInit, communicators
from tocsin.schemas.formats.nccl_init import InitEdge, InitLine

PARTS = {"kernels": 0.3, "alloc": 1.0, "bootstrap": 0.0, "connections": 0.5}


def ranks(
    late: dict[int, float] | None = None, *, count: int = 8, work: dict[int, float] | None = None, comm: str = "0x1"
) -> list[InitLine]:
    """Return the lines of a communicator; ``late``: rank -> seconds after the first; ``work``: its kernels' seconds."""
    late, work = late or {}, work or {}
    end = max((late.get(rank, 0.0) + work.get(rank, 0.3) for rank in range(count)), default=0.0) + 1.5
    lines = []
    for rank in range(count):
        process = f"n{rank}", "1", str(rank)
        kernels, total = work.get(rank, 0.3), end - late.get(rank, 0.0)
        parts = {**PARTS, "kernels": kernels, "bootstrap": total - 1.5 - kernels}
        lines += [
            InitLine(InitEdge.START, process, comm, rank, count),
            InitLine(InitEdge.COMPLETE, process, comm, rank, count),
            InitLine(InitEdge.TIMINGS, process, "", rank, count, total, parts),
        ]
    return lines


def only(lines: list[InitLine]) -> CommunicatorInit:
    (one,) = communicators(lines)
    return one


@pytest.mark.parametrize("lines", [ranks({3: 40.0}), ranks(work={3: 40.0})])
def test_a_host_that_comes_late_or_works_long_is_named(lines: list[InitLine]) -> None:
    assert [one.node for one in only(lines).late()] == ["n3"]
    assert only(lines).total_seconds == pytest.approx(41.5, abs=0.5)


def test_nobody_is_named_in_healthy_ones_of_few_hosts_or_without_timings() -> None:
    assert only(ranks({rank: 0.5 * rank for rank in range(8)})).late() == []
    assert only(ranks({3: 40.0}, count=4)).late() == []
    assert only([line for line in ranks({3: 40.0}) if line.edge is not InitEdge.TIMINGS]).late() == []


def test_a_rank_without_timings_may_be_the_late_one_and_nobody_is_named() -> None:
    lines = [line for line in ranks({3: 40.0}) if (line.rank, line.edge) != (3, InitEdge.TIMINGS)]
    assert only(lines).late() == []


def test_open_and_missing_ranks() -> None:
    lines = [line for line in ranks() if line.edge is InitEdge.START and line.rank != 5]
    assert only(lines).missing_ranks == [5]
    assert only(lines).open_ranks == [0, 1, 2, 3, 4, 6, 7]
    assert only(lines[:4]).missing_ranks == []


def test_communicators_without_a_name_are_told_apart_by_their_turn() -> None:
    found = communicators([*ranks(comm=""), *ranks({2: 30.0}, comm=""), *ranks(count=4, comm="")])

    assert [(one.rank_count, len(one.ranks)) for one in found] == [(8, 8), (8, 8), (4, 4)]
    assert [[late.node for late in one.late()] for one in found] == [[], ["n2"], []]
