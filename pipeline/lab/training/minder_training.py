"""Training of Minder's models: limits, one LSTM-VAE per metric, the order of metrics, the threshold.

The LSTM-VAEs learn without labels from data that is mostly normal. Labels (``truth.json``) are used for the order
of the metrics, as in the paper, and for the threshold, whose value the paper does not give. Needs torch
and scikit-learn (``tocsin[train]``); no engine imports this.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tocsin.models.lstm_vae import FloatArray, Limits, LstmVae
from tocsin.models.minder import PRIORITY, MinderConfig, MinderModel, Samples, scan_view, views
from tocsin.models.similarity import Scan, first_run
from tocsin.models.training.lstm_vae_training import VaeTrainingConfig, learned_limits, train_vae
from tocsin.models.training.priority_tree import max_z_features, metric_priority
from tocsin.pipeline.detect.baselines.minder_ticks import Ticks
from tocsin.pipeline.lab.backtest.minder_runner import pulls
from tocsin.pipeline.lab.backtest.runner import RunnerAccusation, lines_of
from tocsin.pipeline.lab.backtest.series import series_of
from tocsin.pipeline.lab.training.budget import BudgetTrial, Choice, choose
from tocsin.pipeline.recording.score import FolderScore, add_up, score_lines
from tocsin.pipeline.recording.tables import Recording
from tocsin.schemas.errors import ConfigError
from tocsin.schemas.metrics import BUILTIN_TABLE, Metric
from tocsin.schemas.records import NS_PER_SECOND

Progress = Callable[[str, int, int], None]
"""Callback for progress: (what is trained, steps done, steps in all)."""

_METRICS: Mapping[str, Metric] = {metric.name: metric for metric in (*BUILTIN_TABLE.host, *BUILTIN_TABLE.gpu)}
_DAY_SECONDS = 86_400
_LABEL_STRIDE_TICKS = 8
"""Distance between windows for the decision tree; they do not overlap, because neighbours are redundant."""
THRESHOLDS = tuple(round(0.8 + 0.1 * step, 1) for step in range(33))
"""Thresholds that are tried, 0.8 to 4.0 standard deviations."""
CEILING_RATIOS = (0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.98)
"""Values of ``MinderConfig.ceiling_ratio`` that are tried."""


CallScans = list[tuple[int, list[tuple[NDArray[np.intp], Scan]]]]
"""For each call: its time, and for each metric the compared rows and their scan."""


@dataclass(frozen=True, slots=True)
class TrainingRecording:
    """The parts of one recording that training uses.

    Attributes:
        series: all samples.
        faults: faults of ``truth.json``.
        is_labelled: whether there is a ``truth.json``; without one, false accusations are unknown.
    """

    series: Ticks
    faults: Sequence[Mapping[str, Any]] = field(default=())
    is_labelled: bool = True

    @property
    def machine_days(self) -> float:
        """Number of machines times days."""
        hosts, _, ticks = self.series.values.shape
        return float(hosts * ticks * self.series.tick_ns / NS_PER_SECOND / _DAY_SECONDS)


def training_recording(recording: Recording, metrics: Sequence[str] = PRIORITY) -> TrainingRecording | None:
    """Return the parts of a recording that training uses, None without samples."""
    series = series_of(recording, metrics)
    if series is None:
        return None
    truth = recording.truth
    return TrainingRecording(series, () if truth is None else truth["faults"], truth is not None)


def train_minder(
    recordings: Sequence[TrainingRecording],
    config: VaeTrainingConfig | None = None,
    progress: Progress | None = None,
    *,
    integrated: bool = False,
) -> MinderModel:
    """Train all LSTM-VAEs and order the metrics; the threshold is fitted later by ``fit_thresholds``.

    Args:
        recordings: recordings, mostly without a fault.
        config: settings of each training.
        progress: called after each step of each training.
        integrated: whether to train also the model of all metrics, for that ablation.

    Raises:
        ConfigError: no recording has samples of any of the seven metrics.
    """
    limits: dict[str, Limits] = {}
    single: dict[str, LstmVae] = {}
    for index, name in enumerate(PRIORITY):
        parts = [recording.series.values[:, [index]] for recording in recordings]
        parts = [part for part in parts if np.isfinite(part).any()]
        if not parts:
            continue
        limits[name] = learned_limits(_METRICS[name], parts)
        single[name] = train_vae(parts, [name], [limits[name]], config, _named_progress(progress, name))
    if not limits:
        raise ConfigError("recordings", f"{len(recordings)} without samples of {', '.join(PRIORITY)}", "with some")
    metrics = tuple(name for name in PRIORITY if name in limits)
    both = None
    if integrated:
        columns = [PRIORITY.index(name) for name in metrics]
        whole = [recording.series.values[:, columns] for recording in recordings]
        both = train_vae(
            whole, metrics, [limits[name] for name in metrics], config, _named_progress(progress, "integrated")
        )
    model = MinderModel(limits, single, both, metrics)
    features, faulty = labelled_windows(recordings)
    if len(np.unique(faulty)) == 2:
        order = metric_priority(features, faulty, PRIORITY)
        model = replace(model, priority=tuple(name for name in order if name in limits))
    return model


def _named_progress(progress: Progress | None, name: str) -> Callable[[int, int], None] | None:
    """Return the progress callback of one model's training."""
    return None if progress is None else lambda done, steps: progress(name, done, steps)


