"""A detector's model on its way to running engines: what is announced, and how its bytes are named.

The classes of ``schemas.records`` belong to a job; this one belongs to none: a model is announced
once, and every job uses it from the slice on that begins at ``effective_ns``.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Final

NOTICE_NS: Final = 10 * 1_000_000_000
"""A model is announced at least so long before it is used: then every reader has it in time."""
BOUNDARY_NS: Final = 5 * 1_000_000_000
"""``effective_ns`` is a multiple of this: the metric slice (``METRIC_SLICE_NS``)."""
MAX_AHEAD_NS: Final = 24 * 3600 * 1_000_000_000
"""And at most so long: what waits must stay little."""
MAX_MODEL_BYTES: Final = 512 * 1024
"""Models are kilobytes; the topic takes a mebibyte."""

DEFAULT_FORMAT: Final = "default/1"
"""Format of a withdrawal: from then on the detector's own settings count again. It has no payload."""
DEFAULT_VERSION: Final = "default"
BUILTIN_VERSION: Final = "builtin"
"""In registries: what ships with the program."""


@dataclass(frozen=True, slots=True)
class ModelAnnouncement:
    """A model for one detector, and from when on it is used.

    Attributes:
        ts_ns: when it was announced.
        name: the detector that it is for; the key on the topic.
        version: the model's name for people; anomalies carry it.
        format: how the payload is written: detector, "/", number.
        content_hash: sha256 of the payload, 64 hexadecimal digits.
        payload: the model.
        effective_ns: begin of the first slice that is judged with it: a multiple of five seconds,
            at least ten after ``ts_ns``.
    """

    ts_ns: int
    name: str
    version: str
    format: str
    content_hash: str
    payload: bytes
    effective_ns: int


def content_hash(payload: bytes) -> str:
    """Return the name of these bytes, as announcements state it."""
    return hashlib.sha256(payload).hexdigest()


def boundary_after(ts_ns: int, notice_ns: int = NOTICE_NS) -> int:
    """Return the first slice boundary that is at least the notice after a time."""
    return -(-(ts_ns + max(NOTICE_NS, notice_ns)) // BOUNDARY_NS) * BOUNDARY_NS


def withdrawal(name: str, ts_ns: int, effective_ns: int | None = None) -> ModelAnnouncement:
    """Return the announcement that gives a detector its own settings back; also what a tombstone means.

    Args:
        name: the detector.
        ts_ns: when it is said.
        effective_ns: from when on, None: the next slice boundary that leaves enough notice.
    """
    since_ns = boundary_after(ts_ns) if effective_ns is None else effective_ns
    return ModelAnnouncement(ts_ns, name, DEFAULT_VERSION, DEFAULT_FORMAT, content_hash(b""), b"", since_ns)
