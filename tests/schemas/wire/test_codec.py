"""The wire codec: round trips, pinned bytes, and what it does with bytes that lie."""

from __future__ import annotations

import dataclasses
import math
import random
import struct
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests import strategies
from tests.schemas import samples
from tests.schemas.forge import forged, forged_json, resealed
from tocsin.schemas.errors import (
    DecodeError,
    FieldError,
    SchemaError,
    TruncatedError,
    UnknownKindError,
    VersionError,
)
from tocsin.schemas.records import JobKey, ProbeAnswer, Record, StepBatch, StepRecord
from tocsin.schemas.wire._format import seal
from tocsin.schemas.wire.codec import (
    MAX_RECORD_BYTES,
    WIRE_VERSION,
    Header,
    Kind,
    decode,
    encode,
    header_of,
    peek,
)

GOLDEN = Path(__file__).parent / "golden"
every_sample = pytest.mark.parametrize("record", samples.SAMPLES.values(), ids=samples.SAMPLES.keys())


# --- round trips -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", Kind, ids=lambda kind: kind.name.lower())
@given(data=st.data())
def test_round_trip_gives_the_same_record_and_the_same_bytes(kind: Kind, data: st.DataObject) -> None:
    record = data.draw(strategies.records_of(kind))

    wire = encode(record)

    assert strategies.same(decode(wire, now_ns=strategies.BASE_NS), record)
    assert encode(decode(memoryview(wire))) == wire
    assert peek(wire) == header_of(record)
    assert peek(wire).kind is kind


def test_zero_has_one_encoding_and_so_has_nan() -> None:
    odd_nan = struct.unpack("<d", b"\x01\x00\x00\x00\x00\x00\xf8\xff")[0]
    plus = StepBatch(samples.JOB, "h", 1, (StepRecord(1, 0, 0, 0.0, 0.0, loss=math.nan, grad_norm=0.0),))
    minus = StepBatch(samples.JOB, "h", 1, (StepRecord(1, 0, 0, -0.0, -0.0, loss=odd_nan, grad_norm=-0.0),))

    assert encode(plus) == encode(minus)


def test_order_of_payload_keys_does_not_show() -> None:
    one = dataclasses.replace(samples.EVENT, payload={"a": 1, "b": {"c": 2, "d": 3}})
    two = dataclasses.replace(samples.EVENT, payload={"b": {"d": 3, "c": 2}, "a": 1})

    assert encode(one) == encode(two)


def test_none_and_nan_stay_apart() -> None:
    decoded = decode(encode(samples.STEPS))

    assert isinstance(decoded, StepBatch)
    assert decoded.rows[1].loss is not None
    assert math.isnan(decoded.rows[1].loss)
    assert decoded.rows[1].grad_norm == math.inf
    assert decoded.rows[2].loss is None


def test_more_texts_than_a_byte_counts() -> None:
    row = samples.COLLECTIVES.rows[0]
    rows = tuple(row._replace(ts_ns=row.ts_ns + i, comm_id=f"comm{i}") for i in range(70_000))
    batch = dataclasses.replace(samples.COLLECTIVES, rows=rows)

    assert decode(encode(batch)) == batch


# --- pinned bytes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", samples.SAMPLES)
def test_version_1_is_pinned(name: str) -> None:
    golden = (GOLDEN / f"{name}.bin").read_bytes()

    assert encode(samples.SAMPLES[name]) == golden
    assert strategies.same(decode(golden), samples.SAMPLES[name])


def test_every_kind_has_a_golden_file() -> None:
    kinds = {peek(path.read_bytes()).kind for path in GOLDEN.glob("*.bin")}

    assert kinds == set(Kind)
    assert WIRE_VERSION == 1


def test_a_frame_of_8_gpus_takes_at_most_3000_bytes() -> None:
    assert {len(uuid) for uuid in samples.UUIDS} == {40}
    assert len(samples.FRAME.gpu_matrix) == 8 * 13 * 5 * 4
    assert len(samples.FRAME.host_matrix) == 8 * 5 * 4

    assert len(encode(samples.FRAME)) <= 3_000


# --- newer senders -----------------------------------------------------------------------------------


@every_sample
def test_unknown_sections_and_flags_are_ignored(record: Record) -> None:
    data = bytearray(forged(record, {999: b"from the future", 65_535: b""}))
    data[4:6] = b"\xff\xff"

    assert strategies.same(decode(resealed(bytes(data))), record)


def test_unknown_keys_are_ignored() -> None:
    assert decode(forged_json(samples.EVENT, colour="blue")) == samples.EVENT


def test_a_longer_frame_shape_is_read_by_its_known_part() -> None:
    shape = struct.pack("<IIIqq", 1, 5, 8, samples.SLICE_NS, samples.SECOND_NS)

    assert decode(forged(samples.FRAME, {1: shape + b"more"})) == samples.FRAME


# --- bytes that are no record ------------------------------------------------------------------------


@every_sample
def test_cut_at_every_length(record: Record) -> None:
    wire = encode(record)
    for size in range(len(wire)):
        with pytest.raises(TruncatedError):
            decode(wire[:size])


@every_sample
def test_every_flipped_bit_is_found(record: Record) -> None:
    wire = encode(record)
    for place in range(len(wire)) if len(wire) < 1_000 else random.Random(7).sample(range(len(wire)), 1_000):
        damaged = bytearray(wire)
        damaged[place] ^= 1 << (place % 8)
        with pytest.raises(SchemaError):
            decode(bytes(damaged))


