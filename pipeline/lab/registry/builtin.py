"""The models that are part of the program, as registry entries of version ``builtin``.

``models/defaults/DETECTOR/`` holds ``model.bin`` and ``card.json``. A detector that works without a model and
has no folder there has a card too, which represents the default settings in its code.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

from tocsin.models.model_formats import FORMATS
from tocsin.pipeline.detect.learned.shipped import shipped_folder
from tocsin.pipeline.lab.registry.card import (
    BUILTIN,
    ModelCard,
    is_detector,
    named,
    own_settings,
    read_card,
    write_card,
)
from tocsin.pipeline.lab.registry.provenance import code_version
from tocsin.schemas.errors import RegistryError
from tocsin.schemas.model_announcement import content_hash
from tocsin.schemas.reasons import RegistryRefusal

CARD_FILE: Final = "card.json"
MODEL_FILE: Final = "model.bin"
WITHOUT_A_MODEL: Final = (*(name for name, own in FORMATS.items() if not own.is_trained), "entropy")
"""Detectors that work without a model, with default settings."""


def builtin_cards(folder: Traversable | None = None) -> dict[str, ModelCard]:
    """Return detector -> card of its built-in model, by name.

    Args:
        folder: folder of the models, None for the package's.

    Raises:
        RegistryError: a file of the package is damaged.
    """
    place = shipped_folder() if folder is None else folder
    found = {detector: own_settings(detector, code_version()) for detector in WITHOUT_A_MODEL}
    for entry in place.iterdir() if place.is_dir() else ():
        if entry.is_dir() and is_detector(entry.name) and (entry / CARD_FILE).is_file():
            found[entry.name] = _shipped_card(entry)
    return dict(sorted(found.items()))


def _shipped_card(entry: Traversable) -> ModelCard:
    """Read and check the card of one detector's folder."""
    file = str(entry / CARD_FILE)
    card = read_card((entry / CARD_FILE).read_bytes(), file)
    if (card.detector, card.version) != (entry.name, BUILTIN):
        text = f"says {card.detector} {card.version}: must say {entry.name} {BUILTIN}"
        raise RegistryError(RegistryRefusal.FOREIGN.value, file, text)
    return card


def builtin_payload(card: ModelCard, folder: Traversable | None = None) -> bytes:
    """Return the bytes of a built-in model, b"" for a detector's default settings.

    Raises:
        RegistryError: the bytes are not those that the card states.
    """
    if card.is_own:
        return b""
    file = (shipped_folder() if folder is None else folder) / card.detector / MODEL_FILE
    data = file.read_bytes() if file.is_file() else b""
    return checked(data, card, str(file))


def checked(data: bytes, card: ModelCard, file: str) -> bytes:
    """Return the bytes if their hash is the card's.

    Raises:
        RegistryError: the hash differs.
    """
    if content_hash(data) != card.content_hash:
        text = f"{len(data)} bytes whose SHA-256 is not the card's: damaged, cut short, or another model"
        raise RegistryError(RegistryRefusal.HASH_MISMATCH.value, file, text)
    return data


def save_builtin(card: ModelCard, payload: bytes, folder: Path) -> ModelCard:
    """Write a model as one that is part of the program; used by its maintainers.

    Args:
        card: without version and hash.
        payload: the model's bytes.
        folder: ``models/defaults`` in the sources.

    Returns:
        The card with version and hash.
    """
    own = replace(named(card, payload), version=BUILTIN)
    place = folder / own.detector
    place.mkdir(parents=True, exist_ok=True)
    (place / MODEL_FILE).write_bytes(payload)
    (place / CARD_FILE).write_bytes(write_card(own))
    return own
