"""Verdicts as CloudEvents."""

from __future__ import annotations

import dataclasses
import json
import math
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import strategies
from tocsin.schemas.cloudevents import (
    MAX_EVENT_BYTES,
    decode_verdict,
    encode_verdict,
    rfc3339,
)
from tocsin.schemas.errors import DecodeError, FieldError, SchemaError
from tocsin.schemas.records import JobKey
from tocsin.schemas.verdicts import (
    ActionKind,
    Component,
    ComponentKind,
    Evidence,
    FaultKind,
    Suspect,
    Verdict,
    VerdictState,
    evidence_ids,
)

T0 = 1_767_323_045_000_000_007
VERDICT = Verdict(
    verdict_id="0123456789abcdef",
    job=JobKey("eu west", "job778", 2),
    fault=FaultKind.FAIL_SLOW,
    cause="pcie_downgrade",
    suspects=(Suspect(Component(ComponentKind.HOST, "n012"), (3,)),),
    onset_ns=T0 - 5,
    detected_ns=T0,
    confidence=0.123456789,
    action=ActionKind.EVICT,
    reason="same_host_slowest_every_window",
    evidence=(Evidence("similarity", "pcie_usage_ratio", 3.14159265, T0 - 5, T0, "slow", 0.1, None),),
    state=VerdictState.OPEN,
    update=4,
    expires_ns=T0 + 9,
)


def changed(wire: bytes, **data: Any) -> bytes:
    """A CloudEvent with some keys of its data changed."""
    event = json.loads(wire)
    return json.dumps(event | {"data": event["data"] | data}).encode()


@given(strategies.verdicts)
def test_a_verdict_comes_back_as_it_was(verdict: Verdict) -> None:
    wire = encode_verdict(verdict)

    assert decode_verdict(wire) == verdict
    assert encode_verdict(decode_verdict(wire)) == wire


def test_the_envelope_of_a_verdict() -> None:
    event = json.loads(encode_verdict(VERDICT))

    assert event.pop("data")["confidence"] == VERDICT.confidence
    assert event == {
        "specversion": "1.0",
        "id": "0123456789abcdef.4",
        "source": "/eu%20west/tocsin",
        "type": "dev.tocsin.verdict.v1",
        "subject": "n012",
        "time": "2026-01-02T03:04:05.000000007Z",
        "partitionkey": "eu west/job778",
        "datacontenttype": "application/json",
    }


def test_nobody_at_fault_is_the_jobs_matter() -> None:
    nobody = dataclasses.replace(VERDICT, suspects=())

    assert json.loads(encode_verdict(nobody))["subject"] == "job778"


def test_data_is_the_line_and_what_it_lacks() -> None:
    data = json.loads(encode_verdict(VERDICT))["data"]

    assert [key for key in data if key in VERDICT.to_line()] == list(VERDICT.to_line())
    assert set(data) - set(VERDICT.to_line()) == {"cluster", "attempt", "expires_ns"}
    assert data["evidence"][0]["score"] == 3.14159265
    assert data["evidence"][0]["id"] == evidence_ids(VERDICT)[0]


def test_the_version_of_a_model_comes_back_and_stands_there_only_if_there_is_one() -> None:
    evidence = dataclasses.replace(VERDICT.evidence[0], model_version="v7")
    versioned = dataclasses.replace(VERDICT, evidence=(evidence,))

    assert decode_verdict(encode_verdict(versioned)) == versioned
    assert "model_version" not in json.loads(encode_verdict(VERDICT))["data"]["evidence"][0]
    assert versioned.to_line() == VERDICT.to_line(), "the keys of verdicts.jsonl are a contract"


def test_unknown_attributes_and_keys_are_ignored() -> None:
    event = json.loads(changed(encode_verdict(VERDICT), mood="calm"))
    event["traceparent"] = "00-1-2-3"

    assert decode_verdict(json.dumps(event).encode()) == VERDICT


def test_a_verdict_of_a_program_that_told_no_cost_is_read() -> None:
    assert decode_verdict(encode_verdict(VERDICT)).costs_ratio is None
    assert decode_verdict(changed(encode_verdict(VERDICT), costs_ratio=0.25)).costs_ratio == 0.25


def test_a_verdict_of_a_program_that_told_no_witnesses_is_read() -> None:
    nothing: tuple[dict[str, Any], ...] = ({}, {"witnesses": None}, {"witnesses": []})
    for missing in nothing:
        assert decode_verdict(changed(encode_verdict(VERDICT), **missing)).witnesses == ()


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ({"confidence": 1.5}, "verdict.data.confidence"),
        ({"confidence": "high"}, "verdict.data.confidence"),
        ({"fault": "gremlins"}, "verdict.data.fault"),
        ({"state": None}, "verdict.data.state"),
        ({"onset_ns": -1}, "verdict.data.onset_ns"),
        ({"suspects": [{"kind": "moon", "name": "x"}]}, "verdict.data.suspects[0].kind"),
        ({"suspects": [{"kind": "host", "name": "x", "ranks": [-1]}]}, "verdict.data.suspects[0].ranks[0]"),
        ({"evidence": [{"start_ns": 5, "end_ns": 9, "detector": ""}]}, "verdict.data.evidence[0].detector"),
        ({"common": 3}, "verdict.data.common"),
        ({"costs_ratio": 1.5}, "verdict.data.costs_ratio"),
        ({"costs_ratio": "much"}, "verdict.data.costs_ratio"),
        ({"witnesses": "n1"}, "verdict.data.witnesses"),
        ({"witnesses": [{"host": "n1", "kind": "rumour"}]}, "verdict.data.witnesses[0].kind"),
        ({"witnesses": [{"host": "", "kind": "steps"}]}, "verdict.data.witnesses[0].host"),
        ({"witnesses": [{"host": "n1", "kind": "steps"}] * 17}, "verdict.data.witnesses"),
        ({"cluster": ""}, "verdict.data.cluster"),
        ({"update": 5}, "id"),
        ({"cluster": "us"}, "source"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_wrong_field_is_named(data: dict[str, Any], field: str) -> None:
    with pytest.raises(FieldError) as caught:
        decode_verdict(changed(encode_verdict(VERDICT), **data))

    assert caught.value.field == field


def test_evidence_that_ends_before_it_begins() -> None:
    evidence = dataclasses.replace(VERDICT.evidence[0], end_ns=T0 - 6)
    with pytest.raises(FieldError, match=r"verdict\.data\.evidence\[0\]\.end_ns"):
        encode_verdict(dataclasses.replace(VERDICT, evidence=(evidence,)))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_no_number_never_reaches_the_wire(value: float) -> None:
    evidence = dataclasses.replace(VERDICT.evidence[0], suspect_value=value)
    with pytest.raises(FieldError, match=r"evidence\[0\]\.suspect_value"):
        encode_verdict(dataclasses.replace(VERDICT, evidence=(evidence,)))


@given(st.binary(max_size=60))
def test_noise_raises_nothing_else(noise: bytes) -> None:
    with pytest.raises(SchemaError):
        decode_verdict(noise)


def test_an_event_may_not_be_huge() -> None:
    with pytest.raises(DecodeError, match="at most 1000000"):
        decode_verdict(b" " * (MAX_EVENT_BYTES + 1))


@given(st.integers(0, strategies.INT64))
def test_time_is_exact_to_the_nanosecond(ts_ns: int) -> None:
    text = rfc3339(ts_ns)
    seconds, fraction = text.removesuffix("Z").split(".")

    whole = datetime.strptime(seconds, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC)
    assert int(whole.timestamp()) * 1_000_000_000 + int(fraction) == ts_ns
