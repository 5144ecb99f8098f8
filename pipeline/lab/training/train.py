"""One training, from recordings to a model and its card with figures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tocsin.models.bilstm_file import FORMAT_NAME as BILSTM_FORMAT
from tocsin.models.bilstm_file import encode_bilstm
from tocsin.models.documents import Numbers, write_numbers
from tocsin.models.entropy_file import FORMAT_NAME as ENTROPY_FORMAT
from tocsin.models.entropy_file import encode_entropy
from tocsin.pipeline.lab.backtest.detector_sets import live_set_of
from tocsin.pipeline.lab.backtest.model_comparison import scores_of
from tocsin.pipeline.lab.parallel import Executor, Progress
from tocsin.pipeline.lab.registry import ModelCard, code_version
from tocsin.pipeline.lab.training.budget import BudgetReason, Choice, check_budget
from tocsin.pipeline.lab.training.entropy import fit_entropy
from tocsin.pipeline.lab.training.numbers import check_all_labelled, fit_numbers
from tocsin.pipeline.lab.training.recordings import TrainingSet
from tocsin.pipeline.recording.score import Score
from tocsin.schemas.errors import ConfigError

DETECTORS: Final = ("peers", "steps", "minder", "entropy", "bilstm")


@dataclass(frozen=True, slots=True)
class TrainingConfig:
    """Settings of one training.

    Attributes:
        detector: detector whose model is trained.
        budget_per_machine_day: allowed false accusations per machine-day; infinite: no budget, the best F1.
        seed: seed of all random choices.
    """

    detector: str
    budget_per_machine_day: float = 0.01
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Trained:
    """The result of a training.

    Attributes:
        card: card of the model, without version and hash.
        payload: the model's bytes.
        reason: how it relates to the budget.
        lines: what to report, one sentence each.
    """

    card: ModelCard
    payload: bytes
    reason: BudgetReason
    lines: tuple[str, ...]


@dataclass(slots=True)
class _Model:
    """A trained model before it has a card."""

    payload: bytes
    format: str
    choice: Choice[Any]
    thresholds: Mapping[str, Any]
    lines: list[str] = field(default_factory=list)
    operations: Mapping[str, Any] = field(default_factory=dict)


def train(
    data: TrainingSet,
    config: TrainingConfig,
    trained_at: str,
    executor: Executor,
    *,
    validation: TrainingSet | None = None,
    on_progress: Progress | None = None,
) -> Trained:
    """Train a detector's model.

    Args:
        data: recordings to learn from.
        config: detector, budget and seed.
        trained_at: present time, ISO 8601 with its zone.
        executor: distributes the work to processes.
        validation: recordings that are not learned from, each with its truth; None: no figures on them.
        on_progress: called with the progress.

    Raises:
        ConfigError: the detector or the budget is invalid, or there is nothing to learn from.
        RecordingError: a recording cannot be read, or lacks what is needed.
    """
    if config.detector not in DETECTORS:
        raise ConfigError("--detector", config.detector, f"one of {' '.join(DETECTORS)}")
    check_budget(config.budget_per_machine_day)
    if validation is not None:
        check_all_labelled(validation)
    fit = {"minder": _minder, "entropy": _entropy, "bilstm": _bilstm}.get(config.detector, _numbers)
    model = fit(data, config, executor, on_progress)
    metrics = {"training": model.choice.score.to_object()}
    if validation is not None:
        metrics["validation"] = judged(config.detector, model.payload, validation, executor, on_progress).to_object()
    lines = [*model.lines, model.choice.sentence()]
    if not data.fault_count:
        lines.append("no fault in these recordings: how many it finds, and how soon, nobody knows")
    card = _card(data, config, trained_at, model, metrics)
    return Trained(card, model.payload, model.choice.reason, tuple(lines))


def _card(
    data: TrainingSet, config: TrainingConfig, trained_at: str, model: _Model, metrics: Mapping[str, Any]
) -> ModelCard:
    """Build the card of a trained model."""
    bound = model.choice.bound_per_machine_day
    return ModelCard(
        detector=config.detector,
        format=model.format,
        trained_at=trained_at,
        code_version=code_version(),
        seed=config.seed,
        training={**data.described(), **({"operations": model.operations} if model.operations else {})},
        settings={
            "budget_per_machine_day": None
            if math.isinf(config.budget_per_machine_day)
            else config.budget_per_machine_day
        },
        thresholds={
            **model.thresholds,
            "budget": model.choice.reason.value,
            "false_accusations_per_machine_day_below": bound if math.isfinite(bound) else None,
        },
        metrics=metrics,
    )


def judged(
    detector: str, payload: bytes, data: TrainingSet, executor: Executor, on_progress: Progress | None = None
) -> Score:
    """Return a model's score on recordings that have a truth, judged as a running engine judges."""
    return scores_of(data.folders, live_set_of(detector), [{detector: payload}], executor, on_progress)[0]


