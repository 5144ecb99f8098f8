"""The tool that puts a drill's recording into compact form."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipeline.lab.backtest.trace_kit import traced
from tests.pipeline.lab.training.test_drills import with_operations
from tests.tools.record_drills import main
from tocsin.pipeline.lab.training.drills import unpack
from tocsin.pipeline.recording.reader import read_recording
from tocsin.pipeline.recording.writer import write_recording


def test_a_drill_becomes_a_file_that_is_read_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    drill = with_operations(traced(60, 3, slow_from=40))
    write_recording(tmp_path / "drill", drill)

    assert main([str(tmp_path / "drill"), "none-1", "--out", str(tmp_path)]) == 0
    file = tmp_path / "none-1.npz.xz"
    assert capsys.readouterr().out == f"{file}: {file.stat().st_size} bytes\n"
    unpack(file.read_bytes(), tmp_path / "again")
    assert read_recording(tmp_path / "again").truth == drill.truth


@pytest.mark.parametrize("name", ["nowhere", "metrics"])
def test_what_is_no_drill_is_named(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_recording(tmp_path / "metrics", traced(60, 3, tables=("topology",)))

    assert main([str(tmp_path / name), "none-1", "--out", str(tmp_path)]) == 2
    assert str(tmp_path / name) in capsys.readouterr().err
    assert not list(tmp_path.glob("*.xz"))
