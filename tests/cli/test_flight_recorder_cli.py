"""``tocsin flight-recorder`` as an outside program calls it."""

import json
from pathlib import Path

import pytest

from tests.models import hang_cases as cases
from tocsin.cli.main import main


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, data in cases.files_of(cases.strike("cpu_stall", 5, 30, ahead=6)):
        (tmp_path / name).write_bytes(data)
    return tmp_path


def test_json_is_one_object_with_the_keys_of_the_contract(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["flight-recorder", str(folder), "--json"]) == 0
    line = json.loads(capsys.readouterr().out)

    assert set(line) == {"fault", "culprits", "groups", "reason", "missing_ranks", "evidence"}
    assert line["fault"] == "hang"
    assert line["culprits"] == [5]
    assert line["reason"] == "never_arrived"


def test_text_names_the_rank_first(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["flight-recorder", str(folder)]) == 0

    assert capsys.readouterr().out.startswith("rank 5 holds up the job (never_arrived)\n")


def test_text_says_when_there_is_no_culprit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "dump_0").write_text('{"version": "2.10"}')
    assert main(["flight-recorder", str(tmp_path)]) == 0

    assert capsys.readouterr().out.startswith("the dumps do not show a culprit (nobody_waits)")


def test_a_wrong_folder_is_one_line_and_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["flight-recorder", str(tmp_path / "nowhere")]) == 2
    error = capsys.readouterr().err

    assert "nowhere" in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("kept", range(16))
def test_one_dump_of_sixteen_names_nobody_and_says_what_is_missing(
    folder: Path, kept: int, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in folder.iterdir():
        if not path.name.endswith(f"_{kept}"):
            path.unlink()
    assert main(["flight-recorder", str(folder)]) == 0
    head, *evidence = capsys.readouterr().out.splitlines()
    assert head.startswith("the dumps do not show a culprit (")
    assert any("15 of 16 dumps are missing" in line for line in evidence)


def test_a_file_is_no_folder_and_called_a_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["flight-recorder", str(next(folder.iterdir()))]) == 2
    assert "it is a file" in capsys.readouterr().err
    assert main(["replay", str(next(folder.iterdir()))]) == 2
    assert "is a file" in capsys.readouterr().err
