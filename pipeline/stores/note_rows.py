"""Convert what people and the fleet view say of verdicts and hosts to rows of the incident database."""

from __future__ import annotations

from tocsin.pipeline.stores.rows import Row, TimeNs
from tocsin.schemas.covers import Cover
from tocsin.schemas.operator_notes import Feedback, Maintenance


def feedback_row(said: Feedback) -> Row:
    """Return a judgement of a verdict as a row of ``feedback``."""
    return {
        "cluster": said.cluster,
        "verdict_id": said.verdict_id,
        "is_true": said.is_true,
        "note": said.note,
        "actor": said.actor,
        "ts": TimeNs(said.ts_ns),
    }


def maintenance_row(work: Maintenance) -> Row:
    """Return planned work as a row of ``maintenance``."""
    return {
        "maintenance_id": work.maintenance_id,
        "cluster": work.cluster,
        "target_kind": work.target.kind.value,
        "target": work.target.name,
        "begins": TimeNs(work.begin_ns),
        "ends": TimeNs(work.end_ns),
        "reason": work.reason,
        "actor": work.actor,
        "ts": TimeNs(work.ts_ns),
    }


def cover_row(cover: Cover) -> Row:
    """Return which fleet incident stands for a verdict as a row of ``fleet_covers``."""
    return {
        "cluster": cover.cluster,
        "verdict_id": cover.verdict_id,
        "incident_id": cover.incident_id,
        "ts": TimeNs(cover.ts_ns),
    }
