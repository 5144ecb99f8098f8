"""A case handed to the operators directly says what its recording says in a replay."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tocsin.models.metric_means import MetricMeans
from tocsin.pipeline.core.frame_blocks import blocks_of, join_blocks
from tocsin.pipeline.job.rank_holders import RankFilterConfig
from tocsin.pipeline.lab.simulation.case import Case, draw_case
from tocsin.pipeline.lab.simulation.levels import USER_METRIC
from tocsin.pipeline.lab.simulation.turns import turns_of
from tocsin.pipeline.recording.frames import metric_table_of
from tocsin.pipeline.recording.replay import ReplayConfig, replay
from tocsin.pipeline.recording.stream import records_of
from tocsin.pipeline.runtime.job_pipeline import JobConfig, JobPipeline
from tocsin.schemas.records import NS_PER_SECOND, Frame

_KINDS = ("lost_samples", "agent_restart", "gpu_card_drop", "machine_unreachable", "hdfs_error")


def _lines(case: Case) -> list[dict[str, Any]]:
    pipeline: JobPipeline | None = None
    found = []
    for turn in turns_of(case):
        pipeline = pipeline or JobPipeline(JobConfig(rank_filter=RankFilterConfig(is_played=True)), turn.job)
        found += [verdict.to_line() for verdict in pipeline.on_bundle(turn).verdicts]
    return found


@pytest.mark.parametrize(
    ("seed", "kind"), [(0, "pcie_downgrade"), (2, "power_cap"), (3, "nan_gradient"), (4, "gpu_card_drop")]
)
def test_the_same_verdicts_as_a_replay_of_the_recording(seed: int, kind: str) -> None:
    case = draw_case(seed, (4, 8), kind, "fit", duration_seconds=240.0)

    wanted = [verdict.to_line() for verdict in replay(case.recording(), ReplayConfig())]

    assert wanted
    assert _lines(case) == wanted


def test_healthy_cases_too() -> None:
    case = draw_case(2, (4, 8), "workload_change", "fit", duration_seconds=200.0)

    assert _lines(case) == [verdict.to_line() for verdict in replay(case.recording(), ReplayConfig())]


def _means_by_frames(case: Case) -> list[MetricMeans | None]:
    """The means of each slice, by way of rows and frames."""
    recording = case.recording()
    table = metric_table_of(recording)
    frames = [record for record in records_of(recording) if isinstance(record, Frame)]
    by_slice: dict[int, list[Frame]] = {}
    for frame in frames:
        by_slice.setdefault(frame.ts_ns // case.shape.slice_ns, []).append(frame)
    first = case.shape.start_ns // case.shape.slice_ns
    slices = [by_slice.get(first + index, []) for index in range(case.slice_count)]
    return [join_blocks(blocks_of(own, {table.table_id: table}), table) for own in slices]


def _means_by_turns(case: Case) -> list[MetricMeans | None]:
    table = metric_table_of(case.recording())
    found: dict[int, MetricMeans | None] = {}
    for turn in turns_of(case):
        for metrics in turn.metrics:
            found[metrics.start_ns] = join_blocks(metrics.blocks, table)
    starts = range(case.shape.start_ns, case.end_ns, case.shape.slice_ns)
    return [found.get(start_ns) for start_ns in starts]


@pytest.mark.parametrize("seed", range(30))
def test_the_same_means_as_of_the_frames_to_the_bit(seed: int) -> None:
    case = draw_case(seed, (3, 6), _KINDS[seed % len(_KINDS)], "held", duration_seconds=60.0)

    for mine, wanted in zip(_means_by_turns(case), _means_by_frames(case), strict=True):
        assert (mine is None) == (wanted is None)
        if mine is None or wanted is None:
            continue
        for name in ("hosts", "gpu_rows"):
            assert getattr(mine, name) == getattr(wanted, name)
        for name in ("seen_ns", "tick_ns", "sample_counts", "host_values", "host_counts", "gpu_values", "gpu_counts"):
            np.testing.assert_array_equal(getattr(mine, name), getattr(wanted, name), err_msg=name)
            assert getattr(mine, name).dtype == getattr(wanted, name).dtype


def test_the_cases_compared_above_hold_what_is_hard() -> None:
    """Samples late in their tick, lost ones, a metric of the user's own, other sampling periods, no topology."""
    shapes = [
        draw_case(seed, (3, 6), _KINDS[seed % len(_KINDS)], "held", duration_seconds=60.0).shape for seed in range(30)
    ]

    assert any((shape.sample_phase_seconds > 0.5 * shape.tick_seconds).any() for shape in shapes)
    assert any(shape.lost_ratio > 0 for shape in shapes)
    assert any(USER_METRIC.name in shape.metrics for shape in shapes)
    assert any(shape.tick_seconds > 1 for shape in shapes)
    assert any(not shape.has_topology for shape in shapes)


def test_each_second_has_one_turn_and_each_slice_its_metrics_at_its_end() -> None:
    case = draw_case(5, 4, "healthy", "fit", duration_seconds=30.0)

    turns = list(turns_of(case))

    ends = [turn.end_ns for turn in turns]
    assert ends == list(range(ends[0], case.end_ns + 1, NS_PER_SECOND))
    assert [turn.end_ns for turn in turns if turn.metrics] == [
        case.shape.start_ns + (index + 1) * case.shape.slice_ns for index in range(case.slice_count)
    ]
    assert all(turn.metrics[0].end_ns == turn.end_ns for turn in turns if turn.metrics)


def test_an_attempt_is_part_of_the_job_key() -> None:
    case = replace(draw_case(5, 4, "healthy", "fit", duration_seconds=10.0))

    assert {turn.job.attempt for turn in turns_of(case, 3)} == {3}
    assert {record.job.attempt for turn in turns_of(case, 3) for record in turn.fast.records} <= {3}
