"""The models that are part of this package, as bytes."""

from __future__ import annotations

from importlib import resources


def shipped_model(detector: str) -> bytes | None:
    """Return the bytes of the model of a detector that ships with this program; None: none ships."""
    file = resources.files("tocsin.models") / "defaults" / detector / "model.bin"
    return file.read_bytes() if file.is_file() else None
