"""Announcements of a detector's model to running engines, and the hash that names the model's bytes.

The classes of ``schemas.records`` belong to a job; this one does not. A model is announced once, and every
job uses it from the slice that begins at ``effective_ns``.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

NOTICE_NS: Final = 10 * 1_000_000_000
"""Least time between the announcement of a model and its use, so that every reader has it in time."""
BOUNDARY_NS: Final = 5 * 1_000_000_000
"""``effective_ns`` must be a multiple of this: the length of a metric slice (``METRIC_SLICE_NS``)."""
MAX_AHEAD_NS: Final = 24 * 3600 * 1_000_000_000
"""Longest time between announcement and use, so that few models wait."""
MAX_MODEL_BYTES: Final = 512 * 1024
"""Largest payload. Models have kilobytes; the topic accepts a mebibyte."""

DEFAULT_FORMAT: Final = "default/1"
"""Format of a withdrawal, without payload: the detector uses its default settings again."""
DEFAULT_VERSION: Final = "default"
BUILTIN_VERSION: Final = "builtin"
"""Version name, in registries, of a model that is part of the program."""


@dataclass(frozen=True, slots=True)
class ModelAnnouncement:
    """A model for one detector and the time from which it is used.

    Attributes:
        ts_ns: time of the announcement.
        name: the detector; also the key on the topic.
        version: human-readable version, which anomalies carry.
        format: format word of the payload: detector, "/", number.
        content_hash: sha256 of the payload, 64 hexadecimal digits.
        payload: the model's bytes.
        effective_ns: begin of the first slice that is judged with it: a multiple of five seconds, at least ten seconds
            after ``ts_ns``.
    """

    ts_ns: int
    name: str
    version: str
    format: str
    content_hash: str
    payload: bytes
    effective_ns: int


def content_hash(payload: bytes) -> str:
    """Return the SHA-256 of a payload as announcements state it, 64 hexadecimal digits."""
    return hashlib.sha256(payload).hexdigest()


def boundary_after(ts_ns: int, notice_ns: int = NOTICE_NS) -> int:
    """Return the first slice boundary at least ``notice_ns`` (and at least ``NOTICE_NS``) after a time."""
    return -(-(ts_ns + max(NOTICE_NS, notice_ns)) // BOUNDARY_NS) * BOUNDARY_NS


def withdrawal(name: str, ts_ns: int, effective_ns: int | None = None) -> ModelAnnouncement:
    """Return the announcement that gives a detector its default settings back; a tombstone means the same.

    Args:
        name: the detector.
        ts_ns: time of the announcement.
        effective_ns: time from which it counts; None: the next slice boundary with enough notice.
    """
    since_ns = boundary_after(ts_ns) if effective_ns is None else effective_ns
    return ModelAnnouncement(ts_ns, name, DEFAULT_VERSION, DEFAULT_FORMAT, content_hash(b""), b"", since_ns)
