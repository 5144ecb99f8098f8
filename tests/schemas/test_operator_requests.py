"""Requests of people cross a topic unchanged; a changed byte breaks the signature; what is none is refused by field."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.schemas.test_operator_notes import JUDGED, WORK
from tocsin.schemas.credentials import Role, new_credential
from tocsin.schemas.errors import FieldError, SchemaError
from tocsin.schemas.operator_requests import (
    MAX_BYTES,
    NoteTaken,
    OperatorRequest,
    decode_request,
    decode_taken,
    encode_request,
    encode_taken,
    is_request_signed_by,
    key_id_in,
    new_request_id,
    request_signature,
)

ASKED = OperatorRequest(new_request_id(), "feedback", {"id": "81ab", "is_true": False, "note": "well"}, "ann", 7)
HOLDER = new_credential(Role.OPERATOR, "ann", 1)


def test_a_request_comes_back_as_it_was() -> None:
    assert decode_request(encode_request(ASKED)) == ASKED


@given(st.integers(0, len(encode_request(ASKED)) - 1), st.integers(1, 255))
def test_a_changed_byte_breaks_the_signature(at: int, by: int) -> None:
    value = encode_request(ASKED)
    header = request_signature(value, HOLDER)
    changed = value[:at] + bytes((value[at] ^ by,)) + value[at + 1 :]
    assert is_request_signed_by(value, header, HOLDER)
    assert not is_request_signed_by(changed, header, HOLDER)
    assert not is_request_signed_by(value, header, new_credential(Role.OPERATOR, "ann", 1))
    assert key_id_in(header) == HOLDER.key_id


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"version": 2}, "request.version"),
        ({"request": "xyz"}, "request.request"),
        ({"values": [1]}, "request.values"),
        ({"values": {"id": {"a": 1}}}, "request.values"),
        ({"by": "b" * 201}, "request.by"),
        ({"ts_ns": -1}, "request.ts_ns"),
    ],
)
def test_what_is_no_request_is_refused_by_field(changed: dict[str, object], field: str) -> None:
    said = {**json.loads(encode_request(ASKED)), **changed}
    with pytest.raises(FieldError, match=field):
        decode_request(json.dumps(said).encode())


def test_a_request_that_is_too_long_is_neither_sent_nor_read() -> None:
    long = replace(ASKED, values={"note": "x" * MAX_BYTES})
    with pytest.raises(FieldError, match="at most"):
        encode_request(long)
    with pytest.raises(FieldError, match="at most"):
        decode_request(b"{" * (MAX_BYTES + 1))


@pytest.mark.parametrize("taken", [NoteTaken(JUDGED), NoteTaken(WORK, ("n1", "n2"))])
def test_a_note_that_counts_comes_back_as_it_was(taken: NoteTaken) -> None:
    assert decode_taken(encode_taken(taken)) == taken


@pytest.mark.parametrize("value", [b"", b"[]", b'{"kind": "wish"}', encode_taken(NoteTaken(WORK)).replace(b"[]", b"7")])
def test_what_is_no_note_is_refused(value: bytes) -> None:
    with pytest.raises(SchemaError):
        decode_taken(value)
