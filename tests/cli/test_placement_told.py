"""``tocsin placement JOB`` from the states that a distributed engine writes to its database."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tocsin.cli.main import main
from tocsin.cli.placement_input import Wanted, read_told_job
from tocsin.pipeline.job.place_columns import rows_of_places
from tocsin.schemas.errors import ConfigError, RecordingError, TocsinError
from tocsin.schemas.kinds import GroupKind
from tocsin.schemas.records import RankPlace

WANTED = Wanted(None, "", None)


class Database:
    """Answers the query for states."""

    def __init__(self, *states: dict[str, Any]) -> None:
        self.states = states

    def __call__(self, _sql: str, _form: str) -> bytes:
        rows = (
            {
                "ts_ns": str(time.time_ns()),
                "known": True,
                "job_id": "llm",
                "status_json": json.dumps({"hosts": {}, "ranks": {}, "verdicts": [], **state}),
                "models_json": "[]",
            }
            for state in self.states
        )
        return "\n".join(map(json.dumps, rows)).encode()


def rows(*, minipod: str = "pod{}", dp: int = 1) -> dict[str, Any]:
    """Two stages of two replicas, a rank a host; each stage stands in one minipod."""
    return rows_of_places(
        {
            rank: RankPlace(
                rank, f"h{rank}", dp=rank % 2 if dp else -1, pp=rank // 2, tp=0, minipod=minipod.format(rank // 2)
            )
            for rank in range(4)
        }
    )


def test_the_newest_attempt_is_measured() -> None:
    ask = Database({"attempt": 1, "places": rows(minipod="old")}, {"attempt": 2, "places": rows()})

    found = read_told_job("llm", ask, None, WANTED)

    assert (found.name, found.ranks, found.hosts) == ("llm attempt 2", 4, ("h0", "h1", "h2", "h3"))
    assert (found.level, found.pods) == ("minipod", ("pod0", "pod1"))
    assert {kind: len(groups.names) for kind, groups in found.groups.items()}[GroupKind.DP] == 2


@pytest.mark.parametrize(
    ("states", "error", "text"),
    [
        ([], ConfigError, "a job whose state is in the database"),
        ([{"attempt": 0}], RecordingError, "its state tells no places"),
        ([{"attempt": 0, "places": rows_of_places({})}], RecordingError, "its state tells no places"),
        ([{"attempt": 0, "places": rows(dp=0)}], RecordingError, "tell no data-parallel coordinate"),
        ([{"attempt": 0, "places": rows(minipod="")}], RecordingError, "the leaf of 'h0' is not known (4 of 4 hosts)"),
    ],
    ids=["unknown", "older engine", "no places", "no coordinates", "no switches"],
)
def test_what_cannot_be_answered_is_said(states: list[dict[str, Any]], error: type[TocsinError], text: str) -> None:
    with pytest.raises(error, match=text.replace("(", r"\(").replace(")", r"\)")):
        read_told_job("llm", Database(*states), None, WANTED)


def test_a_folder_and_a_server_are_two_engines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["placement", "llm", "--data", str(tmp_path), "--clickhouse", "clickhouse://default@127.0.0.1:1"]) == 2
    assert "they are two databases" in capsys.readouterr().err
