"""Records that would break or fill an operator are refused at decode, by the name of their field."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import strategies
from tests.hostile_records import HOSTILE_RECORDS, event, exit_of_400_digits, raw_event, wrong_values
from tests.schemas import samples
from tests.schemas.forge import forged_json
from tocsin.schemas.errors import FieldError, SchemaError, short_form
from tocsin.schemas.records import Event
from tocsin.schemas.wire.codec import Kind, decode, encode
from tocsin.schemas.wire.event_payloads import RULES
from tocsin.schemas.wire.validate import (
    INT64_MAX,
    INT64_MIN,
    dump_json,
    load_json,
)


@pytest.mark.parametrize("name", HOSTILE_RECORDS)
def test_it_is_refused_by_name(name: str) -> None:
    field, make = HOSTILE_RECORDS[name]
    with pytest.raises(SchemaError) as caught:
        decode(make())

    assert str(caught.value).startswith(field)
    assert len(str(caught.value)) < 1_000


def test_it_is_the_message_of_the_report() -> None:
    assert len(exit_of_400_digits()) <= 560


@pytest.mark.parametrize("place", wrong_values())
def test_each_key_that_has_a_rule_holds_to_it(place: str) -> None:
    name, _, key = place.partition(".")
    for value in wrong_values()[place]:
        with pytest.raises(SchemaError):
            decode(event(name, {key: value}))
        with pytest.raises(FieldError):
            encode(dataclasses.replace(samples.EVENT, name=name, payload={key: value}))


@pytest.mark.parametrize("name", RULES)
def test_null_absent_and_unknown_stay_allowed(name: str) -> None:
    for payload in ({}, dict.fromkeys(RULES[name]), {"of_others": [{"x": "y"}], "text": ["z"]}):
        found = decode(event(name, payload))
        assert isinstance(found, Event)
        assert found.payload == payload


# What collectors of ours and the recording format write.
RIGHT: list[tuple[str, dict[str, Any]]] = [
    ("pcie_link", {"gen": 5, "width": 16, "max_gen": 5, "max_width": 16, "uuid": "GPU-1", "at_start": False}),
    ("clocks_event", {"reasons": ["hw_thermal"]}),
    ("clocks_event", {"reasons": []}),
    ("ecc", {"kind": "uncorrected", "count": 1}),
    ("nvlink_error", {"kind": "crc", "count": 3, "link": 2}),
    ("row_remap", {"pending": True, "failure": False}),
    ("row_remap", {"pending": 1, "failure": 0}),
    ("ib_port", {"port": "mlx5_0/1", "state": "active", "rate_gbps": 400, "link_downed": 0, "max_rate_gbps": 400.0}),
    ("phase", {"phase": "checkpoint", "edge": "begin"}),
    ("xid", {"code": 94, "pci": "0000:c1:00.0", "registers": [1, 2]}),
    ("exit", {"code": -11, "signal": 11, "stderr_tail": "x" * 100_000}),
    ("exit", {"code": None, "signal": None, "stderr_tail": None}),
    ("stage", {"stage": "image_load", "edge": "begin", "start_kind": "full"}),
    ("loader", {"source": "", "queue_depth": 0, "fetch_seconds": 0.0, "rows": 0, "tokens": 1e6, "memory_bytes": 2**40}),
    ("nan", {"step": 12, "what": "loss", "value": "nan"}),
    ("nan", {"step": -1, "where": "local_grad_norm", "value": 3.5}),
    ("stopped", {"pid": 7, "edge": "begin", "seconds": 0.5, "stopped_ratio": 0.25}),
    ("stall", {"edge": "begin", "step": 3, "phase": "", "elapsed_seconds": 61.0, "in_collective": True}),
    ("clock_step", {"step_seconds": -1.8e9}),
    ("clock_ahead", {"ahead_seconds": 1.8e9}),
    ("hello", {"pid": 4, "world_size": -1, "hook_version": "1"}),
]


@pytest.mark.parametrize(("name", "payload"), RIGHT)
def test_what_is_written_today_is_read(name: str, payload: dict[str, Any]) -> None:
    record = dataclasses.replace(samples.EVENT, name=name, payload=payload)

    assert decode(encode(record)) == record


@given(st.integers(INT64_MIN, INT64_MAX))
def test_integers_of_64_bit_come_back(value: int) -> None:
    assert load_json(dump_json({"a": [value]}, "x"), "x") == {"a": [value]}


@given(st.integers(INT64_MAX + 1, 10**500) | st.integers(-(10**500), INT64_MIN - 1))
def test_integers_beyond_are_refused_both_ways(value: int) -> None:
    with pytest.raises(FieldError, match="x = 'ValueError': must be JSON"):
        dump_json({"a": [{"b": value}]}, "x")
    with pytest.raises(SchemaError, match="x is no JSON"):
        load_json(b'{"a": [%d]}' % value, "x")


_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**63, -(2**63) - 1, 10**400, 10**18])
    | st.floats()
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    record=st.sampled_from([samples.EVENT, samples.TOPOLOGY, samples.GROUPS, samples.HOST_STATUS, samples.TABLE]),
    key=st.sampled_from(["payload", "rank", "places", "groups", "ranks_seen", "collectors", "clock_offset_ns", "gpu"]),
    value=_json,
)
def test_any_json_in_any_key_is_a_record_or_a_schema_error(record: Any, key: str, value: Any) -> None:
    try:
        found = decode(forged_json(record, **{key: value}))
    except SchemaError:
        return
    assert strategies.same(decode(encode(found)), found)


@given(name=st.sampled_from(list(RULES)), data=st.data())
def test_any_payload_of_a_fixed_event_is_a_record_or_a_schema_error(name: str, data: st.DataObject) -> None:
    keys = st.sampled_from(list(RULES[name]))
    payload = data.draw(st.dictionaries(keys, _json, max_size=4))
    try:
        found = decode(event(name, payload))
    except SchemaError:
        return
    assert strategies.same(decode(encode(found)), found)


@given(data=st.data())
def test_extreme_records_are_read_back(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from([kind for kind in Kind if kind is not Kind.MODEL]))
    record = data.draw(strategies.extreme_records_of(kind))

    assert strategies.same(decode(encode(record)), record)


@pytest.mark.parametrize("depth", [65, 5_000, 100_000])
def test_deep_payloads_are_refused(depth: int) -> None:
    with pytest.raises(SchemaError, match="event"):
        decode(raw_event("any", '{"a": ' + "[" * depth + "]" * depth + "}"))


def test_what_is_shown_of_a_value_is_short_and_cheap() -> None:
    nested: Any = ()
    for _ in range(60):  # 2^60 values for whoever walks through all of them
        nested = (nested, nested)
    circle: list[Any] = []
    circle.append(circle)
    for value in (nested, circle, 10**10_000, ["x" * 1_000_000] * 1_000, {"k" * 10_000: nested}, b"x" * 1_000_000):
        assert len(short_form(value)) <= 120
    assert short_form(["a", 1, None, (2,), {"b": 1.5}]) == repr(["a", 1, None, (2,), {"b": 1.5}])
