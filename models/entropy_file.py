"""File format of the ``entropy`` detector: its one fitted number, the alarm line, as JSON."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tocsin.models.documents import Bounds, read_numbers, write_numbers
from tocsin.models.entropy import EntropyConfig

FORMAT_NAME: Final = "entropy/1"
"""The format word of an ``entropy`` model in registries and announcements."""
_SECTIONS: Final = {"lines": {"max_sigmas": Bounds(1.0, 16.0)}}
"""A quarter of the program's own line to four times as much, so that no model can blind the detector."""


def encode_entropy(config: EntropyConfig) -> bytes:
    """Return the file of a fitted alarm line (``max_sigmas``); the same line always gives the same bytes."""
    return write_numbers({"lines": {"max_sigmas": config.max_sigmas}})


def decode_entropy(data: bytes) -> EntropyConfig:
    """Read a file of ``encode_entropy`` and return the default settings with its alarm line.

    Raises:
        ModelRefusedError: the bytes are another kind of file, or the line is out of bounds.
    """
    lines = read_numbers(data, _SECTIONS).get("lines", {})
    own = EntropyConfig()
    return replace(own, max_sigmas=lines.get("max_sigmas", own.max_sigmas))
