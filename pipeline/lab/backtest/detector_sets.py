"""Names of the detector sets that a backtest can run, and the models that each of them needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from tocsin.models.bilstm_file import decode_bilstm
from tocsin.models.entropy_file import decode_entropy
from tocsin.models.minder import MinderConfig
from tocsin.models.minder_file import decode_minder
from tocsin.pipeline.detect.traces.detector import BILSTM, ENTROPY
from tocsin.pipeline.lab.backtest.bilstm_runner import BilstmRunner
from tocsin.pipeline.lab.backtest.engine_runner import EngineRunner, announced_from
from tocsin.pipeline.lab.backtest.entropy_runner import EntropyRunner
from tocsin.pipeline.lab.backtest.minder_runner import MinderRunner, published
from tocsin.pipeline.lab.backtest.plain_runner import PlainRunner
from tocsin.pipeline.lab.backtest.runner import Runner
from tocsin.pipeline.lab.backtest.single_detector import SingleDetectorRunner
from tocsin.pipeline.lab.backtest.streaming_runner import NAME as MINDER_STREAMING
from tocsin.pipeline.lab.backtest.streaming_runner import StreamingMinderRunner
from tocsin.schemas.errors import ConfigError

OURS: Final = "ours"
MINDER: Final = "minder"
PLAIN: Final = "plain"
ENGINE_DETECTORS: Final = ("peers", "steps")
"""Detectors whose models ``ours`` uses; each is also a set of its own."""

MINDER_SETS: Final[Mapping[str, MinderConfig]] = {
    MINDER: published("vae"),
    "minder-raw": published("raw"),
    "minder-concatenated": published("concatenated"),
    "minder-integrated": published("integrated"),
    "minder-no-continuity": replace(published("vae"), continuity_seconds=0.0),
    "mahalanobis": published("mahalanobis"),
}
"""Sets that need Minder's model: Minder as published, its ablations, the other baseline."""
SETS: Final = (OURS, *ENGINE_DETECTORS, *MINDER_SETS, MINDER_STREAMING, PLAIN, ENTROPY, BILSTM)
MODELS: Final = (*ENGINE_DETECTORS, MINDER, ENTROPY, BILSTM)
"""Detectors for which a model may be given."""


def live_set_of(detector: str) -> str:
    """Return the set that judges with a detector's model as a running engine does."""
    return OURS if detector in ENGINE_DETECTORS else MINDER_STREAMING if detector == MINDER else detector


def checked_sets(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names without duplicates and blanks.

    Args:
        names: names of detector sets.

    Raises:
        ConfigError: a name is unknown, or none is given.
    """
    wanted = tuple(dict.fromkeys(name.strip() for name in names if name.strip()))
    for name in wanted:
        if name not in SETS:
            raise ConfigError("--detectors", name, f"of {', '.join(SETS)}")
    if not wanted:
        raise ConfigError("--detectors", "", f"one or more of {', '.join(SETS)}")
    return wanted


def runner_of(name: str, models: Mapping[str, bytes]) -> Runner:
    """Return the runner of a detector set.

    Args:
        name: one of ``SETS``.
        models: detector -> payload of its model.

    Raises:
        ConfigError: the set is unknown, or needs a model that is not given.
        ModelRefusedError: a model cannot be used; the error says why.
    """
    if name in (OURS, *ENGINE_DETECTORS):
        own = {detector: models[detector] for detector in ENGINE_DETECTORS if detector in models}
        announced_from(own, 0)
        return EngineRunner(own) if name == OURS else SingleDetectorRunner(name, own)
    if name in (*MINDER_SETS, MINDER_STREAMING):
        if MINDER not in models:
            raise ConfigError("--model", None, f"{MINDER}=FILE or {MINDER}=VERSION: {name} needs a model, none ships")
        if name == MINDER_STREAMING:
            announced_from({MINDER: models[MINDER]}, 0)
            return StreamingMinderRunner(models[MINDER])
        return MinderRunner(decode_minder(models[MINDER]), MINDER_SETS[name])
    if name == ENTROPY:
        return EntropyRunner(decode_entropy(models[ENTROPY])) if ENTROPY in models else EntropyRunner()
    if name == BILSTM:
        return BilstmRunner(decode_bilstm(models[BILSTM])) if BILSTM in models else BilstmRunner()
    checked_sets([name])
    return PlainRunner()
