"""Places of ranks as rows: what is written is read, and a very large job has none."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from tocsin.pipeline.core.arrays import dump_state, load_state
from tocsin.pipeline.job.place_columns import MOST_RANKS, places_of_rows, rows_of_places
from tocsin.schemas.records import RankPlace

hosts = st.sampled_from(("a", "b", "c"))
places = st.builds(
    RankPlace,
    rank=st.just(0),
    host=hosts,
    dp=st.integers(-1, 4_000),
    pp=st.integers(-1, 64),
    tp=st.integers(-1, 8),
)


@given(st.dictionaries(st.integers(0, 100_000), places, max_size=12))
def test_what_is_written_is_read(told: dict[int, RankPlace]) -> None:
    known = {
        rank: replace(one, rank=rank, leaf=f"leaf-{one.host}", minipod="" if one.host == "c" else "pod")
        for rank, one in told.items()
    }

    assert places_of_rows(load_state(dump_state(rows_of_places(known))), "places") == known


def test_a_host_that_tells_its_switches_for_some_ranks_only_has_them_for_all() -> None:
    told = {0: RankPlace(0, "a"), 1: RankPlace(1, "a", leaf="l", minipod="p"), 2: RankPlace(2, "a", leaf="l")}

    assert rows_of_places(told)["hosts"] == [["a", "l", "p"]]


def test_a_very_large_job_tells_none() -> None:
    told = {rank: RankPlace(rank, f"h{rank // 8}") for rank in range(MOST_RANKS + 1)}

    assert rows_of_places(told) == {"hosts": [], "ranks": []}
    del told[MOST_RANKS]
    assert len(rows_of_places(told)["ranks"]) == MOST_RANKS


def test_a_state_without_places_tells_none() -> None:
    assert places_of_rows(None, "places") == {}
