"""Operation traces: read, cut into windows, and what the trace detectors say of the real one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tocsin.models.entropy import EntropyConfig, against_peers, measure, scores
from tocsin.models.op_features import feature_count, sum_up
from tocsin.models.rank_past import RankPast
from tocsin.pipeline.recording.ops import read_ops, step_windows, vocabulary_of
from tocsin.schemas.errors import RecordingError
from tocsin.schemas.reasons import Reason

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
    assert [stage for stage, _ in windows] == [0, 1, 0, 1]
    assert [np.unique(rows.ranks).tolist() for _, rows in windows] == [[0, 1, 2, 3], [4, 5, 6, 7]] * 2
    assert sum_up(windows[0][1], words.class_count).features.shape == (4, feature_count(3))


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
        windows = [sum_up(rows, words.class_count) for _, rows in step_windows(columns, words, 4)]

        assert len(windows) == 8 * 4
        assert {measure(one.seconds, one.counts, CONFIG).reason for one in windows} == {Reason.TOO_FEW_PEERS}

    def test_without_stages_the_long_last_stage_was_always_there_and_alarms_nobody(self, shared_data: Path) -> None:
        columns = dict(read_ops(shared_data / "whatif" / "trace-ST.parquet"))
        columns["stage"] = np.zeros(len(columns["rank"]), np.int32)
        words = vocabulary_of(columns)
        windows = [sum_up(rows, words.class_count) for _, rows in step_windows(columns, words, 4)]
        measured = [measure(one.seconds, one.counts, CONFIG) for one in windows]
        relative = np.array([against_peers(one) for one in measured])

        past, found = RankPast(4, 12), []
        for window, one, now in zip(windows, measured, relative, strict=True):
            counts, means, own = past.look(window.ranks)
            if counts.min() >= 4:
                found.append(scores(now, means, np.maximum(own, one.floors), CONFIG))
            past.learn(window.ranks, now)

        assert np.max(found) < 1, np.round(found, 2)
