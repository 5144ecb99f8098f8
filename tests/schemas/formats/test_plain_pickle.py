"""The reader of plain pickles: what ``pickle`` writes of plain values, and nothing else."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.schemas.errors import DecodeError, SchemaError
from tocsin.schemas.formats import plain_pickle
from tocsin.schemas.formats.plain_pickle import load_plain, weigh
from tocsin.schemas.wire.validate import INT64_MAX, INT64_MIN

scalars = st.none() | st.booleans() | st.integers(INT64_MIN, INT64_MAX) | st.floats(allow_nan=False) | st.text()
plain = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=8) | st.integers(INT64_MIN, INT64_MAX), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(plain, st.integers(2, 5))
def test_what_pickle_writes_is_read(value: object, protocol: int) -> None:
    assert load_plain(pickle.dumps([value, value], protocol)) == [value, value]


@given(st.binary(), st.integers(3, 5))
def test_bytes_are_read_since_protocol_3(value: bytes, protocol: int) -> None:
    assert load_plain(pickle.dumps([value], protocol)) == [value]


def test_real_dumps_are_read_as_pickle_reads_them(shared_data: Path) -> None:
    files = sorted((shared_data / "flight_recorder").glob("*/_dump_*"))
    assert files
    for file in files:
        data = file.read_bytes()
        assert load_plain(data) == pickle.loads(data)


@given(st.binary(max_size=60))
def test_noise_raises_nothing_else(noise: bytes) -> None:
    for data in (noise, b"\x80\x02}(" + noise + b"u.", b"](" + noise + b"e."):
        try:
            load_plain(data)
        except SchemaError:
            continue


@given(plain, st.integers(0, 400), st.integers(0, 255))
def test_damage_raises_nothing_else(value: object, place: int, byte: int) -> None:
    data = bytearray(pickle.dumps(value))
    data[place % len(data)] = byte
    try:
        load_plain(bytes(data))
    except SchemaError:
        return


@pytest.mark.parametrize("code", sorted(set(range(256)) - {key[0] for key in plain_pickle.KNOWN_OPCODES} - {ord(".")}))
def test_each_other_opcode_is_refused_by_its_name(code: int) -> None:
    with pytest.raises(DecodeError, match="a dump holds plain values only"):
        load_plain(b"]]" + bytes([code]) + b"os\nsystem\n.")


def test_the_budget_counts_opcodes_and_what_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_pickle, "MAX_OPCODES", 100)
    assert load_plain(b"](" + b"N" * 95 + b"e.") == [None] * 95
    with pytest.raises(DecodeError, match="more than 100 values"):
        load_plain(b"](" + b"N" * 97 + b"e.")
    monkeypatch.setattr(plain_pickle, "MAX_MADE", 10)
    assert load_plain(b"](" + b"]" * 8 + b"e.") == [[]] * 8
    for made in (b"]", b"}", b")", b"(", b"X\x00\x00\x00\x00", b"C\x00", b"N\x85"):
        with pytest.raises(DecodeError, match="more than 10 containers"):
            load_plain(b"](" + made * 9 + b"e.")


@pytest.mark.parametrize("key", [(), (1, 2), 1.5, None, True, b"x"])
def test_keys_are_texts_or_numbers(key: Any) -> None:
    with pytest.raises(DecodeError, match="is a key"):
        load_plain(pickle.dumps({key: 1}))


def test_a_value_is_weighed_as_often_as_it_stands_there() -> None:
    value: Any = ["x" * 160]
    for _ in range(5):
        value = (value, value)
    assert weigh(value, 10_000) == 2**6 - 1 + 2**5 * (1 + 10)
    with pytest.raises(DecodeError, match="more than 100 values"):
        weigh(value, 100)
    deep: Any = ()
    for _ in range(40):
        deep = (deep,)
    with pytest.raises(DecodeError, match="deeper than 16"):
        weigh(deep, 1_000)
