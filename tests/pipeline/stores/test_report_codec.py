"""Messages beside verdicts: what is written is read, and what is wrong is named."""

from __future__ import annotations

import contextlib
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pipeline.stores.samples import JOB, ONSET, SECOND
from tocsin.pipeline.stores.base import EvidencePoint, HostHealth, JobStatus
from tocsin.pipeline.stores.report_codec import (
    MAX_POINTS,
    decode_evidence,
    decode_health,
    decode_status,
    encode_evidence,
    encode_health,
    encode_status,
)
from tocsin.pipeline.stores.rows import job_status_row
from tocsin.schemas.errors import SchemaError
from tocsin.schemas.verdicts import Component, ComponentKind

HOST = Component(ComponentKind.HOST, "n3")
STATE: dict[str, Any] = {
    "host_count": 1,
    "rank_count": 8,
    "stepping_rank_count": 7,
    "max_step": 12,
    "ended": False,
    "verdicts": [],
    "abstained": {"no_model": 3},
    "hosts": {},
    "ranks": {},
}


def point(second: int, value: float = 1.5, metric: str = "own_seconds") -> EvidencePoint:
    return EvidencePoint("v", metric, HOST, ONSET + second * SECOND, value, 1.0, 0.5, math.nan, 7)


def test_a_series_comes_back_in_order_with_its_missing_values() -> None:
    points = [point(2), point(1, math.nan), point(1, 2.0, "cpu_util_ratio")]
    found = [one for data in encode_evidence(points) for one in decode_evidence(data)]

    assert [(one.metric, one.ts_ns) for one in found] == [
        ("cpu_util_ratio", ONSET + SECOND),
        ("own_seconds", ONSET + SECOND),
        ("own_seconds", ONSET + 2 * SECOND),
    ]
    assert math.isnan(found[1].suspect_value)
    assert found[2].suspect_value == 1.5


def test_a_long_series_is_several_messages() -> None:
    assert [len(decode_evidence(one)) for one in encode_evidence([point(n) for n in range(MAX_POINTS + 3)])] == [
        MAX_POINTS,
        3,
    ]


def test_minutes_and_states_come_back() -> None:
    minutes = [HostHealth(JOB, "n1", ONSET, 60, 1, 2, 0.5, "cpu_util_ratio"), HostHealth(JOB, "n2", ONSET, 0, 0, 5)]
    status = JobStatus(JOB, ONSET, True, STATE, [{"detector": "peers"}])

    assert [one for data in encode_health(minutes) for one in decode_health(data)] == minutes
    assert decode_status(encode_status(status)) == status
    gone = JobStatus(JOB, ONSET, False, {})
    assert decode_status(encode_status(gone)) == JobStatus(JOB, ONSET, False, {}, [])


def test_a_state_that_came_through_the_topic_is_the_row_that_the_engine_itself_writes() -> None:
    models = [{"version": "new", "detector": "peers", "state": "in use", "effective_ns": ONSET}]
    status = JobStatus(JOB, ONSET, True, STATE, models)

    assert job_status_row(decode_status(encode_status(status))) == job_status_row(status)


@pytest.mark.parametrize(
    ("field", "value"),
    [("max_step", "x"), ("ended", 1), ("abstained", {"no_model": -1}), ("verdicts", {}), ("rank_count", -1)],
)
def test_a_wrong_field_of_a_state_is_named(field: str, value: object) -> None:
    reported = json.loads(encode_status(JobStatus(JOB, ONSET, True, STATE)))
    reported["state"][field] = value
    with pytest.raises(SchemaError, match=f"job_status.state.{field}"):
        decode_status(json.dumps(reported).encode())


@given(st.binary(), st.integers(0, 200))
def test_no_bytes_raise_anything_but_a_schema_error(noise: bytes, at: int) -> None:
    [good] = encode_evidence([point(1)])
    for decode in (decode_evidence, decode_health, decode_status):
        for data in (noise, good[:at] + noise + good[at:]):
            with contextlib.suppress(SchemaError):
                decode(data)
