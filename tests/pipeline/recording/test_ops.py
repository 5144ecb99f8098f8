"""Operation traces: read, cut into windows, and what the trace detectors say of the real one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.pipeline.recording.kit import START_NS, Rows, manifest, seconds, write_folder
from tocsin.models.entropy import EntropyConfig, against_peers, measure, scores
from tocsin.models.op_features import feature_count, sum_up
from tocsin.models.rank_past import RankPast
from tocsin.pipeline.recording.ops import ranks_of, read_ops, read_with_ops, step_clock, step_windows, vocabulary_of
from tocsin.pipeline.recording.reader import read_recording
from tocsin.schemas.errors import RecordingError
from tocsin.schemas.reasons import Reason
from tocsin.schemas.records import NS_PER_SECOND

CONFIG = EntropyConfig()


def trace(folder: Path, **changes: pa.Array) -> Path:
    """Two stages of four ranks, eight steps, two operations a step."""
    rows = [(rank % 4, rank // 4, rank, step, op) for step in range(8) for rank in range(8) for op in range(2)]
    dp, stage, ranks, steps, ops = (np.array(column) for column in zip(*rows, strict=True))
    columns = {
        "dp_rank": pa.array(dp, pa.int8()),
        "stage": pa.array(stage, pa.int8()),
        "rank": pa.array(ranks, pa.int16()),
        "step": pa.array(steps, pa.int64()),
        "optype": pa.array([("forward-compute", "backward-compute")[op] for op in ops]),
        "start_ts": pa.array(np.zeros(len(rows)), pa.float32()),
        "duration": pa.array(np.full(len(rows), 0.1), pa.float32()),
        **changes,
    }
    path = folder / "ops.parquet"
    pq.write_table(pa.table(columns), path)
    return path


def test_windows_of_steps_hold_one_stage_each(tmp_path: Path) -> None:
    columns = read_ops(trace(tmp_path))
    words = vocabulary_of(columns)
    windows = list(step_windows(columns, words, 4))

    assert words.words == ("backward-compute", "forward-compute")
    assert [window.stage for window in windows] == [0, 1, 0, 1]
    assert [np.unique(window.rows.ranks).tolist() for window in windows] == [[0, 1, 2, 3], [4, 5, 6, 7]] * 2
    assert sum_up(windows[0].rows, words.class_count).features.shape == (4, feature_count(3))


@pytest.mark.parametrize("value", [-1.0, float("inf"), float("nan")])
def test_a_duration_that_cannot_be_is_an_error_that_names_file_column_and_row(tmp_path: Path, value: float) -> None:
    durations = np.full(128, 0.1)
    durations[77] = value
    path = trace(tmp_path, duration=pa.array(durations, pa.float32()))

    with pytest.raises(RecordingError, match=r"ops.parquet, column duration, row 77"):
        read_ops(path)


def test_a_file_without_operation_types_is_refused(tmp_path: Path) -> None:
    path = trace(tmp_path)
    table = pq.read_table(path)
    pq.write_table(table.drop_columns(["optype"]), path)

    with pytest.raises(RecordingError, match="optype"):
        read_ops(path)


class TestTheRealTrace:
    """whatif/trace-ST: a long last stage, nobody faulty. Two ranks a stage: no peers, so nobody is judged."""

    def test_two_ranks_a_stage_are_no_peers(self, shared_data: Path) -> None:
        columns = read_ops(shared_data / "whatif" / "trace-ST.parquet")
        words = vocabulary_of(columns)
        windows = [sum_up(one.rows, words.class_count) for one in step_windows(columns, words, 4)]

        assert len(windows) == 8 * 4
        assert {measure(one.seconds, one.counts, CONFIG).reason for one in windows} == {Reason.TOO_FEW_PEERS}

    def test_without_stages_the_long_last_stage_was_always_there_and_alarms_nobody(self, shared_data: Path) -> None:
        columns = dict(read_ops(shared_data / "whatif" / "trace-ST.parquet"))
        columns["stage"] = np.zeros(len(columns["rank"]), np.int32)
        words = vocabulary_of(columns)
        windows = [sum_up(one.rows, words.class_count) for one in step_windows(columns, words, 4)]
        measured = [measure(one.seconds, one.counts, CONFIG) for one in windows]
        relative = np.array([against_peers(one) for one in measured])

        past, found = RankPast(4, 12), []
        for window, one, now in zip(windows, measured, relative, strict=True):
            counts, means, own = past.look(window.ranks)
            if counts.min() >= 4:
                found.append(scores(now, means, np.maximum(own, one.floors), CONFIG))
            past.learn(window.ranks, now)

        assert np.max(found) < 1, np.round(found, 2)


class TestBesideTheRest:
    """Backtests and training read the trace with the recording; a replay does not."""

    def folder(self, path: Path, tables: dict[str, Rows] | None = None, **changes: pa.Array) -> Path:
        write_folder(path, tables or {}, reported=manifest(80))
        trace(path, **changes)
        return path

    def test_a_recording_without_a_trace_stays_as_it_is(self, tmp_path: Path) -> None:
        write_folder(tmp_path, {})

        assert "ops" not in read_with_ops(tmp_path).tables
        assert "ops" not in read_recording(self.folder(tmp_path / "with")).tables
        assert len(read_with_ops(tmp_path / "with").tables["ops"]["rank"]) == 128

    def test_a_bad_trace_is_refused_by_file_column_and_row(self, tmp_path: Path) -> None:
        folder = self.folder(tmp_path, rank=pa.array([-1] * 128, pa.int32()))

        with pytest.raises(RecordingError, match=r"ops.parquet, column rank, row 0"):
            read_with_ops(folder)

    def test_null_where_nobody_looks_is_no_error(self, tmp_path: Path) -> None:
        assert "ops" in read_with_ops(self.folder(tmp_path, mb_id=pa.array([None] * 128, pa.int8()))).tables

    def test_a_trace_without_steps_beside_it_covers_the_recording(self, tmp_path: Path) -> None:
        clock = step_clock(read_with_ops(self.folder(tmp_path)))

        assert [clock(step) - START_NS for step in (-1, 0, 7)] == [0, 10 * NS_PER_SECOND, 80 * NS_PER_SECOND]

    def test_steps_beside_it_say_when_its_steps_ended(self, tmp_path: Path) -> None:
        times = [float(5 + step + rank) for step in range(10) for rank in range(2)]
        order = np.argsort(times, kind="stable")
        rows = {
            "ts_ns": seconds(*sorted(times)),
            "rank": pa.array(np.tile([0, 1], 10)[order], pa.int32()),
            "step": pa.array(np.repeat(np.arange(10), 2)[order], pa.int64()),
            "duration_seconds": pa.array(np.ones(20)),
        }
        clock = step_clock(read_with_ops(self.folder(tmp_path, {"steps": rows})))

        assert [clock(step) - START_NS for step in (0, 7)] == [6 * NS_PER_SECOND, 13 * NS_PER_SECOND]

    def test_windows_name_their_steps(self, tmp_path: Path) -> None:
        columns = read_ops(trace(tmp_path))
        windows = list(step_windows(columns, vocabulary_of(columns), 3))

        assert [(one.stage, one.first_step, one.last_step) for one in windows] == [
            (0, 0, 2),
            (1, 0, 2),
            (0, 3, 5),
            (1, 3, 5),
        ]
        assert ranks_of(columns) == {rank: rank // 4 for rank in range(8)}
