"""Traces of operations and their descriptions, read from files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.models.whatif.plain import Layout
from tests.models.whatif.traces import Effects, make
from tocsin.models.whatif.scenarios import model_of, slowdowns
from tocsin.models.whatif.trace import OpTrace
from tocsin.pipeline.recording.op_trace import read_op_trace, read_trace_meta
from tocsin.schemas.errors import ConfigError, RecordingError

NAMES = ("dp_rank", "stage", "rank", "step", "seq_id", "mc", "mb_id", "gmc")


def table_of(trace: OpTrace) -> pa.Table:
    """The trace in the columns and types of the public ones."""
    columns = {name: pa.array(getattr(trace, name)) for name in NAMES}
    columns["optype"] = pa.array([trace.words[code] for code in trace.optype]).dictionary_encode()
    columns["start_ts"] = pa.array(trace.start_seconds.astype(np.float32))
    columns["duration"] = pa.array(trace.duration_seconds.astype(np.float32))
    return pa.table(columns)


@pytest.fixture(scope="module")
def trace() -> OpTrace:
    return make(Layout(2, 2, vpp=2), Effects(stages={1: 1.4}), 1, step_count=2).trace


@pytest.fixture(scope="module")
def file(trace: OpTrace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "trace.parquet"
    pq.write_table(table_of(trace), path)
    return path


def ratio(trace: OpTrace) -> float:
    return slowdowns(model_of(trace)).slowdown_ratio


def test_what_is_read_is_what_was_written(trace: OpTrace, file: Path) -> None:
    found = read_op_trace(file)

    assert ratio(found) == ratio(trace)
    for name in NAMES:
        assert getattr(found, name).tolist() == getattr(trace, name).tolist()


@pytest.mark.parametrize("name", ["seq_id", "gmc", "mb_id"])
def test_columns_that_can_be_made_up_for_may_be_missing(
    name: str, trace: OpTrace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.parquet"
    pq.write_table(table_of(trace).drop_columns([name]), path)

    assert ratio(read_op_trace(path)) == pytest.approx(ratio(trace), abs=1e-6)


@pytest.mark.parametrize("name", ["dp_rank", "stage", "step", "optype", "start_ts", "duration"])
def test_columns_that_are_needed_are_named(name: str, trace: OpTrace, tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    pq.write_table(table_of(trace).drop_columns([name]), path)

    with pytest.raises(RecordingError, match=f"trace.parquet, column {name}: the required column is missing"):
        read_op_trace(path)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_start_that_is_no_number_is_named(value: float, trace: OpTrace, tmp_path: Path) -> None:
    path, table = tmp_path / "trace.parquet", table_of(trace)
    starts = trace.start_seconds.copy()
    starts[7] = value
    pq.write_table(table.set_column(table.column_names.index("start_ts"), "start_ts", pa.array(starts)), path)

    with pytest.raises(RecordingError, match=r"column start_ts, row 7: (nan|inf): must be a number"):
        read_op_trace(path)


def test_a_file_that_is_no_trace_is_named(tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    path.write_bytes(b"tea")

    with pytest.raises(RecordingError, match=r"trace\.parquet"):
        read_op_trace(path)


def test_sizes_that_are_not_given_are_one(tmp_path: Path) -> None:
    path = tmp_path / "meta.yaml"
    path.write_text("trial_name: a\ndp_size: 2\npp_size: 3\n")
    found = read_trace_meta(path)

    assert (found.name, found.world_size, found.vpp_size) == ("a", 6, 1)


@pytest.mark.parametrize(
    ("text", "said"),
    [("dp_size: 0\npp_size: 1\n", "dp_size"), ("pp_size: 1\n", "dp_size"), ("- 1\n", "meta.yaml"), ("", "meta.yaml")],
)
def test_a_description_that_makes_no_sense_is_refused(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "meta.yaml"
    path.write_text(text)

    with pytest.raises(ConfigError, match=said):
        read_trace_meta(path)
