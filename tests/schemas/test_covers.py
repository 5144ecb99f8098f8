"""Covers on the wire, and what changed between two moments."""

from __future__ import annotations

import pytest

from tocsin.schemas.covers import Cover, covers_between, decode_cover, encode_cover
from tocsin.schemas.errors import SchemaError


def test_a_cover_comes_back_as_it_was() -> None:
    for cover in (Cover("c", "v", "f", 5), Cover("c", "v", "", 0)):
        assert decode_cover(encode_cover(cover)) == cover


@pytest.mark.parametrize(
    ("value", "field"),
    [
        (b"{}", "cluster"),
        (b'{"cluster":"c","verdict_id":"","incident_id":"","ts_ns":1}', "verdict_id"),
        (b'{"cluster":"c","verdict_id":"v","incident_id":7,"ts_ns":1}', "incident_id"),
        (b'{"cluster":"c","verdict_id":"v","incident_id":"","ts_ns":-1}', "ts_ns"),
    ],
)
def test_what_is_no_cover_is_refused_by_field(value: bytes, field: str) -> None:
    with pytest.raises(SchemaError, match=field):
        decode_cover(value)


def test_only_changes_are_told() -> None:
    before, now = {"a": "f", "b": "f", "c": "f"}, {"a": "f", "b": "g", "d": "g"}
    changed = [("b", "g"), ("c", ""), ("d", "g")]
    assert covers_between("k", before, now, 9) == [Cover("k", one, incident, 9) for one, incident in changed]
