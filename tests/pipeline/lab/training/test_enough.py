"""What recordings must hold for Minder's models, and what is said where they do not."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="training needs tocsin[train]")

from tests.pipeline.lab.backtest.test_minder_runner import recording
from tocsin.models.training.lstm_vae_training import TorchVae, VaeTrainingConfig, weight_count
from tocsin.pipeline.lab.training.enough import amount_of, with_enough
from tocsin.pipeline.lab.training.minder_training import TrainingRecording, training_recording
from tocsin.schemas.errors import ModelRefusedError
from tocsin.schemas.metrics import GPU_METRICS, HOST_METRICS

CONFIG = VaeTrainingConfig()
NAMES = tuple(metric.name for metric in (*GPU_METRICS, *HOST_METRICS))
FOLDERS = [Path("a"), Path("b")]


def of(seconds: int, hosts: int = 6, tick_seconds: int = 1, without: tuple[str, ...] = ()) -> TrainingRecording:
    """The samples of so many of six machines."""
    found = training_recording(recording(seconds, 10**6, tick_seconds, without))
    assert found is not None
    series = dataclasses.replace(found.series, hosts=found.series.hosts[:hosts], values=found.series.values[:hosts])
    return dataclasses.replace(found, series=series)


def test_windows_that_share_a_sample_count_once_and_those_with_a_gap_do_not() -> None:
    whole, gap = of(100), of(100)
    gap.series.values[0, 0, 3] = float("nan")

    assert set(amount_of([whole], CONFIG).window_counts.values()) == {6 * 12}
    assert sorted(amount_of([gap], CONFIG).window_counts.values()) == [6 * 12 - 1, *[6 * 12] * 6]
    assert set(amount_of([whole, whole], CONFIG).window_counts.values()) == {2 * 6 * 12}


def test_the_network_has_the_weights_that_are_counted() -> None:
    assert weight_count(CONFIG) == sum(one.numel() for one in TorchVae(1, CONFIG).parameters()) == 421


@pytest.mark.parametrize(
    ("recordings", "reported"),
    [
        ([of(1000, 3), of(1000, 2)], r"\(too_few_machines\): a, b: 3 machines with samples at .* it takes 4"),
        ([of(60), of(95)], r"\(too_short\): a, b: the longest has 95 s of samples, it takes 100 s"),
        ([of(900, tick_seconds=10)], r"\(too_short\): .*: the longest has 900 s of samples, it takes 1000 s"),
        ([of(100, 4), of(15, 4)], r"\(too_few_windows\): a, b: 52 windows .* of .*, it takes 53: .* 421 weights"),
    ],
)
def test_too_little_is_refused_by_name_with_its_figures(recordings: list[TrainingRecording], reported: str) -> None:
    with pytest.raises(ModelRefusedError, match=reported):
        with_enough(recordings, FOLDERS, CONFIG)


def test_enough_is_taken_as_it_is_and_a_metric_with_too_few_windows_is_left_out_with_a_note() -> None:
    whole, part = [of(20), of(100)], [of(20), of(100, without=("cpu_util_ratio",))]
    kept, notes = with_enough(whole, FOLDERS, CONFIG)
    fewer, told = with_enough(part, FOLDERS, CONFIG)

    assert (kept, notes) == (whole, ())
    assert told == ("cpu_util_ratio: no LSTM-VAE: 12 windows, it takes 53",)
    assert amount_of(fewer, CONFIG).window_counts["cpu_util_ratio"] == 0
    assert amount_of(part, CONFIG).window_counts["cpu_util_ratio"] == 12
