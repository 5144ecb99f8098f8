"""Training of Minder's models from recordings on disk, with thresholds under a budget of false accusations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tocsin.models.minder import PRIORITY, MinderConfig, MinderModel, Variant
from tocsin.models.minder_file import decode_minder, encode_minder
from tocsin.models.training.lstm_vae_training import VaeTrainingConfig
from tocsin.pipeline.lab.backtest.minder_runner import published
from tocsin.pipeline.lab.parallel import Executor, Progress, for_each
from tocsin.pipeline.lab.training.budget import BudgetTrial, Choice, choose
from tocsin.pipeline.lab.training.enough import with_enough
from tocsin.pipeline.lab.training.minder_training import (
    TrainingRecording,
    judge,
    plain_thresholds,
    scans_of,
    train_minder,
    training_recording,
)
from tocsin.pipeline.lab.training.numbers import check_labelled
from tocsin.pipeline.lab.training.recordings import TrainingSet
from tocsin.pipeline.recording.reader import read_recording
from tocsin.pipeline.recording.score import FolderScore, add_up, machine_days_of, score_lines
from tocsin.schemas.errors import TocsinError

VARIANTS: tuple[Variant, ...] = ("vae", "raw", "concatenated", "integrated", "mahalanobis")


@dataclass(frozen=True, slots=True)
class Fitted:
    """A trained Minder model.

    Attributes:
        model: the model with its thresholds.
        choice: choice of the threshold of ``vae``.
        variants: choice of each variant's threshold.
        notes: metrics without a network, because they have too few windows; one sentence each.
    """

    model: MinderModel
    choice: Choice[MinderConfig]
    variants: Mapping[Variant, Choice[MinderConfig]]
    notes: tuple[str, ...] = ()


def fit_minder(
    data: TrainingSet,
    budget_per_machine_day: float,
    executor: Executor,
    *,
    config: VaeTrainingConfig | None = None,
    on_progress: Progress | None = None,
) -> Fitted:
    """Train the LSTM-VAEs on all recordings, order the metrics, and fit the thresholds on recordings with a truth.

    Args:
        data: recordings, mostly without a fault.
        budget_per_machine_day: allowed false accusations per machine-day; infinite: the best F1.
        executor: distributes the work to processes.
        config: settings of each LSTM-VAE.
        on_progress: called with the progress.

    Raises:
        RecordingError: a recording cannot be read, or none has a truth.
        ConfigError: no recording has samples of any of the seven metrics.
        ModelRefusedError: they hold too few machines or windows, or are too short; with the figures and limits.
    """
    config = VaeTrainingConfig() if config is None else config
    check_labelled(data)
    answers = for_each(executor, read_training_recording, data.folders, on_progress, "reading")
    found = [recording for answer in answers for recording in answer]
    recordings, notes = with_enough(found, data.folders, config)
    model = train_minder(recordings, config, on_progress, integrated=_has_whole_windows(recordings))
    choices: dict[Variant, Choice[MinderConfig]] = {}
    for variant in VARIANTS if model.integrated else [name for name in VARIANTS if name != "integrated"]:
        tried = try_on(data.labelled, model, plain_thresholds(published(variant)), executor, on_progress)
        choices[variant] = _chosen(tried, budget_per_machine_day, has_faults=data.fault_count > 0)
    sigmas: dict[str, float] = {name: choice.thing.threshold_sigmas or 0.0 for name, choice in choices.items()}
    model = replace(model, threshold_sigmas=sigmas["vae"], variant_sigmas=sigmas)
    return Fitted(model, choices["vae"], choices, notes)


def _has_whole_windows(recordings: Sequence[TrainingRecording]) -> bool:
    """Return whether the model of all metrics can be trained: some machine has samples of all of them at once."""
    seen = [np.isfinite(recording.series.values) for recording in recordings]
    there = [row for row in range(len(PRIORITY)) if any(known[:, row].any() for known in seen)]
    return any(bool(known[:, there].all(axis=1).any()) for known in seen)


def _chosen(
    tried: Sequence[BudgetTrial[MinderConfig]], budget_per_machine_day: float, *, has_faults: bool
) -> Choice[MinderConfig]:
    """Return the highest of equally good thresholds; without a fault to find, the lowest one within the budget."""
    return choose(tried if has_faults else tried[::-1], budget_per_machine_day)


def try_on(
    folders: Sequence[Path],
    model: MinderModel,
    configs: Sequence[MinderConfig],
    executor: Executor,
    on_progress: Progress | None = None,
) -> list[BudgetTrial[MinderConfig]]:
    """Return the score of each configuration of one variant on recordings that have a truth."""
    scans = [ScanRequest(folder, encode_minder(model), tuple(configs)) for folder in folders]
    by_folder = list(for_each(executor, scan_one, scans, on_progress, f"thresholds, {configs[0].variant}"))
    return [
        BudgetTrial(config, add_up([scores[index] for scores in by_folder])[0]) for index, config in enumerate(configs)
    ]


def read_training_recording(folder: Path) -> list[TrainingRecording] | str:
    """Read a recording for training; [] if it has no samples, a text if it cannot be read."""
    try:
        recording = training_recording(read_recording(folder))
    except (TocsinError, OSError) as error:
        return str(error)
    return [] if recording is None else [recording]


@dataclass(frozen=True, slots=True)
class ScanRequest:
    """One recording to be scanned with one variant; sent to a worker process.

    Attributes:
        folder: folder of the recording.
        model: the encoded model.
        configs: configurations, all of the same variant.
    """

    folder: Path
    model: bytes
    configs: tuple[MinderConfig, ...]


def scan_one(scan: ScanRequest) -> list[FolderScore] | str:
    """Return the score of each configuration on one recording, or a text that says why that is impossible."""
    try:
        recording = read_recording(scan.folder)
        known = training_recording(recording)
    except (TocsinError, OSError) as error:
        return str(error)
    if known is None:  # nothing is said where there is nothing to see
        faults = (recording.truth or {"faults": []})["faults"]
        return [score_lines([], faults, machine_days_of(recording)) for _ in scan.configs]
    model = decode_minder(scan.model)
    scans = scans_of(known, model, scan.configs[0])
    return [replace(judge(known, scans, model, config), false_lines=()) for config in scan.configs]
