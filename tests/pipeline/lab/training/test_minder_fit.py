"""Minder's models from folders: thresholds keep the budget, what cannot teach is refused, twice the same bytes."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="training needs tocsin[train]")
pytest.importorskip("sklearn", reason="training needs tocsin[train]")

from tests.pipeline.lab.backtest.test_minder_runner import recording
from tests.pipeline.lab.training.kit import (
    NEVER,
    SHORT,
    faulty,
    healthy,
    looked,
    unlabelled,
    with_values,
    written,
)
from tocsin.models.minder import PRIORITY
from tocsin.models.minder_file import decode_minder, encode_minder
from tocsin.pipeline.lab.backtest.minder_runner import MinderRunner, published
from tocsin.pipeline.lab.backtest.runner import lines_of
from tocsin.pipeline.lab.parallel import serial
from tocsin.pipeline.lab.training.budget import BudgetReason, upper_bound
from tocsin.pipeline.lab.training.minder import Fitted, fit_minder
from tocsin.pipeline.lab.training.minder_training import THRESHOLDS
from tocsin.pipeline.lab.training.recordings import TrainingSet
from tocsin.pipeline.recording.reader import read_recording
from tocsin.pipeline.recording.score import machine_days_of, score_lines
from tocsin.schemas.errors import ConfigError, ModelRefusedError, RecordingError


def fit(data: TrainingSet, budget: float = 0.01) -> Fitted:
    return fit_minder(data, budget, serial, config=SHORT)


def false_count(fitted: Fitted, folders: list[Path]) -> int:
    """As a backtest counts them."""
    runner, found = MinderRunner(fitted.model, published("vae")), 0
    for folder in folders:
        job = read_recording(folder)
        assert job.truth is not None
        found += score_lines(lines_of(runner.run(job)), job.truth["faults"], machine_days_of(job)).false_count
    return found


def test_the_threshold_keeps_the_budget_finds_the_faults_and_stands_in_the_file(tmp_path: Path) -> None:
    data = looked(*(faulty(tmp_path / f"f{onset}", onset) for onset in (300, 500)), healthy(tmp_path / "h"))
    fitted = fit(data)
    again = decode_minder(encode_minder(fitted.model))

    assert fitted.choice.score.hit_count == 2
    assert fitted.choice.score.false_count == 0 == false_count(fitted, data.folders)
    assert fitted.choice.reason is BudgetReason.COUNT_WITHIN_BUDGET
    assert again.threshold_sigmas == fitted.choice.thing.threshold_sigmas
    assert again.variant_sigmas == {name: choice.thing.threshold_sigmas for name, choice in fitted.variants.items()}
    assert set(fitted.variants) == {"vae", "raw", "concatenated", "integrated", "mahalanobis"}


def test_a_large_budget_is_proven_by_few_machine_days(tmp_path: Path) -> None:
    data = looked(faulty(tmp_path / "f", 300), healthy(tmp_path / "h"))
    fitted = fit(data, 200.0)

    assert fitted.choice.reason is BudgetReason.BOUND_WITHIN_BUDGET
    assert upper_bound(fitted.choice.score.false_count, fitted.choice.score.machine_days) <= 200.0


def test_healthy_recordings_alone_give_the_keenest_threshold_that_accuses_nobody(tmp_path: Path) -> None:
    fitted = fit(looked(healthy(tmp_path / "a"), healthy(tmp_path / "b")))
    line = fitted.choice.thing.threshold_sigmas

    assert fitted.choice.score.false_count == 0
    assert fitted.choice.score.f1 is None
    assert line is not None
    assert line < max(THRESHOLDS)


def test_the_same_recordings_and_seed_give_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    data = looked(faulty(tmp_path / "f", 300, 700), healthy(tmp_path / "h", 700))
    other = dataclasses.replace(SHORT, seed=1)
    models = [fit_minder(data, math.inf, serial, config=config) for config in (SHORT, SHORT, other)]
    written_bytes = [encode_minder(fitted.model) for fitted in models]

    assert written_bytes[0] == written_bytes[1] != written_bytes[2]


def test_recordings_without_truth_teach_the_networks_and_no_threshold(tmp_path: Path) -> None:
    labelled = [faulty(tmp_path / "f", 300, 700), healthy(tmp_path / "h", 700)]
    data = looked(*labelled, unlabelled(tmp_path / "u"))
    fitted = fit(data)

    assert fitted.choice.score.machine_days == pytest.approx(2 * 6 * 700 / 86_400)
    alone_taught = fit(looked(*labelled))
    assert encode_minder(fitted.model) != encode_minder(alone_taught.model)


def test_without_any_truth_there_is_no_threshold(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match=r"truth.json: missing in all 1 recordings: thresholds need to know"):
        fit(looked(unlabelled(tmp_path / "u")))


def test_recordings_without_the_seven_metrics_are_refused_by_their_names(tmp_path: Path) -> None:
    folder = written(tmp_path / "a", recording(300, NEVER, without=PRIORITY), truth={"faults": []})

    with pytest.raises(ConfigError, match=r"1 without samples of pfc_tx_packets_per_second, cpu_util_ratio"):
        fit(looked(folder))


def test_recordings_shorter_than_a_window_are_refused(tmp_path: Path) -> None:
    folder = written(tmp_path / "a", recording(5, NEVER), truth={"faults": []})

    with pytest.raises(ModelRefusedError, match=r"\(too_short\): .*: the longest has 5 s of samples, it takes 100 s"):
        fit(looked(folder))


@pytest.mark.parametrize("value", [math.inf, -5.0, math.nan])
def test_samples_that_cannot_be_teach_nothing(tmp_path: Path, value: float) -> None:
    job = recording(300, NEVER)
    clean = with_values(tmp_path / "clean", job, "gpu_power_watts", slice(0, 0), 0.0)
    odd = with_values(tmp_path / "odd", job, "gpu_power_watts", slice(100, 160), value)
    one, two = (fit(looked(folder)).model for folder in (clean, odd))

    assert np.isfinite([two.limits["gpu_power_watts"].low, two.limits["gpu_power_watts"].high]).all()
    assert two.limits["gpu_power_watts"].low == one.limits["gpu_power_watts"].low == 0.0
    assert two.limits["gpu_power_watts"].high <= one.limits["gpu_power_watts"].high
    assert np.isfinite(two.single["gpu_power_watts"].output_weight).all()
