"""Accounts of attempts as messages of a topic, and back."""

from __future__ import annotations

from typing import Final

from tocsin.pipeline.stores.attempt_times import AttemptTime, TimePart
from tocsin.pipeline.stores.report_codec import MAX_REPORT_BYTES
from tocsin.schemas.errors import DecodeError, FieldError
from tocsin.schemas.kafka.topics import path_key
from tocsin.schemas.records import JobKey
from tocsin.schemas.wire.validate import MAX_ATTEMPT, UINT32_MAX, ObjectReader, dump_json, load_json

_PATH: Final = "ettr"


def attempt_time_key(told: AttemptTime) -> bytes:
    """Return the Kafka key of an attempt's accounts; the later one of two with the same key replaces the other."""
    return path_key(told.job.cluster, told.job.job_id, str(told.job.attempt), str(told.began_ns))


def encode_attempt_time(told: AttemptTime) -> bytes:
    """Return the message with an account; equal accounts give equal bytes."""
    return dump_json(
        {
            "cluster": told.job.cluster,
            "job_id": told.job.job_id,
            "attempt": told.job.attempt,
            "began_ns": told.began_ns,
            "until_ns": told.until_ns,
            "told_ns": told.told_ns,
            "over": told.is_over,
            "parts_ns": {part.value: told.parts_ns[part] for part in TimePart if part in told.parts_ns},
            "steps": told.steps_count,
            "recomputed_steps": told.recomputed_steps_count,
            "last_step": told.last_step,
            "gpus": told.gpu_count,
        },
        _PATH,
    )


def decode_attempt_time(data: bytes) -> AttemptTime:
    """Return the account of a message that ``encode_attempt_time`` wrote.

    Raises:
        DecodeError: the bytes are no JSON, or more than ``MAX_REPORT_BYTES``.
        FieldError: a field has a wrong value, or the parts sum to more than the wall time.
    """
    if len(data) > MAX_REPORT_BYTES:
        raise DecodeError(f"{_PATH}: {len(data)} bytes, at most {MAX_REPORT_BYTES}")
    told = ObjectReader(load_json(data, _PATH), _PATH)
    began_ns = told.integer("began_ns", 0)
    found = AttemptTime(
        job=JobKey(told.name("cluster"), told.name("job_id"), told.integer("attempt", 0, MAX_ATTEMPT)),
        began_ns=began_ns,
        until_ns=told.integer("until_ns", began_ns),
        told_ns=told.integer("told_ns", 0),
        is_over=told.boolean("over"),
        parts_ns=_parts(told),
        steps_count=told.integer("steps", 0),
        recomputed_steps_count=told.integer("recomputed_steps", 0),
        last_step=told.integer("last_step", -1),
        gpu_count=told.integer("gpus", 0, UINT32_MAX) if told.has("gpus") else 0,  # absent in older messages
    )
    if found.unattributed_ns < 0:
        raise FieldError(told.field("parts_ns"), dict(found.parts_ns), f"at most {found.wall_ns} ns together")
    return found


def _parts(told: ObjectReader) -> dict[TimePart, int]:
    """Return part -> nanoseconds; raise ``FieldError`` where a name is no part."""
    values = told.mapping("parts_ns")
    parts = ObjectReader(values, told.field("parts_ns"))
    if unknown := sorted(values.keys() - set(TimePart)):
        raise FieldError(parts.field(unknown[0]), values[unknown[0]], f"one of {', '.join(TimePart)}")
    return {part: parts.integer(part.value, 0) for part in TimePart if part.value in values}
