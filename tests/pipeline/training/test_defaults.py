"""The models that ship with tocsin: they load, are what their card says, and come out of one command again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tocsin.cli.main import main
from tocsin.models.minder import PRIORITY
from tocsin.models.minder_file import decode_minder, encode_minder
from tocsin.pipeline.registry import BUILTIN, Registry
from tocsin.schemas.model_announcement import content_hash

VARIANTS = {"vae", "raw", "concatenated", "integrated", "mahalanobis"}


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


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_one_command_gives_it_again(tmp_path: Path) -> None:
    """To the byte on the machine that made it; elsewhere torch may round otherwise, and the figures are the same."""
    pytest.importorskip("torch", reason="training needs tocsin[train]")
    shipped = Registry.open(str(tmp_path / "registry"))

    assert main(["train", "--defaults", "--out", str(tmp_path)]) == 0
    again = decode_minder((tmp_path / "minder" / "model.bin").read_bytes())
    model = decode_minder(shipped.payload("minder", BUILTIN))

    assert again.priority == model.priority
    assert dict(again.limits) == dict(model.limits)
    for name, vae in model.single.items():
        assert again.single[name].output_weight == pytest.approx(vae.output_weight, abs=0.05)
    for name, sigmas in model.variant_sigmas.items():
        assert again.variant_sigmas[name] == pytest.approx(sigmas, abs=0.3)
