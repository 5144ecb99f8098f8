"""Readers of each detector's models, with which a registry checks what it stores or promotes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from tocsin.models.model_formats import FORMATS
from tocsin.pipeline.lab.registry.card import ModelCard
from tocsin.schemas.errors import ModelRefusedError
from tocsin.schemas.reasons import ModelRefusal


class Reader(NamedTuple):
    """The reader of one detector's models.

    Attributes:
        format: newest format that is read: name, "/", number.
        read: function that raises ``ModelRefusedError`` if a payload is no such model.
    """

    format: str
    read: Callable[[bytes], object]


READERS: Final[Mapping[str, Reader]] = {name: Reader(f"{name}/{own.number}", own.read) for name, own in FORMATS.items()}
"""Detector -> reader of its models, the one of announcements: what is stored can be announced.

Models of other detectors are stored unchecked.
"""


def check_readable(card: ModelCard, payload: bytes) -> None:
    """Check that a model can be read by its detector; passes if the detector is unknown or there is no payload.

    Raises:
        ModelRefusedError: the model has another or a newer format, or cannot be read.
    """
    own = READERS.get(card.detector)
    if own is None or (card.is_own and not payload):
        return
    kind, _, number = own.format.partition("/")
    found_kind, _, found_number = card.format.partition("/")
    if found_kind != kind:
        text = f"format = {card.format!r}: must be {own.format}, as {card.detector} reads it"
        raise ModelRefusedError(ModelRefusal.UNKNOWN_FORMAT.value, text)
    if int(found_number) > int(number):
        text = f"format = {card.format!r}: must be {own.format} at most: this program is older than the model"
        raise ModelRefusedError(ModelRefusal.NEWER_FORMAT.value, text)
    own.read(payload)
