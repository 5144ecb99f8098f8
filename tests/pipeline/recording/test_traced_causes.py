"""Causes that traced operations of a recording show: told by a replay, each with its guilty and innocent trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.models.whatif.plain import Layout
from tests.models.whatif.traces import Effects, make
from tests.pipeline.recording.kit import START_NS, manifest, write_folder
from tocsin.models.whatif.trace import OpTrace
from tocsin.pipeline.recording.replay import replay_folder
from tocsin.pipeline.recording.traced_causes import read_with_traces, traced_causes
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import Verdict

TRANSFERS = Effects(slow_transfers={"params-all-gather": (0.3, 40.0), "grads-reduce-scatter": (0.3, 40.0)})
PLAIN = Layout(4, 1, microbatches=3)
ONE_REPLICA = Layout(1, 2, microbatches=3)


def rows_of(trace: OpTrace) -> dict[str, pa.Array]:
    """A trace as the columns of ``ops.parquet``."""
    numbers = ("dp_rank", "stage", "rank", "step", "seq_id", "mc", "mb_id", "gmc")
    columns: dict[str, Any] = {name: pa.array(getattr(trace, name)) for name in numbers}
    columns["optype"] = pa.array([trace.words[code] for code in trace.optype.tolist()])
    columns["start_ts"] = pa.array(trace.start_seconds)
    columns["duration"] = pa.array(trace.duration_seconds)
    return columns


def recorded(folder: Path, layout: Layout, effects: Effects, step_count: int = 24) -> Path:
    """A recording of a minute whose operations were traced; its ranks have a host each."""
    ranks = range(layout.dp * layout.pp)
    tables = {
        "topology": {"rank": pa.array(ranks, pa.int32()), "host": pa.array([f"n{rank}" for rank in ranks])},
        "ops": rows_of(make(layout, effects, 1, step_count).trace),
    }
    return write_folder(folder, tables, reported=manifest(60))


def told(verdicts: list[Verdict]) -> set[tuple[str, str, int]]:
    return {(one.fault.value, one.cause, len(one.suspects)) for one in verdicts}


@pytest.mark.parametrize(
    ("layout", "effects", "cause"),
    [
        (PLAIN, TRANSFERS, "communication"),
        (ONE_REPLICA, Effects(stages={1: 1.8}), "stage_imbalance"),
        (PLAIN, Effects(data_sigma=0.5), "data_imbalance"),
    ],
    ids=["long transfers", "stage of one replica", "data"],
)
def test_what_traced_operations_show_is_told_and_nobody_is_accused(
    tmp_path: Path, layout: Layout, effects: Effects, cause: str
) -> None:
    verdicts = replay_folder(recorded(tmp_path, layout, effects))

    assert told(verdicts) == {("degraded", cause, 0)}
    assert verdicts[0].costs_ratio is not None
    assert verdicts[0].costs_ratio > 0.09
    assert cause in verdicts[0].evidence[0].text


@pytest.mark.parametrize(
    ("layout", "effects"),
    [(PLAIN, Effects()), (ONE_REPLICA, Effects()), (PLAIN, Effects(workers={(1, 0): 1.6}))],
    ids=["healthy", "healthy stages", "a slow machine alone"],
)
def test_a_trace_without_such_a_cause_tells_nothing(tmp_path: Path, layout: Layout, effects: Effects) -> None:
    assert replay_folder(recorded(tmp_path, layout, effects)) == []


def test_twelve_steps_are_one_window_and_too_few_to_tell(tmp_path: Path) -> None:
    folder = recorded(tmp_path, PLAIN, TRANSFERS, step_count=23)
    [window] = traced_causes(read_with_traces(folder))

    assert START_NS <= window.start_ns < window.first_end_ns < window.end_ns <= START_NS + 60 * NS_PER_SECOND
    assert window.found.costs["communication"] > 0.09
    assert replay_folder(folder) == []


def test_steps_that_are_no_trace_of_one_job_are_left_out_and_the_others_told(tmp_path: Path) -> None:
    folder = recorded(tmp_path, PLAIN, TRANSFERS, step_count=36)
    table = pq.read_table(folder / "ops.parquet")
    steps = np.unique(table["step"].to_numpy())
    words = np.where(table["step"].to_numpy() < steps[12], "lunch", table["optype"].to_numpy(zero_copy_only=False))
    pq.write_table(table.set_column(table.schema.get_field_index("optype"), "optype", [words]), folder / "ops.parquet")

    assert len(traced_causes(read_with_traces(folder))) == 2
    assert told(replay_folder(folder)) == {("degraded", "communication", 0)}


def test_the_study_s_trace_is_told_by_its_last_stage(tmp_path: Path, shared_data: Path) -> None:
    ranks = range(8)
    places = {
        "rank": pa.array(ranks, pa.int32()),
        "host": pa.array([f"n{rank}" for rank in ranks]),
        "pp": pa.array([rank // 2 for rank in ranks], pa.int16()),
    }
    folder = write_folder(tmp_path / "st", {"topology": places}, reported=manifest(71))
    (folder / "ops.parquet").write_bytes((shared_data / "whatif" / "trace-ST.parquet").read_bytes())
    verdicts = replay_folder(folder)

    assert told(verdicts) == {("degraded", "stage_imbalance", 0)}
    assert "stage 3" in verdicts[0].evidence[0].text
    assert verdicts[0].costs_ratio == pytest.approx(0.14, abs=0.02)


@pytest.mark.parametrize("column", ["start_ts", "duration"])
def test_operations_that_cannot_be_read_are_noted_and_the_rest_is_judged(tmp_path: Path, column: str) -> None:
    folder = recorded(tmp_path, PLAIN, TRANSFERS)
    table = pq.read_table(folder / "ops.parquet")
    values = table[column].to_numpy().copy()
    values[7] = np.nan
    pq.write_table(table.set_column(table.schema.get_field_index(column), column, [values]), folder / "ops.parquet")
    recording = read_with_traces(folder)

    assert [note for note in recording.notes if "ops.parquet" in note and column in note and "7" in note]
    assert traced_causes(recording) == ()
    assert replay_folder(folder) == []
