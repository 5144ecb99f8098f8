"""Durations and times as people write them in flags."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from tocsin.schemas.errors import ConfigError
from tocsin.schemas.records import NS_PER_SECOND

_DURATION: Final = re.compile(r"(\d{1,6})\s*(s|min|m|h|d)")
_SECONDS: Final = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}


def seconds_in(text: str) -> int | None:
    """Return a duration such as ``90s``, ``30min``, ``2h`` or ``3d`` in seconds, None: it is no duration.

    >>> seconds_in("2h")
    7200
    """
    found = _DURATION.fullmatch(text.strip())
    return None if found is None else int(found[1]) * _SECONDS[found[2]]


def duration_of(text: str, flag: str) -> int:
    """Return the duration that a flag names, in seconds.

    Raises:
        ConfigError: it names none.
    """
    seconds = seconds_in(text)
    if not seconds:
        raise ConfigError(flag, text, "a duration such as 30min, 2h or 3d")
    return seconds


def moment_ns(text: str, flag: str, now_ns: int, *, ahead: bool) -> int:
    """Return the time that a flag names, in Unix ns: a duration from now, or a time by ISO 8601 (UTC without a zone).

    Args:
        text: the flag's value.
        flag: its name.
        now_ns: the time from which a duration counts.
        ahead: whether a duration counts into the future; else into the past.

    Raises:
        ConfigError: it names neither.
    """
    seconds = seconds_in(text)
    if seconds is not None:
        return max(1, now_ns + (seconds if ahead else -seconds) * NS_PER_SECOND)
    try:
        moment = datetime.fromisoformat(text.strip())
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        return max(1, int(moment.timestamp()) * NS_PER_SECOND)
    except (ValueError, OverflowError):
        must = "a duration such as 30min, 2h or 3d, or a time such as 2026-11-25T03:00:00Z"
        raise ConfigError(flag, text, must) from None
