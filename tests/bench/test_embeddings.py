"""The arithmetic of the embeddings bench: who counts as found, as false, and at which line."""

from __future__ import annotations

import numpy as np

from tests.bench.bench_embeddings import LINES, Result, agreement, row_of
from tocsin.schemas.records import NS_PER_SECOND

TEN = LINES.index(10.0)


def result(seen: dict[str, tuple[int, int]], *, healthy: bool = False) -> Result:
    """Host -> (how many lines it crossed, in which second); n0 is at fault from 100 to 200 s."""
    crossings = {host: [second * NS_PER_SECOND] * count + [0] * (len(LINES) - count)
                 for host, (count, second) in seen.items()}  # fmt: skip
    suspects = {} if healthy else {"n0": (100 * NS_PER_SECOND, 200 * NS_PER_SECOND)}
    return Result({"mean": crossings}, suspects, 1.0)


def test_a_machine_is_found_where_it_crosses_the_line_while_the_fault_lasts_or_shortly_after() -> None:
    found, late, early = result({"n0": (TEN + 1, 130)}), result({"n0": (TEN + 1, 321)}), result({"n0": (TEN + 1, 99)})

    row = row_of([found, late, early], "mean", TEN)
    assert (row.hits, row.false, row.faults, row.delays) == (1, 2, 3, [30.0])
    assert row.f1_ratio == 2 / 6


def test_a_line_that_nobody_reaches_names_nobody() -> None:
    row = row_of([result({"n0": (TEN, 130)})], "mean", TEN)

    assert (row.hits, row.false, row.faults) == (0, 0, 1)


def test_only_healthy_cases_count_towards_the_budget() -> None:
    row = row_of([result({"n3": (TEN + 1, 130)}), result({"n3": (TEN + 1, 130)}, healthy=True)], "mean", TEN)

    assert (row.false, row.healthy_false) == (2, 1)


def test_both_distances_put_a_lone_outlier_on_top() -> None:
    hosts = [f"n{row}" for row in range(8)]
    embeddings = np.random.default_rng(0).normal(0.5, 0.01, (8, 8)).astype(np.float32)
    embeddings[5] += 0.3
    embeddings[2] = np.nan  # has no samples: is left out

    assert agreement({"m": embeddings}, hosts, "n5") == [(7, True, True)]
    assert agreement({"m": embeddings[:3]}, hosts[:3], "n1") == []
