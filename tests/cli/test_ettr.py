"""``tocsin ettr``: a table and JSON from a folder; an empty database says why it is empty."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.pipeline.stores.test_attempt_times import account
from tocsin.cli.ettr import short_length
from tocsin.cli.main import main
from tocsin.cli.paths import database_folder
from tocsin.pipeline.stores.chdb_store import ChdbStore


def test_the_table_and_json_of_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = ChdbStore(database_folder(tmp_path))
    store.migrate()
    try:
        assert main(["ettr", "--data", str(tmp_path)]) == 0
        assert "no account of any attempt yet" in capsys.readouterr().out
        store.write_attempt_times([account(0, 0, 100, productive=60, start_up=20, scheduling=10)])
        store.write_attempt_times([account(1, 100, 300, productive=150, recomputed=30)])
    finally:
        store.close()

    assert main(["ettr", "--data", str(tmp_path), "--job", "it's"]) == 0
    head, *lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert head[:4] == ["JOB", "ATTEMPT", "WALL", "PRODUCTIVE"]
    assert head[-2:] == ["UNATTRIBUTED", "ETTR"]
    assert lines[0] == ["it's", "0", "1m40s", "1m00s", "-", "20.0s", "-", "-", "-", "10.0s", "10.0s", "60.0", "%"]
    assert lines[1][:5] == ["it's", "1", "(runs)", "3m20s", "2m30s"]
    assert (lines[2][1:4], lines[2][-2]) == (["all", "5m00s", "3m30s"], "70.0")

    assert main(["ettr", "--data", str(tmp_path), "--json"]) == 0
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert (first["is_over"], second["is_over"]) == (True, False)
    assert (first["steps"], first["began"]) == (10, "2023-11-14T22:13:20.000000000Z")
    assert main(["ettr", "--data", str(tmp_path), "--job", "other"]) == 0
    assert "of job other" in capsys.readouterr().out


def test_durations_have_their_two_largest_units() -> None:
    assert [short_length(one) for one in (0, 0.25, 59.9, 61, 3720.4, 90_000)] == [
        *("-", "0.2s", "59.9s", "1m01s", "1h02m", "1d01h"),
    ]
