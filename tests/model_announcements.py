"""Announcements for tests: models that change what a detector says."""

from __future__ import annotations

from dataclasses import replace

from tocsin.models.documents import Numbers, write_numbers
from tocsin.schemas.model_announcement import ModelAnnouncement, content_hash
from tocsin.schemas.records import NS_PER_SECOND

_DEAF_SUMS = {"alarm_sum": 20.0, "drift_sigmas": 4.5, "max_sigmas": 7.5}
DEAF: Numbers = {"working": _DEAF_SUMS, "standing": _DEAF_SUMS}
"""Peers: as hard of hearing as a model may make them; a deviation of a few sigmas is not heard any more."""


def announced(
    start_ns: int,
    at_second: int,
    effective_second: int,
    numbers: Numbers = DEAF,
    *,
    name: str = "peers",
    version: str = "deaf",
) -> ModelAnnouncement:
    """A model that is announced so many seconds after the start, and used so many seconds after it."""
    payload = write_numbers(numbers)
    ts_ns, effective_ns = (start_ns + second * NS_PER_SECOND for second in (at_second, effective_second))
    return ModelAnnouncement(ts_ns, name, version, f"{name}/1", content_hash(payload), payload, effective_ns)


def with_payload(announcement: ModelAnnouncement, payload: bytes) -> ModelAnnouncement:
    """The same with other bytes, rightly named."""
    return replace(announcement, payload=payload, content_hash=content_hash(payload))
