"""Messages for what an engine says beside its verdicts: evidence series, host health, states of jobs.

Each message is one JSON object. Equal content gives equal bytes, so that a message that is sent twice gives the same
rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Final

from tocsin.pipeline.stores.base import EvidencePoint, HostHealth, JobStatus
from tocsin.schemas.errors import DecodeError, FieldError
from tocsin.schemas.records import JobKey
from tocsin.schemas.verdicts import Component, ComponentKind
from tocsin.schemas.wire.validate import (
    MAX_ATTEMPT,
    UINT32_MAX,
    ObjectReader,
    check_int,
    dump_json,
    is_number,
    load_json,
)

MAX_REPORT_BYTES: Final = 1_000_000
"""Largest size of a message."""
MAX_POINTS: Final = 5_000
"""Most points of a series in one message."""
MAX_MINUTES: Final = 2_000
"""Most minutes of hosts in one message."""


def encode_evidence(points: Sequence[EvidencePoint]) -> Iterator[bytes]:
    """Yield messages with these points, one for each series of a verdict, metric and component."""
    for (verdict_id, metric, component), own in groupby(
        sorted(points, key=_series_order), key=lambda one: (one.verdict_id, one.metric, one.component)
    ):
        rows = [[one.ts_ns, *map(_number, _values(one)), one.peer_count] for one in own]
        for first in range(0, len(rows), MAX_POINTS):
            yield dump_json(
                {
                    "verdict_id": verdict_id,
                    "metric": metric,
                    "component": {"kind": component.kind.value, "name": component.name},
                    "points": rows[first : first + MAX_POINTS],
                },
                "evidence",
            )


def decode_evidence(data: bytes) -> list[EvidencePoint]:
    """Return the points of a message that ``encode_evidence`` wrote.

    Raises:
        DecodeError: the bytes are no JSON, or more than ``MAX_REPORT_BYTES``.
        FieldError: a field has a wrong value.
    """
    series = _object(data, "evidence")
    who = ObjectReader(series.mapping("component"), series.field("component"))
    component = Component(who.choice("kind", ComponentKind), who.name("name"))
    verdict_id, metric = series.name("verdict_id"), series.name("metric")
    found = []
    for index, row in enumerate(series.items("points")):
        field = f"{series.field('points')}[{index}]"
        if not isinstance(row, list) or len(row) != 6:
            raise FieldError(field, row, "an array of time, four values and a count")
        suspect, middle, low, high = (_value(one, field) for one in row[1:5])
        ts_ns, peer_count = check_int(row[0], field, 0), check_int(row[5], field, 0, UINT32_MAX)
        found.append(EvidencePoint(verdict_id, metric, component, ts_ns, suspect, middle, low, high, peer_count))
    return found


def encode_health(minutes: Sequence[HostHealth]) -> Iterator[bytes]:
    """Yield messages with these minutes, one for each attempt of a job."""
    for job, own in groupby(sorted(minutes, key=lambda one: (one.job, one.minute_ns, one.host)), lambda one: one.job):
        rows = [
            [
                one.host,
                one.minute_ns,
                one.sample_count,
                one.late_count,
                one.gap_count,
                one.worst_score,
                one.worst_metric,
            ]
            for one in own
        ]
        for first in range(0, len(rows), MAX_MINUTES):
            yield dump_json({**_job_fields(job), "minutes": rows[first : first + MAX_MINUTES]}, "host_health")


def decode_health(data: bytes) -> list[HostHealth]:
    """Return the minutes of a message that ``encode_health`` wrote.

    Raises:
        DecodeError: the bytes are no JSON, or more than ``MAX_REPORT_BYTES``.
        FieldError: a field has a wrong value.
    """
    fields = _object(data, "host_health")
    job = _job_of(fields)
    found = []
    for index, row in enumerate(fields.items("minutes")):
        field = f"{fields.field('minutes')}[{index}]"
        if not isinstance(row, list) or len(row) != 7:
            raise FieldError(field, row, "an array of seven values")
        names = ("host", "minute_ns", "samples", "late", "gaps", "worst_score", "worst_metric")
        one = ObjectReader(dict(zip(names, row, strict=True)), field)
        found.append(
            HostHealth(
                job,
                one.name("host"),
                one.integer("minute_ns", 0),
                one.integer("samples", 0, UINT32_MAX),
                one.integer("late", 0, UINT32_MAX),
                one.integer("gaps", 0, UINT32_MAX),
                one.number("worst_score", 0.0),
                one.name("worst_metric", empty=True),
            )
        )
    return found


def encode_status(status: JobStatus) -> bytes:
    """Return the message with the state of an attempt.

    Raises:
        FieldError: the state holds a value that JSON cannot express.
    """
    fields = {"ts_ns": status.ts_ns, "known": status.is_known, "state": dict(status.state), "models": [*status.models]}
    return dump_json({**_job_fields(status.job), **fields}, "job_status")


def decode_status(data: bytes) -> JobStatus:
    """Return the state in a message that ``encode_status`` wrote.

    Raises:
        DecodeError: the bytes are no JSON, or more than ``MAX_REPORT_BYTES``.
        FieldError: a field has a wrong value.
    """
    fields = _object(data, "job_status")
    state = fields.mapping("state")
    if fields.boolean("known"):
        _check_state(ObjectReader(state, fields.field("state")))
    models = [dict(fields.items("models")[index]) for index, _ in enumerate(fields.objects("models"))]
    return JobStatus(_job_of(fields), fields.integer("ts_ns", 0), fields.boolean("known"), state, models)


def _check_state(state: ObjectReader) -> None:
    """Raise ``FieldError`` where a state lacks what a row of it needs."""
    for name in ("host_count", "rank_count", "stepping_rank_count"):
        state.integer(name, 0, UINT32_MAX)
    state.integer("max_step", -1)
    state.boolean("ended")
    state.items("verdicts")
    for reason, count in state.mapping("abstained").items():
        check_int(count, f"{state.field('abstained')}.{reason}", 0)


def _series_order(point: EvidencePoint) -> tuple[str, str, str, str, int]:
    """Return the sort key of a point: verdict, metric, component, time."""
    return point.verdict_id, point.metric, point.component.kind.value, point.component.name, point.ts_ns


def _values(point: EvidencePoint) -> tuple[float, float, float, float]:
    """Return the four values of a point, in the order of the message."""
    return point.suspect_value, point.peer_median_value, point.peer_p05_value, point.peer_p95_value


def _number(value: float) -> float | None:
    """Return a value for JSON, None where it is missing (NaN)."""
    return value if math.isfinite(value) else None


def _value(value: object, field: str) -> float:
    """Return a value of a message, NaN where it is missing; raise ``FieldError`` where it is no number."""
    if value is None:
        return math.nan
    if not is_number(value):
        raise FieldError(field, value, "a finite number or null")
    return float(value)


def _job_fields(job: JobKey) -> dict[str, Any]:
    """Return the fields of a message that name an attempt."""
    return {"cluster": job.cluster, "job_id": job.job_id, "attempt": job.attempt}


def _job_of(fields: ObjectReader) -> JobKey:
    """Return the attempt that a message names."""
    return JobKey(fields.name("cluster"), fields.name("job_id"), fields.integer("attempt", 0, MAX_ATTEMPT))


def _object(data: bytes, path: str) -> ObjectReader:
    """Return a reader of a message's JSON object."""
    if len(data) > MAX_REPORT_BYTES:
        raise DecodeError(f"{path}: {len(data)} bytes, at most {MAX_REPORT_BYTES}")
    return ObjectReader(load_json(data, path), path)
