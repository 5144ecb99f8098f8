import json
from pathlib import Path

import pytest

from tocsin.cli.main import main
from tocsin.cli.simulate import host_range
from tocsin.pipeline.recording.reader import read_recording
from tocsin.schemas.errors import ConfigError

SHORT = ("--hosts", "3-4", "--minutes", "1")


def test_it_writes_recordings_with_truth_and_an_index(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"

    assert main(["simulate", str(out), "--seed", "4", "--cases", "4", *SHORT]) == 0
    index = json.loads((out / "index.json").read_text())
    assert [case["folder"] for case in index["cases"]] == [f"case-{number:04d}" for number in range(4)]
    assert sum(case["kind"] == "healthy" for case in index["cases"]) == 2
    for case in index["cases"]:
        truth = read_recording(out / case["folder"]).truth
        assert truth is not None
        assert bool(truth["faults"]) == (case["kind"] != "healthy")
    assert "4 recordings, 2 with a fault" in capsys.readouterr().out


def test_the_same_seed_writes_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        main(["simulate", str(tmp_path / name), "--cases", "2", *SHORT])
    files = sorted(path.relative_to(tmp_path / "one") for path in (tmp_path / "one").rglob("*") if path.is_file())

    assert files
    assert all((tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes() for file in files)


def test_a_kind_may_be_asked_for(tmp_path: Path) -> None:
    main(["simulate", str(tmp_path / "out"), "--cases", "2", "--kind", "power_cap", *SHORT])
    index = json.loads((tmp_path / "out" / "index.json").read_text())

    assert [case["kind"] for case in index["cases"]] == ["power_cap", "power_cap"]


def test_a_folder_that_holds_something_is_left_as_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").write_text("keep")

    assert main(["simulate", str(tmp_path), "--cases", "1", *SHORT]) == 2
    assert "holds something already" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    "wrong",
    [
        ("--cases", "0"),
        ("--hosts", "many"),
        ("--hosts", "9-3"),
        ("--hosts", "1"),
        ("--healthy-ratio", "2"),
        ("--minutes", "0"),
        ("--seed", "-1"),
        ("--kind", "gremlins"),
    ],
)
def test_wrong_arguments_are_explained_and_nothing_is_written(
    tmp_path: Path, wrong: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", str(tmp_path / "out"), *wrong]) == 2
    assert "must be" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_hosts_are_a_number_or_a_range() -> None:
    assert host_range("16") == (16, 16)
    assert host_range("4-64") == (4, 64)
    with pytest.raises(ConfigError):
        host_range("4-")
