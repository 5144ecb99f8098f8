"""A window's frames become blocks before they meet the job's other records.

Runs in the slot of the window, which is that of (job, metric group): a large job's groups are
reduced side by side, and what travels on and is kept in the journal is a fifth of it.
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
"""Of a payload of which nobody says where it stood."""


def reduce_and_pack(
    values: Sequence[bytes | None],
    origins: Sequence[str | None],
    group: str | None,
    key: str | None = None,
    end_second: int | None = None,
    guard: SignedRecords | None = None,
) -> bytes:
    """Join the payloads of one window.

    Args:
        values: payloads.
        origins: where each stood.
        group: metric group of the window's frames; empty: they are no frames, and nothing is decoded. What is no
            frame, or one of a table that must be announced, goes on as it came: the operators know what to do.
        key: the job that the messages' keys name; frames of another one go on as they came. None: not asked.
        end_second: the window's end by Kafka's stamps; frames with another stamp of their own go on, too. None: not
            asked.
        guard: checks signatures; a frame that it refuses goes on as it came, and becomes a dead letter there. None: no
            record need be signed.
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
    """Cluster and job that a message's key names."""
    if key is None:
        return None
    cluster, _, job = key.partition("/")
    return unquote(cluster), unquote(job)


def _belongs(frame: Frame, named: tuple[str, str] | None, end_second: int | None) -> bool:
    if named is not None and (frame.job.cluster, frame.job.job_id) != named:
        return False
    return end_second is None or frame.ts_ns // NS_PER_SECOND == end_second - 1


def _is_signed(frame: Frame, value: bytes, guard: SignedRecords | None) -> bool:
    if guard is None:
        return True
    try:
        guard.check(frame, value)
    except (IdentityError, SchemaError):
        return False
    return True


def _decoded(values: Sequence[bytes]) -> list[Record | None]:
    """Each record, None where it is none."""
    try:
        together = decode_many(values)
    except Exception:  # noqa: BLE001  # supervising: records that break it are decoded one by one
        _LOG.exception("records could not be decoded together")
        together = [None] * len(values)
    return [_alone(value) if record is None else record for value, record in zip(values, together, strict=True)]


def _alone(value: bytes) -> Record | None:
    try:
        return decode(value)
    except Exception:  # noqa: BLE001  # supervising: it goes on as it came, and becomes a dead letter where it is read
        return None


def _fitting(record: Record | None) -> Frame | None:
    table = BUILTIN_TABLES.get(record.table_id) if isinstance(record, Frame) else None
    return record if isinstance(record, Frame) and table is not None and fits(record, table) else None
