"""The models that ship: an empty folder, a whole one, and a damaged installation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.pipeline.lab.registry.kit import card, payload_of
from tocsin.models.model_formats import FORMATS
from tocsin.pipeline.detect.learned.shipped import shipped_folder
from tocsin.pipeline.lab.registry.builtin import (
    builtin_cards,
    builtin_payload,
    save_builtin,
)
from tocsin.pipeline.lab.registry.card import BUILTIN, write_card
from tocsin.schemas.errors import RegistryError


def test_without_files_each_detector_that_needs_none_has_its_own_settings(tmp_path: Path) -> None:
    cards = builtin_cards(tmp_path)

    assert list(cards) == sorted(["peers", "steps", "entropy"])
    assert all(
        (one.version, one.is_own, builtin_payload(one, tmp_path)) == (BUILTIN, True, b"") for one in cards.values()
    )
    assert builtin_cards(tmp_path / "nowhere") == cards


def test_a_model_that_ships_is_read_as_one_of_a_registry(tmp_path: Path) -> None:
    saved = save_builtin(card("minder"), b"weights", tmp_path)
    cards = builtin_cards(tmp_path)

    assert cards["minder"] == saved
    assert (saved.version, saved.trained_at) == (BUILTIN, card().trained_at)
    assert builtin_payload(saved, tmp_path) == b"weights"


def test_shipped_numbers_stand_in_the_place_of_the_detectors_own(tmp_path: Path) -> None:
    save_builtin(card(), payload_of(), tmp_path)

    assert not builtin_cards(tmp_path)["peers"].is_own
    assert builtin_cards(tmp_path)["steps"].is_own


def test_a_damaged_installation_is_said_by_name(tmp_path: Path) -> None:
    saved = save_builtin(card(), payload_of(), tmp_path)
    (tmp_path / "peers" / "model.bin").write_bytes(b"{")
    with pytest.raises(RegistryError, match=r"peers/model\.bin"):
        builtin_payload(saved, tmp_path)
    (tmp_path / "peers" / "model.bin").unlink()
    with pytest.raises(RegistryError, match="0 bytes"):
        builtin_payload(saved, tmp_path)
    (tmp_path / "peers" / "card.json").write_bytes(write_card(replace(saved, detector="steps")))
    with pytest.raises(RegistryError, match="must say peers builtin"):
        builtin_cards(tmp_path)


def test_what_this_program_ships_can_be_used() -> None:
    for detector, shipped in builtin_cards().items():
        payload = builtin_payload(shipped)
        assert shipped.detector == detector
        if not shipped.is_own and detector in FORMATS:
            FORMATS[detector].read(payload)
    assert (shipped_folder() / "__init__.py").is_file()
