"""Records in one value, there and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.pipeline.runtime.flink.packing import pack, unpack
from tocsin.schemas.errors import DecodeError

RECORDS = st.lists(st.tuples(st.text(max_size=20), st.binary(max_size=200)), max_size=20)


@given(RECORDS)
def test_there_and_back(records: list[tuple[str, bytes]]) -> None:
    packed = pack([data for _, data in records], [origin for origin, _ in records])

    assert [(origin, data) for origin, data in unpack(packed)] == records


def test_a_record_without_a_value_is_empty() -> None:
    assert [(p.origin, p.data) for p in unpack(pack([None], [None]))] == [("", b"")]


@given(RECORDS.filter(bool), st.data())
def test_what_is_cut_short_is_refused(records: list[tuple[str, bytes]], data: st.DataObject) -> None:
    packed = pack([value for _, value in records], [origin for origin, _ in records])
    ends = {0}
    for count in range(1, len(records) + 1):
        ends.add(len(pack([value for _, value in records[:count]], [origin for origin, _ in records[:count]])))
    cut = data.draw(st.integers(0, len(packed)).filter(lambda place: place not in ends))

    with pytest.raises(DecodeError, match="pack"):
        list(unpack(packed[:cut]))
