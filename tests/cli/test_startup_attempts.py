"""``tocsin startup`` of recordings in which attempts run on other hosts, or with other ranks on the same ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.cli.test_startup import _found, _recording
from tests.models.startup.kit import NS, T0_NS, make_start
from tocsin.schemas.startup import Edge, StageMark

HOSTS = [f"n{at:03d}" for at in range(8)]
LATER_NS = 10_000 * NS
Places = Sequence[tuple[int, int, Sequence[str]]]
"""(attempt, from when on in ns, host of each pair of ranks)."""


def _folder(folder: Path, marks: Sequence[StageMark], places: Places, columns: Sequence[str]) -> Path:
    """Write a recording whose events state their attempt, and whose topology states these columns."""
    _recording(folder, tuple(marks), None)
    events = pq.read_table(folder / "events.parquet")
    attempts = [mark.attempt for mark in sorted(marks, key=lambda mark: mark.ts_ns)]
    pq.write_table(events.append_column("attempt", pa.array(attempts, pa.int32())), folder / "events.parquet")
    rows = [
        (from_ns, attempt, rank, host)
        for attempt, from_ns, hosts in places
        for rank, host in enumerate(host for host in hosts for _ in range(2))
    ]
    written = {
        "from_ns": pa.array([row[0] for row in rows], pa.int64()),
        "attempt": pa.array([row[1] for row in rows], pa.int32()),
        "rank": pa.array([row[2] for row in rows], pa.int32()),
        "host": [row[3] for row in rows],
        "gpu": pa.array([row[2] % 2 for row in rows], pa.int8()),
        "gpu_uuid": [""] * len(rows),
        **{name: pa.array([0] * len(rows), pa.int16()) for name in ("dp", "pp", "tp")},
        "leaf": [""] * len(rows),
        "minipod": [""] * len(rows),
    }
    left_out = {"from_ns", "attempt"} - set(columns)
    told = {name: column for name, column in written.items() if name not in left_out}
    pq.write_table(pa.table(told), folder / "topology.parquet")
    return folder


def _second(slow: dict[tuple[str, str], float] | None = None) -> list[StageMark]:
    """Return the marks of attempt 1."""
    made = make_start(8, attempt=1, seed=2, slow=slow)
    return [replace(mark, ts_ns=mark.ts_ns + LATER_NS) for mark in made.marks]


@pytest.mark.parametrize("announced", [-20, 0, 600])
@pytest.mark.parametrize("columns", [["from_ns", "attempt"], ["attempt"], ["from_ns"]])
def test_a_host_that_lost_its_ranks_is_left_out_of_the_next_attempt(
    columns: list[str], announced: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    moved = [replace(mark, node="n008") if mark.node == "n003" else mark for mark in _second()]
    begin_ns = min(mark.ts_ns for mark in moved if mark.stage == "env_setup")
    moved.append(StageMark(begin_ns, "env_setup", Edge.BEGIN, "n003", "0", "full", 1))
    others = [host if host != "n003" else "n008" for host in HOSTS]
    places = [(0, T0_NS, HOSTS), (1, T0_NS + LATER_NS + announced * NS, others)]

    first, second = _found(capsys, _folder(tmp_path / "r", [*make_start(8).marks, *moved], places, columns))["starts"]
    assert (first["outsiders"], second["outsiders"]) == ([], ["n003"])
    assert (first["stragglers"], second["stragglers"]) == ([], [])
    assert (first["processes"], second["processes"]) == (16, 16)


@pytest.mark.parametrize("columns", [["from_ns", "attempt"], ["from_ns"]])
@pytest.mark.parametrize("host", ["n003", "n008"])
def test_a_late_host_that_carries_ranks_of_the_attempt_is_named(
    host: str, columns: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slow = _second({("n003", "model_init"): 6.0})
    moved = [replace(mark, node=host) if mark.node == "n003" else mark for mark in slow]
    others = [one if one != "n003" else host for one in HOSTS]
    places = [(0, T0_NS, HOSTS), (1, T0_NS + LATER_NS, others)]

    _, second = _found(capsys, _folder(tmp_path / "r", [*make_start(8).marks, *moved], places, columns))["starts"]
    assert [one["name"] for one in second["stragglers"]] == [host]
    assert second["outsiders"] == []


def test_a_host_that_gives_its_ranks_away_within_an_attempt_is_still_compared_in_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = make_start(8, slow={("n003", "model_init"): 6.0})
    end_ns = max(mark.ts_ns for mark in made.marks)
    places = [(0, T0_NS, HOSTS), (0, end_ns + NS, [host if host != "n003" else "n008" for host in HOSTS])]

    (start,) = _found(capsys, _folder(tmp_path / "r", made.marks, places, ["from_ns", "attempt"]))["starts"]
    assert [one["name"] for one in start["stragglers"]] == ["n003"]
    assert start["processes"] == 16


@pytest.mark.parametrize("columns", [["from_ns", "attempt"], ["attempt"], ["from_ns"]])
@pytest.mark.parametrize("attempts", [(0, 1), (0, 0), (0,)])
def test_gpus_count_once_whatever_ranks_they_have_in_other_attempts(
    attempts: tuple[int, ...], columns: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The ranks are numbered anew in the next attempt, or within one; or only the first one's are told."""
    if len(attempts) > len(set(attempts)) and "from_ns" not in columns:
        pytest.skip("a rank cannot be on two hosts at once")
    told = zip(attempts, (T0_NS, T0_NS + LATER_NS), (HOSTS, HOSTS[::-1]), strict=False)
    marks = [*make_start(8).marks, *_second()]

    for start in _found(capsys, _folder(tmp_path / "r", marks, list(told), columns))["starts"]:
        assert start["processes"] == 16
        assert start["waste_gpu_seconds"] <= 16 * start["seconds"]
