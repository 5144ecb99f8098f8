"""Numbers in the payloads of fixed events: what is calculated with is checked where a record is read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from tocsin.schemas.errors import FieldError
from tocsin.schemas.events import EXIT, NAN, STALL, STOPPED

NUMBERS: Final[Mapping[str, tuple[str, ...]]] = {
    EXIT: ("code", "signal"),
    NAN: ("step",),
    STOPPED: ("stopped_ratio",),
    STALL: ("beat_age_seconds", "elapsed_seconds"),
}
"""Payload keys that are calculated with: a number, or null or absent where it is not known."""


def check_numbers(name: str, payload: Mapping[str, Any], field: str) -> None:
    """Hold the payload of a fixed event to ``NUMBERS``.

    Raises:
        FieldError: something else stands where a number must; names the key below ``field``.
    """
    for key in NUMBERS.get(name, ()):
        value = payload.get(key)
        is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        if value is not None and not is_number:
            raise FieldError(f"{field}.{key}", value, "a number, or null")


def number(payload: Mapping[str, Any], key: str, default: float) -> float:
    """A number of a payload that was checked; ``default`` where it is null or absent."""
    value = payload.get(key)
    return default if value is None else value
