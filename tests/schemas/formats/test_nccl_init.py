"""NCCL's initialisation lines: versions, labels, and lines that are torn or of other programs."""

import pytest

from tocsin.schemas.formats.nccl_init import InitEdge, InitLine, TornLines, init_lines

OLD = "A03-R28:58077:58135 [0] NCCL INFO comm 0x7fdf rank 2 nranks 16 cudaDev 2 busId 64000 - Init COMPLETE"
START = (
    "n03:812:1257 [4] NCCL INFO ncclCommInitRankConfig comm 0x557fe rank 36 nranks 64 cudaDev 4 nvmlDev 4 busId 9b000 "
    "commId 0x5ae77eb5 - Init START"
)
TIMINGS = (
    "n03:812:1257 [4] NCCL INFO Init timings - ncclCommInitRankConfig: rank 36 nranks 64 total 3.82 (kernels 0.34, "
    "alloc 2.21, bootstrap 0.15, allgathers 0.01, topo 0.08, graphs 0.01, connections 1.03, rest 0.00)"
)


def read(*lines: str) -> tuple[list[InitLine], TornLines]:
    torn = TornLines()
    return list(init_lines(lines, torn)), torn


def test_the_lines_of_old_and_new_versions() -> None:
    (old, start, timings), torn = read(OLD, START, TIMINGS)

    assert (old.edge, old.host, old.comm, old.rank, old.rank_count) == (InitEdge.COMPLETE, "A03-R28", "", 2, 16)
    assert (start.edge, start.process, start.comm) == (InitEdge.START, ("n03", "812", "1257"), "0x5ae77eb5")
    assert (timings.total_seconds, timings.part_seconds["alloc"], len(timings.part_seconds)) == (3.82, 2.21, 8)
    assert torn.count == 0


@pytest.mark.parametrize(
    "before", ["12: ", "worker-0: ", "(pid=9, ip=10.0.0.1) ", "[2026-01-01 00:00:00] ", "\x1b[0m "]
)
@pytest.mark.parametrize("after", ["\n", "\r\n", "  "])
def test_labels_times_and_line_ends_change_nothing(before: str, after: str) -> None:
    assert read(before + START + after)[0] == read(START)[0]


def test_mixed_and_cut_lines_are_counted_and_name_nobody() -> None:
    mixed = START[:90] + OLD
    found, torn = read("epoch 1", mixed, START[40:], START.replace("rank 36", "rank 64"), TIMINGS[:-1], TIMINGS[:70])

    assert found == []
    assert (torn.count, torn.first_line) == (4, 2)


def test_other_lines_of_nccl_are_foreign() -> None:
    assert read("n03:812:1257 [4] NCCL INFO Connected all rings", "- Init START") == ([], TornLines())
