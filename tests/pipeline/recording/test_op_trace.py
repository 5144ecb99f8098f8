"""Traces of operations and their descriptions, read from files."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.models.whatif.plain import Layout
from tests.models.whatif.traces import Effects, make
from tocsin.models.whatif.scenarios import model_of, slowdowns
from tocsin.models.whatif.trace import OpTrace, arrange
from tocsin.pipeline.recording.op_trace import check_fits, read_op_trace, read_trace_meta
from tocsin.schemas.errors import ConfigError, ManySettingsError, RecordingError

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


def notes(layout: Layout, text: str, folder: Path, *, kept: tuple[int, ...] = (), stride: int = 1) -> tuple[str, ...]:
    """What is told of a trace and a description; the trace may hold some data-parallel ranks only."""
    trace = make(layout, Effects(), 1, step_count=1).trace
    if kept:
        chosen = np.isin(trace.dp_rank, kept)
        trace = replace(trace, **{name: getattr(trace, name)[chosen] for name in trace.__slots__ if name != "words"})
    path = folder / "meta.yaml"
    path.write_text(text)
    return check_fits(read_trace_meta(path), arrange(replace(trace, rank=trace.rank * stride)), "t.parquet")


WHOLE = "trial_name: a\nrun_id: 0\ndp_size: {}\ndsp_size: {}\npp_size: {}\ntp_size: {}\nvpp_size: {}\nworld_size: {}\n"


@pytest.mark.parametrize(
    ("layout", "stride"),
    [
        (Layout(2, 4), 1),
        (Layout(2, 4, vpp=2, overlaps=True), 4),
        (Layout(3, 2, vpp=3, lacks_first_receive=True), 1),
        (Layout(4, 1), 8),
        (Layout(4, 1, overlaps=True), 1),
        (Layout(1, 2), 1),
        (Layout(1, 1), 1),
    ],
    ids=str,
)
def test_descriptions_as_public_traces_have_them_fit(layout: Layout, stride: int, tmp_path: Path) -> None:
    """With tensor parallelism, or ranks that share a sequence, one rank of each worker is recorded."""
    for dsp, tp in ((1, stride), (stride, 1)):
        world = layout.dp * layout.pp * stride
        text = WHOLE.format(layout.dp, dsp, layout.pp, tp, layout.vpp, world)
        assert notes(layout, text, tmp_path, stride=stride) == ()


def test_sizes_that_a_description_leaves_out_are_not_held_against_the_trace(tmp_path: Path) -> None:
    assert notes(Layout(2, 2, vpp=2), "dp_size: 2\npp_size: 2\n", tmp_path, stride=8) == ()


@pytest.mark.parametrize("kept", [(0, 1), (0, 2), (1, 3), (3,)])
def test_a_trace_of_some_data_parallel_ranks_is_told(kept: tuple[int, ...], tmp_path: Path) -> None:
    """The numbers of the ranks, or the gaps between them, show that the job has others."""
    (note,) = notes(Layout(4, 2), "dp_size: 4\npp_size: 2\n", tmp_path, kept=kept)
    assert note.startswith(f"t.parquet holds {len(kept)} of 4 data-parallel ranks")


@pytest.mark.parametrize(
    ("layout", "text", "said"),
    [
        (Layout(2, 2), "dp_size: 3\npp_size: 2\n", "meta.yaml:1: dp_size = 3: must be 2, the number of data-par"),
        (Layout(2, 1), "dp_size: 4\npp_size: 1\n", "meta.yaml:1: dp_size = 4: must be 2, the number of data-par"),
        (Layout(3, 2), "dp_size: 2\npp_size: 2\n", "meta.yaml:1: dp_size = 2: must be at least 3"),
        (Layout(2, 2), "dp_size: 2\npp_size: 1\n", "meta.yaml:2: pp_size = 1: must be 2, the number of stages"),
        (Layout(2, 1), "dp_size: 2\npp_size: 2\n", "meta.yaml:2: pp_size = 2: must be 1, the number of stages"),
        (Layout(2, 2), "dp_size: 2\npp_size: 2\nvpp_size: 2\n", "meta.yaml:3: vpp_size = 2: must be 1, the"),
        (Layout(2, 2, vpp=2), "dp_size: 2\npp_size: 2\nvpp_size: 1\n", "meta.yaml:3: vpp_size = 1: must be 2, the"),
        (Layout(2, 2, vpp=2), "dp_size: 2\npp_size: 2\nnum_microbatches: 8\n", "meta.yaml:3: num_microbatches = 8: mu"),
        (Layout(2, 2), "dp_size: 2\npp_size: 2\nnum_microbatches: 2\n", "num_microbatches = 2: must be 4, the num"),
    ],
)
def test_a_description_of_another_job_is_refused(layout: Layout, text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)) as error:
        notes(layout, text, tmp_path)
    assert str(error.value).endswith(", by t.parquet")


def test_a_rank_beyond_the_world_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"world_size = 4: must be more than 6, the largest rank, by t\.parquet"):
        notes(Layout(2, 2), "dp_size: 2\npp_size: 2\nworld_size: 4\n", tmp_path, stride=2)


def test_all_that_does_not_fit_is_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(ManySettingsError) as error:
        notes(Layout(2, 2), "dp_size: 1\npp_size: 4\nvpp_size: 2\n", tmp_path)
    assert [line.partition(" = ")[0].partition(": ")[2] for line in str(error.value).splitlines()] == [
        "dp_size",
        "pp_size",
        "vpp_size",
    ]
