"""A signature is a record's last section: whoever does not know it reads the same record."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.strategies import records, same
from tocsin.pipeline.runtime.flink.batch_decode import decode_many
from tocsin.schemas.credentials import Role, new_credential
from tocsin.schemas.errors import SchemaError
from tocsin.schemas.records import Record, Tick
from tocsin.schemas.signatures import (
    SIGNATURE_SECTION,
    _sealed,
    is_signed_by,
    sign_record,
    signature_of,
    without_signature,
)
from tocsin.schemas.wire.codec import (
    decode,
    encode,
    header_of,
    peek,
)

NOW = 1_700_000_000 * 10**9
OWN, OTHER = new_credential(Role.AGENT, "n0", NOW), new_credential(Role.AGENT, "n1", NOW)


@given(records())
def test_a_signed_record_reads_as_the_unsigned_one(record: Record) -> None:
    data = encode(record)
    signed = sign_record(data, OWN)
    assert same(decode(signed), record)
    assert peek(signed) == header_of(record)
    assert without_signature(signed) == data
    assert without_signature(data) == data
    (together,) = decode_many([signed])
    assert together is None or same(together, record)


@given(records())
def test_it_tells_whose_key_it_is_and_no_other_passes(record: Record) -> None:
    signed = sign_record(encode(record), OWN)
    found = signature_of(signed)
    assert found is not None
    assert found.key_id == OWN.key_id.encode()
    assert is_signed_by(signed, OWN)
    assert not is_signed_by(signed, OTHER)
    assert not is_signed_by(encode(record), OWN)


@given(records())
def test_signed_again_it_has_one_signature(record: Record) -> None:
    twice = sign_record(sign_record(encode(record), OTHER), OWN)
    assert twice == sign_record(encode(record), OWN)


@given(records(), st.data())
def test_a_changed_byte_is_seen(record: Record, data: st.DataObject) -> None:
    """By the signature; checksum and length, which it leaves out, are the codec's to compare."""
    signed = bytearray(sign_record(encode(record), OWN))
    place = data.draw(st.integers(0, len(signed) - 1).filter(lambda place: not 12 <= place < 20))
    signed[place] ^= data.draw(st.integers(1, 255))
    assert not is_signed_by(bytes(signed), OWN)


@given(records(), st.data())
def test_a_changed_checksum_or_length_is_no_record(record: Record, data: st.DataObject) -> None:
    signed = bytearray(sign_record(encode(record), OWN))
    signed[data.draw(st.integers(12, 19))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(SchemaError):
        decode(bytes(signed))


@given(records(), records())
def test_a_signature_of_one_record_is_none_of_another(first: Record, second: Record) -> None:
    left, right = encode(first), encode(second)
    if left == right:
        return
    tail = sign_record(left, OWN)[len(left) :]
    moved = sign_record(right, OWN)[: len(right)] + tail
    assert not is_signed_by(moved, OWN)


@given(st.binary(max_size=400))
def test_garbage_is_signed_by_nobody(data: bytes) -> None:
    assert not is_signed_by(data, OWN)


@pytest.mark.parametrize("size", [0, 15, 16, 81, 200])
def test_a_section_of_a_wrong_form_is_nobody_s_signature(size: int) -> None:
    plain = encode(Tick(NOW))
    data = _sealed(plain, struct.pack("<HI", SIGNATURE_SECTION, size) + b"a" * size)
    assert not is_signed_by(data, OWN)
    assert decode(data) == Tick(NOW)
