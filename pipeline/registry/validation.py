"""Two models on the same recordings: the figures that a promotion stands on.

What running engines use is replayed by the engine itself, beside the current models of the other detectors:
so the figures are those of what will run. What judges recordings only is run over them, as a backtest does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tocsin.pipeline.backtest.detector_sets import ENGINE_DETECTORS, MODELS, OURS, runner_of
from tocsin.pipeline.recording.reader import read_recording
from tocsin.pipeline.recording.score import FolderScore, machine_days_of, score_lines
from tocsin.pipeline.registry.card import ModelCard
from tocsin.pipeline.registry.comparison import Comparison, compare
from tocsin.pipeline.registry.registry import Registry
from tocsin.pipeline.training.mapping import Mapper, Told, for_each
from tocsin.schemas.errors import ConfigError, RecordingError, TocsinError


@dataclass(frozen=True, slots=True)
class Heat:
    """One recording and who judges it; crosses to a worker process.

    Attributes:
        folder: the recording.
        detectors: the set that judges (``detector_sets``).
        models: payloads by detector, once for each model that is compared.
    """

    folder: Path
    detectors: str
    models: tuple[Mapping[str, bytes], ...]


def validate(
    registry: Registry, new: ModelCard, folders: Sequence[Path], mapper: Mapper, told: Told | None = None
) -> Comparison:
    """Judge recordings with the current model and with a new one, and compare.

    Args:
        registry: has both.
        new: the model that may become the current one.
        folders: recordings, each with its truth.
        mapper: shares the recordings out.
        told: progress.

    Raises:
        ConfigError: nobody here can run such a model.
        RecordingError: a recording cannot be read, or has no truth.
        RegistryError: a model is damaged.
        ModelRefusedError: a model cannot be used.
    """
    detector = new.detector
    if detector not in MODELS:
        raise ConfigError("DETECTOR", detector, f"one of {' '.join(sorted(MODELS))}: nothing here runs its models")
    detectors = OURS if detector in ENGINE_DETECTORS else detector
    used = registry.in_use(detector)
    cards = (new,) if used is None else (used, new)
    beside = _payloads(registry, [registry.in_use(name) for name in ENGINE_DETECTORS if detectors == OURS])
    models = tuple({**_without(beside, detector), **_payloads(registry, [card])} for card in cards)
    for one in models:
        runner_of(detectors, one)  # said at once, and not once a recording
    scores = list(for_each(mapper, judge_one, [Heat(folder, detectors, models) for folder in folders], told))
    return compare(None if used is None else [one[0] for one in scores], [one[-1] for one in scores])


def judge_one(heat: Heat) -> list[FolderScore] | str:
    """Judge one recording with each model; a text says why it cannot be."""
    try:
        recording = read_recording(heat.folder)
        if recording.truth is None:
            raise RecordingError("truth.json", f"missing in {heat.folder}: nothing to score against")
        faults, days = recording.truth["faults"], machine_days_of(recording)
        said = [runner_of(heat.detectors, models).judge(recording).lines for models in heat.models]
    except (TocsinError, OSError) as error:
        return str(error)
    # The lines of false accusations are long, and would cross to another process.
    return [replace(score_lines(lines, faults, days), false_lines=()) for lines in said]


def _payloads(registry: Registry, cards: Sequence[ModelCard | None]) -> dict[str, bytes]:
    """Of those that are not a detector's own settings."""
    wanted = [card for card in cards if card is not None and not card.is_own]
    return {card.detector: registry.payload(card.detector, card.version) for card in wanted}


def _without(payloads: Mapping[str, bytes], detector: str) -> dict[str, bytes]:
    return {name: payload for name, payload in payloads.items() if name != detector}
