"""Rows of what people were told as messages of a topic, and back."""

from __future__ import annotations

from dataclasses import asdict

from tocsin.pipeline.stores.alert_sent import AlertSent
from tocsin.pipeline.stores.report_codec import MAX_REPORT_BYTES
from tocsin.schemas.errors import DecodeError
from tocsin.schemas.records import JobKey
from tocsin.schemas.wire.validate import MAX_ATTEMPT, ObjectReader, dump_json, load_json

_UINT32_MAX = 2**32 - 1


def encode_alert(alert: AlertSent) -> bytes:
    """Return the message of a notice whose delivery ended."""
    fields = asdict(alert)
    return dump_json({**fields.pop("job"), **fields}, "alert_sent")


def decode_alert(data: bytes) -> AlertSent:
    """Return the row of a message that ``encode_alert`` wrote.

    Raises:
        DecodeError: the bytes are no JSON, or more than ``MAX_REPORT_BYTES``.
        FieldError: a field has a wrong value.
    """
    if len(data) > MAX_REPORT_BYTES:
        raise DecodeError(f"alert_sent: {len(data)} bytes, at most {MAX_REPORT_BYTES}")
    told = ObjectReader(load_json(data, "alert_sent"), "alert_sent")
    return AlertSent(
        job=JobKey(told.name("cluster"), told.name("job_id"), told.integer("attempt", 0, MAX_ATTEMPT)),
        verdict_id=told.name("verdict_id"),
        verdict_update=told.integer("verdict_update", 0, _UINT32_MAX),
        route=told.name("route"),
        receiver=told.name("receiver"),
        receiver_kind=told.name("receiver_kind"),
        kind=told.name("kind"),
        severity=told.name("severity"),
        outcome=told.name("outcome"),
        detail=told.text("detail"),
        tries_count=told.integer("tries_count", 0, _UINT32_MAX),
        made_ns=told.integer("made_ns", 0),
        sent_ns=told.integer("sent_ns", 0),
    )