def _numbers(data: TrainingSet, config: TrainingConfig, executor: Executor, on_progress: Progress | None) -> _Model:
    """Train the numbers of ``peers`` or ``steps``."""
    found = fit_numbers(
        data, config.detector, config.budget_per_machine_day, executor, seed=config.seed, on_progress=on_progress
    )
    numbers: Numbers = found.choice.thing
    payload = write_numbers(numbers)
    lines = []
    for section, values in numbers.items():
        for name, value in values.items():
            was = found.changed.get(f"{section}.{name}")
            lines.append(f"{section}.{name} = {value:g} " + (f"(was {was[0]:g})" if was else "(the program's own)"))
    lines.append(f"{found.tried_count} sets of numbers tried; F1 {_f1(found.own)} -> {_f1(found.choice.score)}")
    return _Model(payload, f"{config.detector}/1", found.choice, {k: dict(v) for k, v in numbers.items()}, lines)


def _entropy(data: TrainingSet, config: TrainingConfig, executor: Executor, on_progress: Progress | None) -> _Model:
    """Train the alarm line of ``entropy``."""
    choice = fit_entropy(data, config.budget_per_machine_day, executor, on_progress)
    line = choice.thing.max_sigmas
    lines = [f"max_sigmas = {line:g}; F1 {_f1(choice.score)}"]
    return _Model(encode_entropy(choice.thing), ENTROPY_FORMAT, choice, {"max_sigmas": line}, lines)


def _bilstm(data: TrainingSet, config: TrainingConfig, executor: Executor, on_progress: Progress | None) -> _Model:
    """Train the networks of ``bilstm``."""
    from tocsin.models.training.bilstm_ocnn_training import OcnnTraining
    from tocsin.pipeline.lab.training.bilstm import fit_bilstm

    fitted = fit_bilstm(
        data, config.budget_per_machine_day, executor, config=OcnnTraining(seed=config.seed), on_progress=on_progress
    )
    networks = fitted.choice.thing
    thresholds: dict[str, Any] = {
        "line_factor": {family: network.line_factor for family, network in networks.items()},
        "quantile_score": {family: network.quantile_score for family, network in networks.items()},
        "nu_ratio": OcnnTraining().nu_ratio,
    }
    lines = list(fitted.notes)
    unlabelled = len(data.members) - len(data.labelled)
    if unlabelled:
        lines.append(f"{unlabelled} recordings without truth.json teach the networks, and no line")
    lines.append(f"alarm line {fitted.line_factor:g} times the one of training; F1 {_f1(fitted.choice.score)}")
    return _Model(encode_bilstm(networks), BILSTM_FORMAT, fitted.choice, thresholds, lines, fitted.operations)


def _minder(data: TrainingSet, config: TrainingConfig, executor: Executor, on_progress: Progress | None) -> _Model:
    """Train the models of ``minder``."""
    from tocsin.models.minder_file import encode_minder
    from tocsin.models.training.lstm_vae_training import VaeTrainingConfig
    from tocsin.pipeline.lab.training.minder import fit_minder

    fitted = fit_minder(
        data,
        config.budget_per_machine_day,
        executor,
        config=VaeTrainingConfig(seed=config.seed),
        on_progress=on_progress,
    )
    thresholds: dict[str, Any] = {"threshold_sigmas": fitted.model.threshold_sigmas}
    thresholds["variant_sigmas"] = dict(fitted.model.variant_sigmas)
    lines = [*fitted.notes, f"{len(fitted.model.single)} LSTM-VAEs, order: {', '.join(fitted.model.priority)}"]
    unlabelled = len(data.members) - len(data.labelled)
    if unlabelled:
        lines.append(f"{unlabelled} recordings without truth.json teach the LSTM-VAEs, and no threshold")
    lines.append(f"threshold {fitted.model.threshold_sigmas:g} standard deviations; F1 {_f1(fitted.choice.score)}")
    return _Model(encode_minder(fitted.model), "minder/1", fitted.choice, thresholds, lines)


def _f1(score: Score) -> str:
    """Return the F1 of a score as text, "-" without one."""
    return "-" if score.f1 is None else f"{score.f1:.3f}"
