"""The models that are part of this program, as bytes."""

from __future__ import annotations

from importlib import resources
from importlib.resources.abc import Traversable


def shipped_folder() -> Traversable:
    """Return the folder of the models that ship: a folder for each detector."""
    return resources.files("tocsin.models") / "defaults"


def shipped_model(detector: str) -> bytes | None:
    """Return the bytes of the model of a detector that ships with this program; None: none ships."""
    file = shipped_folder() / detector / "model.bin"
    return file.read_bytes() if file.is_file() else None
