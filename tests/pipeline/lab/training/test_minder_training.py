"""Minder's models from recordings: what comes out is complete, reproducible, and finds a fault of another recording."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

pytest.importorskip("torch", reason="training needs tocsin[train]")
pytest.importorskip("sklearn", reason="training needs tocsin[train]")

from tests.pipeline.lab.backtest.test_minder_runner import MODEL, recording
from tocsin.models.minder import PRIORITY, MinderConfig
from tocsin.models.minder_file import decode_minder, encode_minder
from tocsin.models.training.lstm_vae_training import VaeTrainingConfig
from tocsin.pipeline.lab.backtest.minder_runner import MinderRunner
from tocsin.pipeline.lab.training.minder_training import (
    TrainingRecording,
    answers_of,
    fit_thresholds,
    labelled_windows,
    scans_of,
    train_minder,
    training_recording,
)
from tocsin.schemas.errors import ConfigError

SHORT = VaeTrainingConfig(window_count=2000, epoch_count=2)


def recordings(count: int = 2) -> list[TrainingRecording]:
    found = [training_recording(recording(1000, onset)) for onset in (200, 400, 600, 10_000)[:count]]
    return [one for one in found if one is not None]


def test_windows_are_labelled_by_the_truth_and_those_half_in_a_fault_are_left_out() -> None:
    [one] = recordings(1)
    features, faulty = labelled_windows([one])

    assert (len(faulty), int(faulty.sum())) == (125, 100)
    power = features[:, PRIORITY.index("gpu_power_watts")]
    assert power[faulty].min() > power[~faulty].max()


def test_a_trained_model_is_complete_asks_the_telling_metric_first_and_finds_a_fault_of_another_recording() -> None:
    reported: list[str] = []
    model = train_minder(recordings(), SHORT, lambda name, done, steps: reported.append(name))
    again = decode_minder(encode_minder(model))

    assert set(model.single) == set(PRIORITY) == set(reported)
    assert model.priority[0] == "gpu_power_watts"
    runner = MinderRunner(again, MinderConfig(threshold_sigmas=1.6))
    assert {answer.host for answer in runner.run(recording(1500, 600))} == {"n2"}


def test_a_threshold_is_fitted_below_what_these_few_machines_can_reach() -> None:
    taught = recordings(4)
    model = train_minder(taught, SHORT)
    fitted, by_ceiling = fit_thresholds(taught[:3], model, MinderConfig("raw"))

    assert fitted.score.f1 == by_ceiling.score.f1 == 1.0
    assert fitted.thing.threshold_sigmas is not None
    assert fitted.thing.threshold_sigmas < np.sqrt(5)
    assert by_ceiling.thing.ceiling_ratio is not None


def test_answers_for_many_thresholds_are_those_of_the_runner() -> None:
    job = recording(1500, 600)
    known, config = training_recording(job), MinderConfig("raw", threshold_sigmas=1.6)
    assert known is not None
    answers = answers_of(known, scans_of(known, MODEL, config), MODEL, config)
    wanted = MinderRunner(MODEL, config, processing_seconds=0.0).run(job)

    assert [(one.host, one.detected_ns) for one in answers] == [(one.host, one.detected_ns) for one in wanted]


def test_a_metric_that_no_recording_has_gets_no_model() -> None:
    known = training_recording(recording(300, without=("pfc_tx_packets_per_second",)))
    assert known is not None
    model = train_minder([known], SHORT)

    assert "pfc_tx_packets_per_second" not in model.single
    assert "pfc_tx_packets_per_second" not in model.priority


def test_recordings_without_samples_are_an_error() -> None:
    with pytest.raises(ConfigError, match="without samples"):
        train_minder([], SHORT)
    assert training_recording(dataclasses.replace(recording(100), tables={})) is None
