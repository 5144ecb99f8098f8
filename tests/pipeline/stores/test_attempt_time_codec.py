"""Accounts as messages: what is written is read, and what is wrong is named."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.pipeline.stores.attempt_time_codec import attempt_time_key, decode_attempt_time, encode_attempt_time
from tocsin.pipeline.stores.attempt_times import AttemptTime, TimePart
from tocsin.schemas.errors import SchemaError
from tocsin.schemas.records import JobKey

TOLD = AttemptTime(JobKey("c", "a/b", 3), 100, 200, 210, False, {TimePart.PRODUCTIVE: 60, TimePart.IDLE: 40}, 5, 2, 7)


@given(
    st.dictionaries(st.sampled_from(TimePart), st.integers(0, 10**15)),
    st.integers(0, 10**15),
    st.booleans(),
    st.integers(-1, 10**9),
)
def test_an_account_comes_back(parts: dict[TimePart, int], rest_ns: int, is_over: bool, last_step: int) -> None:
    until_ns = 10 + sum(parts.values()) + rest_ns
    told = AttemptTime(JobKey("c", "j", 0), 10, until_ns, until_ns, is_over, parts, 1, 0, last_step)
    found = decode_attempt_time(encode_attempt_time(told))

    assert found == told
    assert found.unattributed_ns == rest_ns


def test_equal_accounts_give_equal_bytes_and_a_new_begin_has_a_key_of_its_own() -> None:
    turned = AttemptTime(**{**_fields(TOLD), "parts_ns": dict(sorted(TOLD.parts_ns.items()))})

    assert encode_attempt_time(turned) == encode_attempt_time(TOLD)
    assert attempt_time_key(TOLD) == b"c/a%2Fb/3/100"
    assert attempt_time_key(AttemptTime(**{**_fields(TOLD), "began_ns": 101})) == b"c/a%2Fb/3/101"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("until_ns", 99),
        ("told_ns", "x"),
        ("attempt", -1),
        ("over", 1),
        ("last_step", -2),
        ("parts_ns", {"productive": 101}),
        ("parts_ns", {"productive": -1}),
        ("parts_ns", {"sleeping": 1}),
        ("parts_ns", []),
        ("steps", None),
    ],
)
def test_what_is_wrong_is_named(field: str, value: object) -> None:
    fields = json.loads(encode_attempt_time(TOLD))

    with pytest.raises(SchemaError, match=f"ettr.{field}"):
        decode_attempt_time(json.dumps({**fields, field: value}).encode())


def test_what_is_no_account_is_refused() -> None:
    for data in (b"", b"[]", b"{}", b"x" * 2_000_000):
        with pytest.raises(SchemaError, match="ettr"):
            decode_attempt_time(data)


def _fields(told: AttemptTime) -> dict[str, Any]:
    return {name: getattr(told, name) for name in AttemptTime.__dataclass_fields__}
