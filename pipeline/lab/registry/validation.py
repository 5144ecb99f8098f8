"""Comparison of two models on the same recordings, as the basis of a promotion.

Models that running engines use are replayed by the engine itself, together with the current models of the other
detectors, so that the figures are those of what will run. Learned detectors are run alone, as an engine runs them: each
machine that one names counts as an accusation.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tocsin.pipeline.lab.backtest.detector_sets import (
    ENGINE_DETECTORS,
    MODELS,
    OURS,
    live_set_of,
    runner_of,
)
from tocsin.pipeline.lab.backtest.model_comparison import run_models
from tocsin.pipeline.lab.parallel import Executor, Progress
from tocsin.pipeline.lab.registry.card import ModelCard
from tocsin.pipeline.lab.registry.comparison import Comparison, compare
from tocsin.pipeline.lab.registry.registry import Registry
from tocsin.schemas.errors import ConfigError


def validate(
    registry: Registry,
    cards: tuple[ModelCard | None, ModelCard],
    folders: Sequence[Path],
    executor: Executor,
    on_progress: Progress | None = None,
) -> Comparison:
    """Judge recordings with the current model and with a new one, and compare the scores.

    Args:
        registry: registry that holds both models.
        cards: cards of the current model (None: there is none, or it cannot be read) and of the new one.
        folders: folders of recordings, each with its truth.
        executor: distributes the recordings to processes.
        on_progress: called with the progress.

    Raises:
        ConfigError: the detector's models cannot be run here.
        RecordingError: a recording cannot be read, or has no truth.
        RegistryError: a model is damaged.
        ModelRefusedError: a model cannot be used.
    """
    used, new = cards
    detector = new.detector
    if detector not in MODELS:
        raise ConfigError("DETECTOR", detector, f"one of {' '.join(sorted(MODELS))}: nothing here runs its models")
    detectors = live_set_of(detector)
    others = [name for name in ENGINE_DETECTORS if detectors == OURS and name != detector]
    other_models = _payloads(registry, [registry.in_use(name) for name in others])
    models = tuple({**other_models, **_payloads(registry, [card])} for card in cards if card is not None)
    for one in models:
        runner_of(detectors, one)  # said at once, and not once a recording
    scores = run_models(folders, detectors, models, executor, on_progress)
    return compare(None if used is None else [one[0] for one in scores], [one[-1] for one in scores])


def _payloads(registry: Registry, cards: Sequence[ModelCard | None]) -> dict[str, bytes]:
    """Return detector -> payload of these models, without default settings."""
    wanted = [card for card in cards if card is not None and not card.is_own]
    return {card.detector: registry.payload(card.detector, card.version) for card in wanted}
