"""The one number of the entropy detector that is fitted, as bytes: its alarm line."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from tocsin.models.documents import Bounds, read_numbers, write_numbers
from tocsin.models.entropy import EntropyConfig

FORMAT_NAME: Final = "entropy/1"
_SECTIONS: Final = {"lines": {"max_sigmas": Bounds(1.0, 100.0)}}


def encode_entropy(config: EntropyConfig) -> bytes:
    """Write it; the same line always gives the same bytes."""
    return write_numbers({"lines": {"max_sigmas": config.max_sigmas}})


def decode_entropy(data: bytes) -> EntropyConfig:
    """Read what ``encode_entropy`` wrote.

    Raises:
        ModelRefusedError: it is something else, or the line is out of its bounds.
    """
    lines = read_numbers(data, _SECTIONS).get("lines", {})
    own = EntropyConfig()
    return replace(own, max_sigmas=lines.get("max_sigmas", own.max_sigmas))