def labelled_windows(recordings: Sequence[TrainingRecording]) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Return features of windows for the decision tree, and whether a fault was present in each.

    Windows that lie partly in a fault are left out.
    """
    features, labels = [np.zeros((0, len(PRIORITY)), np.float32)], [np.zeros(0, bool)]
    for recording in recordings:
        series = recording.series
        count = series.values.shape[2] // _LABEL_STRIDE_TICKS
        if not count or not recording.is_labelled:
            continue
        cut = series.values[:, :, : count * _LABEL_STRIDE_TICKS]
        shaped = cut.reshape(*cut.shape[:2], count, _LABEL_STRIDE_TICKS)
        known = np.isfinite(shaped)
        total = np.where(known, shaped, 0).sum(axis=3)
        means = np.where(known.any(axis=3), total / np.maximum(known.sum(axis=3), 1), np.nan)
        begin_ns = series.start_ns + np.arange(count) * _LABEL_STRIDE_TICKS * series.tick_ns
        end_ns = begin_ns + _LABEL_STRIDE_TICKS * series.tick_ns
        inside, touched = np.zeros(count, bool), np.zeros(count, bool)
        for fault in recording.faults:
            inside |= (begin_ns >= fault["onset_ns"]) & (end_ns <= fault["end_ns"])
            touched |= (end_ns > fault["onset_ns"]) & (begin_ns < fault["end_ns"])
        clear = inside | ~touched
        features.append(max_z_features(means.transpose(2, 0, 1).astype(np.float32))[clear])
        labels.append(inside[clear])
    return np.concatenate(features), np.concatenate(labels)


def plain_thresholds(config: MinderConfig) -> list[MinderConfig]:
    """Return the configuration with each threshold to try, one number for all job sizes as in the paper.

    Highest first.
    """
    return [replace(config, threshold_sigmas=value, ceiling_ratio=None) for value in reversed(THRESHOLDS)]


def ceiling_thresholds(config: MinderConfig) -> list[MinderConfig]:
    """Return the configuration with each threshold to try that depends on the number of machines; highest first."""
    found = [replace(config, threshold_sigmas=math.inf, ceiling_ratio=value) for value in CEILING_RATIOS]
    return found[::-1]


def fit_thresholds(
    recordings: Sequence[TrainingRecording], model: MinderModel, config: MinderConfig
) -> tuple[Choice[MinderConfig], Choice[MinderConfig]]:
    """Choose the thresholds with the best F1; among equals the highest, which accuses less.

    Args:
        recordings: recordings with a truth; healthy ones too.
        model: trained model.
        config: settings of the procedure.

    Returns:
        The choice of one number for all job sizes, as in the paper, and that of the ``ceiling_ratio``.
    """
    recordings = [recording for recording in recordings if recording.is_labelled]
    scanned = [scans_of(recording, model, config) for recording in recordings]
    tried = (plain_thresholds(config), ceiling_thresholds(config))
    plain, by_ceiling = (choose(try_configs(recordings, scanned, model, configs), math.inf) for configs in tried)
    return plain, by_ceiling


def try_configs(
    recordings: Sequence[TrainingRecording],
    scanned: Sequence[CallScans],
    model: MinderModel,
    configs: Sequence[MinderConfig],
) -> list[BudgetTrial[MinderConfig]]:
    """Return the score of each configuration, which may differ in thresholds and continuity only.

    Args:
        recordings: recordings with a truth.
        scanned: result of ``scans_of`` for each recording.
        model: trained model.
        configs: configurations of the scanned variant.
    """
    found = []
    for config in configs:
        both = zip(recordings, scanned, strict=True)
        found.append(
            BudgetTrial(config, add_up([judge(recording, scans, model, config) for recording, scans in both])[0])
        )
    return found


def judge(recording: TrainingRecording, scans: CallScans, model: MinderModel, config: MinderConfig) -> FolderScore:
    """Return the score of a configuration on one recording with a truth."""
    answers = answers_of(recording, scans, model, config)
    return score_lines(lines_of(answers), recording.faults, recording.machine_days)


def scans_of(recording: TrainingRecording, model: MinderModel, config: MinderConfig) -> CallScans:
    """Return the expensive part of all calls on a recording, which serves any number of thresholds."""
    found: CallScans = []
    for part, at_ns in pulls(recording.series, config):
        samples = Samples(PRIORITY, part.values, part.tick_ns / NS_PER_SECOND)
        view_scans = [scan_view(samples, metrics, model, config) for _, metrics in views(model, config)]
        found.append((at_ns, [one for one in view_scans if isinstance(one, tuple)]))
    return found


def answers_of(
    recording: TrainingRecording, scans: CallScans, model: MinderModel, config: MinderConfig
) -> list[RunnerAccusation]:
    """Return the calls' accusations with this threshold and continuity.

    Machines and times are those of ``MinderRunner``.
    """
    tick_seconds = recording.series.tick_ns / NS_PER_SECOND
    answers = []
    for at_ns, view_scans in scans:
        for rows, scan in view_scans:
            candidates = scan.candidates(config.threshold(model, scan.machine_count))
            run = first_run(candidates, tick_seconds, config.continuity_seconds)
            if run is not None:
                answers.append(RunnerAccusation(recording.series.hosts[int(rows[run.row])], "", at_ns, at_ns, 1.0))
                break
    return answers
