"""``tocsin replay`` and ``tocsin score`` as commands: files, messages, exit codes."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from tests.pipeline.recording.kit import good_tables, manifest, write_folder
from tocsin.cli.main import main
from tocsin.pipeline.recording.tables import Recording
from tocsin.pipeline.recording.writer import write_recording
from tocsin.pipeline.simulation.case import draw_case


@cache
def case() -> Recording:
    return draw_case(2, 4, "machine_unreachable", duration_seconds=300.0).recording()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_recording(tmp_path / "good", case())
    return tmp_path / "good"


def lines_in(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_it_writes_verdicts_into_the_folder_and_says_what_is_absent(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(folder)]) == 0
    told = capsys.readouterr()

    assert lines_in(folder / "verdicts.jsonl")
    assert told.out.startswith(f"{folder}: ")
    assert "judged without collectives" in told.out
    assert told.err == ""  # no progress bar: this is no terminal


def test_again_and_shuffled_the_same_bytes(folder: Path) -> None:
    main(["replay", str(folder)])
    first = (folder / "verdicts.jsonl").read_bytes()
    for more in ([], ["--shuffle", "5"]):
        assert main(["replay", str(folder), *more]) == 0
        assert (folder / "verdicts.jsonl").read_bytes() == first


def test_a_file_of_ones_own(folder: Path, tmp_path: Path) -> None:
    assert main(["replay", str(folder), "--verdicts", str(tmp_path / "v")]) == 0

    assert lines_in(tmp_path / "v")
    assert not (folder / "verdicts.jsonl").exists()


def test_nothing_but_a_manifest_gives_an_empty_file(tmp_path: Path) -> None:
    write_folder(tmp_path, {})

    assert main(["replay", str(tmp_path)]) == 0
    assert (tmp_path / "verdicts.jsonl").read_bytes() == b""


def test_a_terminal_gets_a_progress_bar(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)

    assert main(["replay", str(folder)]) == 0
    assert "good [##############################] 100%" in capsys.readouterr().err


def test_one_bad_folder_does_not_stop_the_others(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = good_tables()
    del tables["steps"]["rank"]
    bad = write_folder(tmp_path / "bad", tables)

    assert main(["replay", str(bad), str(folder), "--jobs", "2"]) == 2
    assert f"tocsin replay: {bad}: steps.parquet, column rank: the required" in capsys.readouterr().err
    assert lines_in(folder / "verdicts.jsonl")
    assert not (bad / "verdicts.jsonl").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--jobs", "0"], "at least 1"),
        (["--speed", "-1"], "0 (as fast as possible) or more"),
    ],
)
def test_wrong_arguments(folder: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(folder), *arguments]) == 2
    assert words in capsys.readouterr().err


def test_one_file_for_two_folders_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(folder), str(folder), "--verdicts", "v"]) == 2
    assert "one folder only" in capsys.readouterr().err


def test_no_such_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(tmp_path / "absent")]) == 2
    assert "no such folder" in capsys.readouterr().err


def test_speed_paces_the_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    now = [0.0]
    monkeypatch.setattr("tocsin.cli.replay.time.monotonic", lambda: now[0])

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr("tocsin.cli.replay.time.sleep", sleep)
    write_folder(tmp_path, good_tables(), told=manifest(20))

    assert main(["replay", str(tmp_path), "--speed", "2"]) == 0
    assert sum(slept) == pytest.approx(10.5)  # 20 s and the lateness


def test_score_prints_a_table_and_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["replay", str(folder)])

    assert main(["score", str(folder)]) == 0
    table = capsys.readouterr().out
    assert "precision 1.000  recall 1.000  F1 1.000" in table
    assert "machine_unreachable" in table

    assert main(["score", str(folder), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["all"]["hits"] == 1
    assert told["kinds"]["machine_unreachable"]["hits"] == 1
    assert told["all"]["false_accusations_per_machine_day"] == 0.0


def test_score_without_verdicts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["score", str(folder)]) == 2
    assert "run 'tocsin replay' first" in capsys.readouterr().err
