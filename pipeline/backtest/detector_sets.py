"""The detector sets that a backtest knows, by name, and the models that each of them takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from tocsin.models.minder import MinderConfig, Variant
from tocsin.models.minder_file import decode_minder
from tocsin.pipeline.backtest.engine_runner import EngineRunner, announced_from
from tocsin.pipeline.backtest.entropy_runner import EntropyRunner
from tocsin.pipeline.backtest.minder_runner import MinderRunner
from tocsin.pipeline.backtest.plain_runner import PlainRunner
from tocsin.pipeline.backtest.runner import Runner
from tocsin.schemas.errors import ConfigError

OURS: Final = "ours"
MINDER: Final = "minder"
ENGINE_DETECTORS: Final = ("peers", "steps")
"""Whose models ``ours`` takes."""


def minder_config(variant: Variant) -> MinderConfig:
    """Moments of 8 samples are mostly noise: the Mahalanobis baseline gets a minute (its window was not found)."""
    return MinderConfig(variant, window_ticks=60) if variant == "mahalanobis" else MinderConfig(variant)


MINDER_SETS: Final[Mapping[str, MinderConfig]] = {
    MINDER: minder_config("vae"),
    "minder-raw": minder_config("raw"),
    "minder-concatenated": minder_config("concatenated"),
    "minder-integrated": minder_config("integrated"),
    "minder-no-continuity": MinderConfig(continuity_seconds=0.0),
    "mahalanobis": minder_config("mahalanobis"),
}
"""Sets that need Minder's model: to the letter, its ablations, the other baseline."""
SETS: Final = (OURS, *MINDER_SETS, "plain", "entropy")
MODELS: Final = (*ENGINE_DETECTORS, MINDER)
"""Detectors that a model may be given for."""


def checked_sets(names: Iterable[str]) -> tuple[str, ...]:
    """The names, each once.

    Raises:
        ConfigError: there is no such set, or none is named.
    """
    wanted = tuple(dict.fromkeys(name.strip() for name in names if name.strip()))
    for name in wanted:
        if name not in SETS:
            raise ConfigError("--detectors", name, f"of {', '.join(SETS)}")
    if not wanted:
        raise ConfigError("--detectors", "", f"one or more of {', '.join(SETS)}")
    return wanted


def runner_of(name: str, models: Mapping[str, bytes]) -> Runner:
    """Make a set ready.

    Args:
        name: of ``SETS``.
        models: detector -> payload of its model.

    Raises:
        ConfigError: there is no such set, or it needs a model that is not given.
        ModelRefusedError: a model cannot be used; says why.
    """
    if name == OURS:
        own = {detector: models[detector] for detector in ENGINE_DETECTORS if detector in models}
        announced_from(own, 0)
        return EngineRunner(own)
    if name in MINDER_SETS:
        if MINDER not in models:
            raise ConfigError("--model", None, f"{MINDER}=FILE or {MINDER}=VERSION: {name} needs that model")
        return MinderRunner(decode_minder(models[MINDER]), MINDER_SETS[name])
    checked_sets([name])
    return PlainRunner() if name == "plain" else EntropyRunner()
