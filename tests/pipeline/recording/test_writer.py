"""What is written is read again, value by value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from tests.pipeline.recording.kit import START_NS, manifest
from tocsin.pipeline.lab.simulation.case import draw_case
from tocsin.pipeline.recording.reader import read_recording
from tocsin.pipeline.recording.tables import (
    NULL_MASKS,
    TABLES,
    Column,
    ColumnSpec,
    Manifest,
    Recording,
    TableSpec,
    Text,
)
from tocsin.pipeline.recording.writer import write_dump, write_recording
from tocsin.schemas.errors import RecordingError

MANIFEST = Manifest("job", 3, START_NS, START_NS + 10**10, 2.0, {"by": "me"}, "east")
WORDS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8)


def values(spec: ColumnSpec, count: int) -> st.SearchStrategy[Any]:
    if spec.kind == "binary":
        return st.lists(st.binary(max_size=5), min_size=count, max_size=count)
    if spec.kind == "text":
        words = st.sampled_from(spec.choices) if spec.choices else WORDS
        return st.lists(words, min_size=count, max_size=count).map(Text.of)
    if spec.kind.startswith("float"):
        wide = 32 if spec.kind == "float32" else 64
        low = None if spec.low is None else float(spec.low)
        high = spec.high
        floats = st.floats(low, high, width=wide, allow_nan=low is None, allow_infinity=low is None)  # type: ignore[arg-type]
        return st.lists(floats, min_size=count, max_size=count).map(lambda found: np.array(found, spec.kind))
    limits = np.iinfo(spec.kind)
    most = limits.max if spec.high is None else int(spec.high)
    ints = st.integers(limits.min if spec.low is None else spec.low, most)
    return st.lists(ints, min_size=count, max_size=count).map(lambda found: np.array(found, spec.kind))


@st.composite
def tables(draw: st.DrawFn, spec: TableSpec) -> dict[str, Column]:
    count = draw(st.integers(0, 6))
    columns = {c.name: draw(values(c, count)) for c in spec.columns if c.required or draw(st.booleans())}
    if spec.time:
        columns[spec.time] = np.sort(columns[spec.time])
    return columns


def plain(column: Column) -> object:
    return column.to_list() if isinstance(column, Text) else column if isinstance(column, list) else column.tobytes()


@settings(max_examples=15)
@given(data=st.data())
@pytest.mark.parametrize("name", list(TABLES))
def test_every_table_round(tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject) -> None:
    columns = data.draw(tables(TABLES[name]))
    folder = tmp_path_factory.mktemp("r") / "r"
    write_recording(folder, Recording(MANIFEST, {name: columns}))
    read = read_recording(folder)

    assert read.manifest == MANIFEST
    found = {key: plain(column) for key, column in read.tables[name].items() if key not in NULL_MASKS.values()}
    assert found == {key: plain(column) for key, column in columns.items()}


@pytest.mark.parametrize("kind", ["power_cap", "nan_gradient"])
def test_a_simulated_case_round(tmp_path_factory: pytest.TempPathFactory, kind: str) -> None:
    recording = draw_case(2, 4, kind, duration_seconds=120.0).recording()
    folder = tmp_path_factory.mktemp("r") / "r"
    write_recording(folder, recording)
    read = read_recording(folder)

    assert read.manifest == recording.manifest
    assert read.truth == recording.truth
    assert read.user_metrics == recording.user_metrics
    for name, columns in recording.tables.items():
        for key, column in columns.items():
            assert plain(read.tables[name][key]) == plain(column), (name, key)


def test_a_table_that_lacks_a_column_is_refused(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("r") / "r"
    with pytest.raises(RecordingError, match=r"topology\.parquet, column host: the required column is missing"):
        write_recording(folder, Recording(MANIFEST, {"topology": {"rank": np.array([0], np.int32)}}))

    assert not (folder / "manifest.json").exists()


def test_null_and_nan_of_the_loss_stay_apart(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("r") / "r"
    steps: dict[str, Column] = {
        "ts_ns": np.full(2, manifest()["start_ns"], np.int64),
        "rank": np.array([0, 1], np.int32),
        "step": np.array([1, 1], np.int64),
        "duration_seconds": np.array([0.5, 0.5]),
        "loss": np.array([np.nan, np.nan]),
        "loss_is_null": np.array([True, False]),
    }
    write_recording(folder, Recording(MANIFEST, {"steps": steps}))
    loss = parquet.read_table(folder / "steps.parquet").column("loss")

    assert [loss[0].as_py() is None, loss[1].as_py() is None] == [True, False]


@pytest.mark.parametrize(("mode", "wanted"), [(None, 0o600), (0o755, 0o640), (0o2750, 0o640)])
def test_a_recording_is_open_to_whom_its_folder_is_open_and_never_to_all(
    tmp_path: Path, mode: int | None, wanted: int
) -> None:
    """It holds what programs printed; an existing folder keeps its group and mode."""
    folder = tmp_path / "recording"
    if mode is not None:
        folder.mkdir()
        folder.chmod(mode)
    recording = draw_case(2, 4, "power_cap", duration_seconds=120.0).recording()
    write_recording(folder, recording)
    write_dump(folder, 0, b"dump")

    modes = {path.stat().st_mode & 0o777 for path in folder.rglob("*") if path.is_file()}
    assert all(found & ~wanted == 0 for found in modes)
    assert folder.stat().st_mode & 0o7777 == (mode or 0o700)
