"""Batches decoded together are what each alone is, whatever is wrong with some of them."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.pipeline.runtime.flink.batch_decode import decode_many
from tocsin.schemas.credentials import Role, new_credential
from tocsin.schemas.errors import SchemaError
from tocsin.schemas.metrics import BUILTIN_TABLE
from tocsin.schemas.records import CollectiveBatch, CollectiveRecord, Frame, JobKey, Record, StepBatch, StepRecord
from tocsin.schemas.signatures import sign_record
from tocsin.schemas.wire.codec import decode, encode

JOB = JobKey("c", "job", 0)
T0 = 1_800_000_000_000_000_000
COUNT = 40
StepRow = tuple[int, int, int, float, float | None]


def steps(number: int, rows: int = 8, **fields: float | None) -> StepBatch:
    """One host's batch."""
    own = tuple(
        StepRecord(
            T0 + number,
            number * rows + row,
            7,
            1.0 + number / 7,
            **{"loss": float("nan"), "data_seconds": 0.5, **fields},
        )
        for row in range(rows)
    )
    return StepBatch(JOB, f"host-{number:03d}", T0 + number, own)


def collectives(number: int, rows: int = 3) -> CollectiveBatch:
    """One host's batch: communicators of its own."""
    own = tuple(
        CollectiveRecord(T0, "completion", row, f"tp-{number:03d}", "all_reduce", number, 1024, T0 - 9, T0 - 2, peer=-1)
        for row in range(rows)
    )
    return CollectiveBatch(JOB, f"host-{number:03d}", T0, own)


def frame(number: int) -> Frame:
    """One host's frame: GPUs and samples of its own."""
    table, ticks = BUILTIN_TABLE, 5
    values = np.random.default_rng(number).random((2, len(table.gpu), ticks)).astype("<f4")
    values[0, 0, 0] = np.nan
    uuids = (f"GPU-{number:03d}-0", f"GPU-{number:03d}-1")
    host = np.full((len(table.host), ticks), number, "<f4").tobytes()
    reported = (table.table_id, T0 - number, 10**9, ticks, uuids, values.tobytes(), host)
    return Frame(JOB, f"host-{number:03d}", T0 + number, *reported)


def alone(data: bytes) -> Record | None:
    """What the codec makes of it, None: it refuses."""
    try:
        return decode(data)
    except SchemaError:
        return None


def sealed(data: bytes, place: int, new: bytes) -> bytes:
    """With other bytes from this place on, and a checksum that fits them."""
    changed = data[:place] + new + data[place + len(new) :]
    crc = zlib.crc32(changed[16:], zlib.crc32(changed[:12]))
    return changed[:12] + struct.pack("<I", crc) + changed[16:]


def check(records: Sequence[bytes]) -> list[Record | None]:
    """Whatever is decoded together is what it is alone."""
    found = decode_many(records)
    for data, batch in zip(records, found, strict=True):
        if batch is not None:
            assert repr(batch) == repr(alone(data))
    return list(found)


@pytest.mark.parametrize("make", [steps, collectives, frame])
def test_all_hosts_of_one_shape_are_decoded_together(make: type) -> None:
    found = check([encode(make(number)) for number in range(COUNT)])

    assert repr(found) == repr([make(number) for number in range(COUNT)])


@pytest.mark.parametrize("make", [steps, collectives, frame])
def test_signed_ones_are_decoded_together_too(make: type) -> None:
    keys = [new_credential(Role.AGENT, f"n{number}", 1) for number in range(COUNT)]
    found = check([sign_record(encode(make(number)), key) for number, key in enumerate(keys)])

    assert repr(found) == repr([make(number) for number in range(COUNT)])


def test_several_shapes_at_once_and_few_of_one_are_left() -> None:
    records: list[Record] = [
        *(steps(n) for n in range(COUNT)),
        *(collectives(n) for n in range(COUNT)),
        steps(1, 5),
        steps(2, 5),
    ]
    found = check([encode(records[place * 37 % len(records)]) for place in range(len(records))])

    assert [batch is None for batch in found].count(True) == 2


def test_columns_that_nobody_sends_and_some_rows_without_a_value() -> None:
    records = [encode(steps(number, data_seconds=None)) for number in range(COUNT)]
    assert None not in check(records)
    gaps = [
        replace(batch, rows=(batch.rows[0]._replace(loss=None), *batch.rows[1:])) for batch in map(steps, range(COUNT))
    ]

    assert check([encode(batch) for batch in gaps]) == [None] * COUNT


@settings(max_examples=300, deadline=None)
@given(data=st.data(), make=st.sampled_from([steps, collectives, frame]))
def test_whatever_is_wrong_with_some_is_left_to_the_codec(data: st.DataObject, make: type) -> None:
    records = [encode(make(number)) for number in range(COUNT)]
    for _ in range(data.draw(st.integers(1, 6))):
        number = data.draw(st.integers(0, COUNT - 1))
        place = data.draw(st.integers(0, len(records[number]) - 1))
        new = data.draw(st.binary(min_size=1, max_size=9))[: len(records[number]) - place]
        keeps_sum = data.draw(st.booleans())
        changed = records[number][:place] + new + records[number][place + len(new) :]
        records[number] = changed if keeps_sum else sealed(records[number], place, new)
    check(records)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.lists(
                st.tuples(
                    st.integers(T0, T0 + 2),
                    st.integers(0, 2),
                    st.integers(0, 1),
                    st.sampled_from([0.0, 1.5, 1e7]),
                    st.sampled_from([None, float("nan"), float("inf"), -1.0]),
                ),
                min_size=2,
                max_size=2,
            ),
        ),
        min_size=COUNT,
        max_size=COUNT,
    )
)
def test_rows_in_any_order_and_of_any_value(
    drawn: list[tuple[list[tuple[int, int, int, float, float | None]]]],
) -> None:
    batches = [
        StepBatch(JOB, "a", T0, tuple(StepRecord(*row[:4], loss=row[4]) for row in sorted(rows, key=lambda r: r[:3])))
        for (rows,) in drawn
    ]
    check([encode(batch) for batch in batches])


def test_what_is_no_batch_at_all() -> None:
    assert decode_many([]) == []
    assert decode_many([b"", b"TC\x01\x07", b"x" * 500] * COUNT) == [None] * 3 * COUNT