@given(st.binary(max_size=200), st.booleans())
def test_random_bytes_raise_nothing_else(noise: bytes, magic: bool) -> None:
    data = b"TC\x01" + noise if magic else noise
    for read in (decode, peek):
        with pytest.raises(SchemaError):
            read(data)


@given(st.data())
def test_damage_with_a_right_checksum_raises_nothing_else(data: st.DataObject) -> None:
    wire = bytearray(encode(data.draw(st.sampled_from(list(samples.SAMPLES.values())))))
    for _ in range(data.draw(st.integers(1, 4))):
        wire[data.draw(st.integers(0, len(wire) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, 8))
    try:
        record = decode(resealed(bytes(wire[: len(wire) - cut])))
    except SchemaError:
        return
    assert strategies.same(decode(encode(record)), record)


@given(st.sampled_from(list(samples.SAMPLES.values())), st.integers(1, 17), st.binary(max_size=40))
def test_a_section_of_noise_raises_nothing_else(record: Record, number: int, noise: bytes) -> None:
    try:
        decoded = decode(forged(record, {number: noise}))
    except SchemaError:
        return
    assert strategies.same(decode(encode(decoded)), decoded)


def test_what_is_wrong_with_the_outside_has_a_class_of_its_own() -> None:
    wire = encode(samples.TICK)
    with pytest.raises(DecodeError, match="begins with b'XX"):
        decode(b"XX" + wire[2:])
    with pytest.raises(VersionError, match="wire version 9: this program reads 1"):
        decode(wire[:2] + b"\x09" + wire[3:])
    with pytest.raises(UnknownKindError, match="kind 200"):
        decode(resealed(wire[:3] + b"\xc8" + wire[4:]))
    with pytest.raises(DecodeError, match="checksum"):
        decode(wire[:-1] + bytes([wire[-1] ^ 1]))
    with pytest.raises(DecodeError, match="1 bytes behind the end"):
        decode(wire + b"\0")
    with pytest.raises(DecodeError, match="section 7 comes twice"):
        decode(seal(header_of(samples.TICK), [(7, b""), (7, b"")]))


def test_above_16_megabytes_is_refused_both_ways() -> None:
    with pytest.raises(DecodeError, match=f"at most {MAX_RECORD_BYTES}"):
        decode(memoryview(bytes(MAX_RECORD_BYTES + 1)))
    with pytest.raises(DecodeError, match=f"at most {MAX_RECORD_BYTES}"):
        decode(encode(samples.TICK)[:16] + struct.pack("<I", 2**32 - 1) + encode(samples.TICK)[20:])
    with pytest.raises(FieldError, match=r"probe_answer\.length"):
        encode(dataclasses.replace(samples.PROBE_ANSWER, payload=bytes(MAX_RECORD_BYTES)))


def test_a_lying_count_of_rows_costs_nothing() -> None:
    begin = time.process_time()
    with pytest.raises(DecodeError, match=r"steps\.ts_ns: 24 bytes, its rows need 8000000"):
        decode(forged(samples.STEPS, {1: struct.pack("<I", 1_000_000)}))
    with pytest.raises(FieldError, match=r"steps\.rows = 1000001: must be at most 1000000"):
        decode(forged(samples.STEPS, {1: struct.pack("<I", 1_000_001)}))
    assert time.process_time() - begin < 0.5


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b"\xff",
        b'{"a": NaN}',
        b'{"a": 1e999}',
        b'{"a": "\\ud800"}',
        b"[" * 100_000,
        b"9" * 5_000,
    ],
    ids=[
        "empty",
        "array",
        "cut",
        "not_utf8",
        "nan",
        "beyond_float64",
        "half_surrogate",
        "deep",
        "long_number",
    ],
)
def test_json_that_is_none(body: bytes) -> None:
    with pytest.raises(SchemaError, match="event"):
        decode(forged(samples.EVENT, {1: body}))


@pytest.mark.parametrize("depth", [70, 300, 900, 980])
def test_deep_json_is_refused_before_anybody_shows_it(depth: int) -> None:
    deep = "[" * depth + "]" * depth
    for body in (f'{{"rank": {deep}}}', f'{{"payload": {deep}}}'):
        with pytest.raises(DecodeError, match=r"nested deeper than 64|recursion"):
            decode(forged(samples.EVENT, {1: body.encode()}))


@pytest.mark.parametrize("depth", [70, 5_000])
def test_deep_json_is_not_sent(depth: int) -> None:
    deep: list[Any] = []
    for _ in range(depth):
        deep = [deep]
    with pytest.raises(FieldError, match=r"event = '\w+Error': must be JSON"):
        encode(dataclasses.replace(samples.EVENT, payload={"deep": deep}))


def test_many_ranks_of_which_two_are_equal_are_refused_in_a_moment() -> None:
    ranks = [*range(300_000), 299_999]
    begin = time.process_time()
    with pytest.raises(FieldError, match=r"groups\.groups\[0\]\.ranks = 299999: must be different"):
        decode(forged_json(samples.GROUPS, groups=[{"comm_id": "c", "kind": "dp", "ranks": ranks}]))
    assert time.process_time() - begin < 5.0


# --- the header alone ------------------------------------------------------------------------------


def test_peek_reads_the_header_alone() -> None:
    wire = encode(samples.PROBE_ANSWER)
    damaged = wire[:-1] + b"X"

    assert peek(damaged) == Header(Kind.PROBE_ANSWER, samples.END_NS, samples.JOB, samples.HOST)
    assert peek(encode(samples.TICK)) == Header(Kind.TICK, samples.END_NS, JobKey("", "", 0), "")
    assert isinstance(decode(wire), ProbeAnswer)
