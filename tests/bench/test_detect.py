"""The detect bench: its frames and arrays are the same data, and what it compares is what it says."""

from __future__ import annotations

import numpy as np
import pytest

from tests.bench import detect, detect_learned
from tests.bench.detect_load import LEVELS, Fleet, Planted
from tocsin.models.metric_means import means_of
from tocsin.pipeline.detect.learned.registry import LEARNED
from tocsin.schemas.metrics import BUILTIN_TABLE
from tocsin.schemas.records import Frame
from tocsin.schemas.wire.codec import decode


@pytest.mark.parametrize("gpu_count", [1, 8])
def test_frames_and_arrays_are_the_same_data(gpu_count: int) -> None:
    fleet = Fleet(5, gpu_count)
    span = fleet.span(3)

    frames = [frame for data in fleet.frames(3) if isinstance(frame := decode(data), Frame)]

    assert len(frames) == 5
    by_frames, by_arrays = means_of(frames, BUILTIN_TABLE, span.start_ns, span.end_ns), fleet.means(3)
    assert by_frames.gpu_rows == by_arrays.gpu_rows
    for name in ("seen_ns", "sample_counts", "host_values", "host_counts", "gpu_values", "gpu_counts"):
        np.testing.assert_array_equal(getattr(by_frames, name), getattr(by_arrays, name), err_msg=name)


def test_seven_metrics_and_no_more_have_samples() -> None:
    means = Fleet(4, 2).means(0)

    names = [metric.name for metric in (*BUILTIN_TABLE.host, *BUILTIN_TABLE.gpu)]
    there = np.isfinite(np.concatenate([means.host_values, means.gpu_values[::2]], axis=1)).all(axis=0)
    assert {name for name, has in zip(names, there, strict=True) if has} == set(LEVELS)


@pytest.mark.parametrize("metric", list(LEVELS))
def test_a_planted_machine_differs_in_its_metric_only(metric: str) -> None:
    fleet = Fleet(6, 2)

    changed = fleet.matrix(2, Planted(4, metric, 1.5)) != fleet.matrix(2)

    assert changed[4, list(LEVELS).index(metric)]
    assert changed.sum() == 1


def test_both_ways_judge_all_slices() -> None:
    """They raise where a frame was refused or a slice not judged."""
    for way in (detect.by_arrays, detect.by_frames):
        assert way(Fleet(8, 2), 2).wall_seconds > 0.0


def test_arrays_that_were_not_judged_are_no_measurement() -> None:
    with pytest.raises(RuntimeError, match="not everything was judged"):
        detect.by_arrays(Fleet(2, 1), 2)  # two machines have no peers


def test_a_gross_outlier_is_named_first_by_all_ways() -> None:
    found = detect.rank(Fleet(32, 1), 14, planted=lambda index: Planted(index, tuple(LEVELS)[index % 7], 5.0))

    assert found.right == {"pairs": 1.0, "centre": 1.0, "detector": 1.0}
    assert found.same_ratio == 1.0


def test_nobody_planted_is_found_by_chance_only() -> None:
    found = detect.rank(Fleet(64, 1), 14, planted=lambda index: Planted(index, "cpu_util_ratio", 1.0))

    assert max(found.right.values()) < 0.3


def test_doublings() -> None:
    assert detect.doublings([1.0, 2.0, 5.0]) == [2.0, 2.5]


@pytest.mark.slow  # four pipelines and 150 seconds of a job each
def test_each_learned_detector_judges_every_measured_turn() -> None:
    """It raises where one abstains."""
    for learned in ((), [f"{name}=evidence" for name in LEARNED]):
        assert detect_learned.cost_of_slice(Fleet(8, 1), 1, learned).wall_seconds > 0.0


@pytest.mark.slow
def test_a_learned_detector_that_has_nothing_to_compare_is_no_measurement() -> None:
    with pytest.raises(RuntimeError, match=r"not everything was judged: .*too_few_peers"):
        detect_learned.cost_of_slice(Fleet(2, 1), 1, ("entropy=evidence",))
