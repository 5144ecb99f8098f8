"""The models that ship with tocsin: they load, are what their card says, and come out of one command again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tocsin.cli.main import main
from tocsin.models.bilstm_file import decode_bilstm, encode_bilstm
from tocsin.models.minder import PRIORITY
from tocsin.models.minder_file import decode_minder, encode_minder
from tocsin.pipeline.lab.backtest.series import series_of
from tocsin.pipeline.lab.registry import BUILTIN, Registry
from tocsin.pipeline.lab.training.drills import drill_files
from tocsin.pipeline.lab.training.simulated import (
    DEFAULT_COUNT,
    DEFAULT_HOSTS,
    FIRST_SEEDS,
    FIRST_STEP_SEED,
    STEP_COUNT,
    long_cases,
    metrics_only,
    step_cases,
)
from tocsin.schemas.model_announcement import content_hash

VARIANTS = {"vae", "raw", "concatenated", "integrated", "mahalanobis"}
OPEN_METRICS = ("gpu_power_watts", "nvlink_bytes_per_second", "pfc_tx_packets_per_second")
"""Those without an upper limit of their own: the largest sample of the training."""


def test_the_shipped_model_is_whole_and_what_its_card_says(tmp_path: Path) -> None:
    registry = Registry.open(str(tmp_path / "registry"))
    card, payload = registry.card("minder", BUILTIN), registry.payload("minder", BUILTIN)
    model = decode_minder(payload)

    assert content_hash(payload) == card.content_hash
    assert set(model.single) == set(model.priority) == set(model.limits) == set(PRIORITY)
    assert all(vae.metrics == (name,) for name, vae in model.single.items())
    assert model.integrated is not None
    assert set(model.variant_sigmas) == VARIANTS
    assert card.thresholds["variant_sigmas"] == dict(model.variant_sigmas)
    assert card.training["faults"] == card.metrics["training"]["faults"] > 0
    assert len(payload) < 64 * 1024
    assert encode_minder(model) == payload


def test_the_shipped_networks_are_small_and_were_taught_by_simulated_jobs_and_all_recorded_drills(
    tmp_path: Path,
) -> None:
    registry = Registry.open(str(tmp_path / "registry"))
    card, payload = registry.card("bilstm", BUILTIN), registry.payload("bilstm", BUILTIN)
    networks = decode_bilstm(payload)
    folders = list(step_cases(STEP_COUNT, FIRST_STEP_SEED))

    assert content_hash(payload) == card.content_hash
    assert card.training["recordings"] == len(folders) + len(drill_files())
    assert set(networks) == set(card.training["operations"])
    assert "phases" in networks
    assert encode_bilstm(networks) == payload
    assert len(payload) < 256 * 1024


def test_the_simulation_gives_what_the_shipped_model_was_trained_on(tmp_path: Path) -> None:
    """Who changes the simulation runs ``make models`` again. Training is a slow test; its largest samples tell, too."""
    registry = Registry.open(str(tmp_path / "registry"))
    training = registry.card("minder", BUILTIN).training
    limits = decode_minder(registry.payload("minder", BUILTIN)).limits
    cases = list(long_cases(DEFAULT_COUNT, "fit", DEFAULT_HOSTS, FIRST_SEEDS["fit"]))
    highest = dict.fromkeys(OPEN_METRICS, 0.0)
    for case in cases:
        series = series_of(metrics_only(case), OPEN_METRICS)
        assert series is not None
        for name, values in zip(OPEN_METRICS, np.moveaxis(series.values, 1, 0), strict=True):
            highest[name] = max(highest[name], float(values[np.isfinite(values)].max(initial=0.0)))

    assert training["recordings"] == len(cases)
    assert training["faults"] == sum(len(case.truth()["faults"]) for case in cases)
    assert highest == pytest.approx({name: limits[name].high for name in OPEN_METRICS}, rel=1e-3)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_one_command_gives_it_again(tmp_path: Path) -> None:
    """To the byte on the machine that made it; elsewhere torch may round otherwise, and the figures are the same."""
    pytest.importorskip("torch", reason="training needs tocsin[train]")
    shipped = Registry.open(str(tmp_path / "registry"))

    assert main(["train", "--defaults", "--detector", "minder", "--out", str(tmp_path)]) == 0
    again = decode_minder((tmp_path / "minder" / "model.bin").read_bytes())
    model = decode_minder(shipped.payload("minder", BUILTIN))

    assert again.priority == model.priority
    assert dict(again.limits) == dict(model.limits)
    for name, vae in model.single.items():
        assert again.single[name].output_weight == pytest.approx(vae.output_weight, abs=0.05)
    for name, sigmas in model.variant_sigmas.items():
        assert again.variant_sigmas[name] == pytest.approx(sigmas, abs=0.3)
