"""Announced models: the payload format of each detector, and the checks on acceptance.

Each detector has one format, ``NAME/NUMBER``: a function that reads the payload, checks it and returns what the
detector takes. The number grows when older programs could not read the payload. ``accept`` is the only entry: it
returns a usable model or raises an error with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from tocsin.models.bilstm_file import decode_live_bilstm
from tocsin.models.documents import Model, read_peers, read_steps, refuse_field
from tocsin.models.entropy_file import decode_entropy
from tocsin.models.minder_file import decode_live_minder
from tocsin.schemas.model_announcement import (
    BOUNDARY_NS,
    DEFAULT_FORMAT,
    MAX_AHEAD_NS,
    NOTICE_NS,
    ModelAnnouncement,
    content_hash,
)
from tocsin.schemas.reasons import ModelRefusal


class ModelFormat(NamedTuple):
    """The payload format of one detector's models.

    Attributes:
        number: newest format number that this program reads.
        read: function from payload to the detector's numbers, or to what a trained detector holds; raises
            ``ModelRefusedError``.
        is_trained: whether the payload is of a trained detector.
    """

    number: int
    read: Callable[[bytes], Any]
    is_trained: bool = False


FORMATS: Final[Mapping[str, ModelFormat]] = {
    "bilstm": ModelFormat(1, decode_live_bilstm, is_trained=True),
    "entropy": ModelFormat(1, decode_entropy, is_trained=True),
    "minder": ModelFormat(1, decode_live_minder, is_trained=True),
    "peers": ModelFormat(1, read_peers),
    "steps": ModelFormat(1, read_steps),
}
"""Detector name -> payload format of its models."""


def accept(announcement: ModelAnnouncement) -> Model:
    """Check an announced model and return it in the form that its detector takes.

    Checks the times, the detector's name, the content hash, the format number and the payload.

    Raises:
        ModelRefusedError: the model cannot be used; the error carries the reason.
    """
    _check_time(announcement)
    name = announcement.name
    own = FORMATS.get(name)
    if own is None:
        refuse_field(ModelRefusal.UNKNOWN_DETECTOR, "name", name, f"one of {' '.join(sorted(FORMATS))}")
    digest = content_hash(announcement.payload)
    if digest != announcement.content_hash:
        wanted = f"the payload's, {digest}"
        refuse_field(ModelRefusal.HASH_MISMATCH, "content_hash", announcement.content_hash, wanted)
    if announcement.format == DEFAULT_FORMAT:
        return Model("", None)
    kind, _, number = announcement.format.partition("/")
    if kind != name or not (number.isascii() and number.isdigit()) or int(number[:9]) < 1:
        wanted = f"{name}/{own.number} or {DEFAULT_FORMAT}"
        refuse_field(ModelRefusal.UNKNOWN_FORMAT, "format", announcement.format, wanted)
    if int(number[:9]) > own.number:
        wanted = f"{name}/{own.number} at most: this program is older than the model"
        refuse_field(ModelRefusal.NEWER_FORMAT, "format", announcement.format, wanted)
    found = own.read(announcement.payload)
    if own.is_trained:
        return Model(announcement.version, None, found, digest)
    return Model(announcement.version, found, content_hash=digest)


def _check_time(announcement: ModelAnnouncement) -> None:
    """Refuse an announcement whose effective time is off a slice boundary, too soon or more than a day ahead."""
    effective_ns, notice_ns = announcement.effective_ns, announcement.effective_ns - announcement.ts_ns
    if effective_ns % BOUNDARY_NS:
        wanted = f"the begin of a slice: a multiple of {BOUNDARY_NS}"
        refuse_field(ModelRefusal.NOT_A_BOUNDARY, "effective_ns", effective_ns, wanted)
    if notice_ns < NOTICE_NS:
        wanted = f"at least {NOTICE_NS // 10**9} s after the announcement's own time, {announcement.ts_ns}"
        refuse_field(ModelRefusal.SHORT_NOTICE, "effective_ns", effective_ns, wanted)
    if notice_ns > MAX_AHEAD_NS:
        wanted = f"at most a day after the announcement's own time, {announcement.ts_ns}"
        refuse_field(ModelRefusal.FAR_AHEAD, "effective_ns", effective_ns, wanted)
