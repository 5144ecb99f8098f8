"""What training is given: found, counted, and refused by file, field and value."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="training needs tocsin[train]")

from tests.pipeline.lab.backtest.test_minder_runner import recording
from tests.pipeline.lab.backtest.trace_kit import traced
from tests.pipeline.lab.training.kit import (
    NEVER,
    faulty,
    healthy,
    looked,
    unlabelled,
    with_values,
    written,
)
from tocsin.pipeline.lab.training.numbers import check_all_labelled, check_tables
from tocsin.schemas.errors import RecordingError

POWER = "gpu_power_watts"


def test_folders_that_hold_recordings_mean_all_of_them_each_once(tmp_path: Path) -> None:
    one, two = healthy(tmp_path / "all" / "b", 60), faulty(tmp_path / "all" / "a", 30, 60)
    lone = unlabelled(tmp_path / "lone", 60)

    data = looked(lone, tmp_path / "all", one)

    assert data.folders == [lone, two, one]
    assert data.labelled == [two, one]
    assert data.fault_count == 1
    assert data.machine_days == pytest.approx(3 * 6 * 60 / 86_400)
    assert data.described()["source"] == [str(lone), str(tmp_path / "all"), str(one)]


def test_the_fingerprint_is_of_the_bytes_wherever_they_lie(tmp_path: Path) -> None:
    healthy(tmp_path / "a", 60)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    (tmp_path / "b" / "verdicts.jsonl").write_text("answers are no data")
    faulty(tmp_path / "c", 30, 60)

    prints = [looked(tmp_path / name).described()["fingerprint"] for name in "abc"]

    assert prints[0] == prints[1] != prints[2]


def test_what_is_no_recording_is_said(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(RecordingError, match=r"empty: neither a recording .* nor a folder that holds recordings"):
        looked(tmp_path / "empty")
    with pytest.raises(RecordingError, match="gone: no such folder"):
        looked(tmp_path / "gone")


def test_a_recording_of_no_length_is_refused_by_file_and_field(tmp_path: Path) -> None:
    folder = healthy(tmp_path / "a", 60)
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "end_ns": manifest["start_ns"]}))

    with pytest.raises(RecordingError, match=rf"a: manifest.json, column end_ns: {manifest['start_ns']}: the same as"):
        looked(folder)


def test_a_broken_file_is_refused_by_name(tmp_path: Path) -> None:
    folder = healthy(tmp_path / "a", 60)
    data = (folder / "host_metrics.parquet").read_bytes()
    (folder / "host_metrics.parquet").write_bytes(data[: len(data) // 2])

    with pytest.raises(RecordingError, match=r"a: host_metrics.parquet: cannot be read as parquet"):
        looked(folder)


@pytest.mark.parametrize(("value", "reported"), [(math.inf, "inf"), (-math.inf, "-inf"), (-5.0, "-5"), (1e9, "1e+09")])
def test_samples_that_cannot_be_are_told_by_column_row_and_value(tmp_path: Path, value: float, reported: str) -> None:
    folder = with_values(tmp_path / "a", recording(60, NEVER), POWER, slice(7, 9), value)
    [member] = looked(folder).members

    [note] = [note for note in member.notes if POWER in note]
    assert f"host_metrics.parquet, column {POWER}, row 7: {reported} cannot be (0 to 4000); 2 of " in note
    assert note.endswith("samples cannot and are left out")


def test_thresholds_need_the_truth_of_each_recording(tmp_path: Path) -> None:
    data = looked(healthy(tmp_path / "a", 60), unlabelled(tmp_path / "b", 60), unlabelled(tmp_path / "c", 60))

    with pytest.raises(RecordingError, match=r"truth.json: missing in .*/b \(and in 1 others\): without it nobody"):
        check_all_labelled(data)


def test_a_detector_with_nothing_to_look_at_is_refused(tmp_path: Path) -> None:
    job = recording(60, NEVER)
    columns = {
        name: np.full(len(values), np.nan, np.float32) if getattr(values, "dtype", None) == np.float32 else values
        for name, values in job.tables["host_metrics"].items()
    }
    blank = dataclasses.replace(job, tables={"host_metrics": columns})
    data = looked(written(tmp_path / "blank", blank))

    with pytest.raises(RecordingError, match=r"steps.parquet: not a row in all 1 recordings: steps looks at nothing"):
        check_tables(data, "steps")
    for detector in ("entropy", "bilstm"):
        with pytest.raises(RecordingError, match=r"steps.parquet or collectives.parquet or ops.parquet: not a row"):
            check_tables(data, detector)
    check_tables(looked(written(tmp_path / "traced", traced(20, 1, tables=("ops",)))), "entropy")
    with pytest.raises(RecordingError, match=r"host_metrics.parquet: not a sample of a metric"):
        check_tables(data, "peers")
