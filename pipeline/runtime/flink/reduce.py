"""Reduce a window's frames to frame blocks before they meet the job's other records.

This runs in the slot of the window, keyed by (job, metric group), so a large job's groups are reduced in parallel. The
blocks that travel on and are journaled have a fifth of the frames' size.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from urllib.parse import unquote

from tocsin.models.frames import fits
from tocsin.pipeline.core.frame_blocks import BUILTIN_TABLES, blocks_of, encode_block
from tocsin.pipeline.identity.signed import SignedRecords
from tocsin.pipeline.runtime.flink.batch_decode import decode_many
from tocsin.pipeline.runtime.flink.packing import pack
from tocsin.schemas.errors import IdentityError, SchemaError
from tocsin.schemas.records import NS_PER_SECOND, Frame, Record
from tocsin.schemas.wire.codec import decode

_LOG = logging.getLogger("tocsin.flink")
NO_ORIGIN = "::"
"""Origin of a record whose position in a topic is unknown."""


def reduce_and_pack(
    values: Sequence[bytes | None],
    origins: Sequence[str | None],
    group: str | None,
    key: str | None = None,
    end_second: int | None = None,
    guard: SignedRecords | None = None,
) -> bytes:
    """Pack the records of one window, with fitting frames reduced to frame blocks.

    Records that are not reduced are packed unchanged, and the operators decide about them.

    Args:
        values: values of the records.
        origins: position of each record.
        group: metric group of the window's frames; empty: the window has no frames, and nothing is decoded.
        key: the job in the messages' keys; frames of another job are not reduced. None: not checked.
        end_second: end of the window by Kafka's timestamps; frames of another second are not reduced. None: not
            checked.
        guard: checks signatures; frames that it refuses are not reduced, and become dead letters later. None: no check.
    """
    # What has no origin is a block, and of this function: no payload may pass for one.
    origins = [origin or NO_ORIGIN for origin in origins]
    if not group:
        return pack(values, origins)
    named = named_by(key)
    frames: dict[bytes, Frame] = {}
    rest: list[bytes | None] = []
    rest_origins: list[str | None] = []
    plain = [value or b"" for value in values]
    for value, origin, record in zip(values, origins, _decoded(plain), strict=True):
        frame = _fitting(record)
        if (
            frame is None
            or value is None
            or not (_belongs(frame, named, end_second) and _is_signed(frame, value, guard))
        ):
            rest.append(value)
            rest_origins.append(origin)
        else:
            frames[value] = frame
    try:
        blocks = [encode_block(block) for block in blocks_of(frames.values(), BUILTIN_TABLES)]
    except Exception:  # noqa: BLE001  # supervising: one window must not restart all jobs for ever
        _LOG.exception("frames could not be reduced", extra={"group": group, "frames": len(frames)})
        return pack(values, origins)
    return pack([*rest, *blocks], [*rest_origins, *[""] * len(blocks)])


def named_by(key: str | None) -> tuple[str, str] | None:
    """Return the cluster and job in a message key, None if there is no key."""
    if key is None:
        return None
    cluster, _, job = key.partition("/")
    return unquote(cluster), unquote(job)


def _belongs(frame: Frame, named: tuple[str, str] | None, end_second: int | None) -> bool:
    """Return whether a frame is of the job in the key and of the window's last second."""
    if named is not None and (frame.job.cluster, frame.job.job_id) != named:
        return False
    return end_second is None or frame.ts_ns // NS_PER_SECOND == end_second - 1


def _is_signed(frame: Frame, value: bytes, guard: SignedRecords | None) -> bool:
    """Return whether a frame's signature is valid, or none is required."""
    if guard is None:
        return True
    try:
        guard.check(frame, value)
    except (IdentityError, SchemaError):
        return False
    return True


def _decoded(values: Sequence[bytes]) -> list[Record | None]:
    """Decode records, together where possible; None for each that cannot be decoded."""
    try:
        together = decode_many(values)
    except Exception:  # noqa: BLE001  # supervising: records that break it are decoded one by one
        _LOG.exception("records could not be decoded together")
        together = [None] * len(values)
    return [_alone(value) if record is None else record for value, record in zip(values, together, strict=True)]


def _alone(value: bytes) -> Record | None:
    """Decode one record; None if it cannot be decoded."""
    try:
        return decode(value)
    except Exception:  # noqa: BLE001  # supervising: it goes on as it came, and becomes a dead letter where it is read
        return None


def _fitting(record: Record | None) -> Frame | None:
    """Return the record if it is a frame that fits its built-in table, else None."""
    table = BUILTIN_TABLES.get(record.table_id) if isinstance(record, Frame) else None
    return record if isinstance(record, Frame) and table is not None and fits(record, table) else None
