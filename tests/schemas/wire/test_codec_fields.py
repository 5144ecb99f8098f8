"""Values that may not be: decode names field and value, encode refuses to send them."""

from __future__ import annotations

import dataclasses
import math
import struct
from typing import Any

import pytest

from tests.schemas import samples
from tests.schemas.forge import forged, forged_json, resealed
from tocsin.schemas.errors import FieldError
from tocsin.schemas.records import JobKey, Record, StepBatch, StepRecord, Tick
from tocsin.schemas.wire.codec import (
    Kind,
    decode,
    encode,
    peek,
)

DAY_NS = 86_400 * samples.SECOND_NS
every_sample = pytest.mark.parametrize("record", samples.SAMPLES.values(), ids=samples.SAMPLES.keys())


def q(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}q", *values)


def i(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


def d(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}d", *values)


T0 = samples.SLICE_NS
_SHAPE = (1, 5, 8, T0, samples.SECOND_NS)


def shape(**changed: int) -> dict[int, bytes | None]:
    fields = dict(zip(("table_id", "tick_count", "gpus", "first", "tick_ns"), _SHAPE, strict=True))
    return {1: struct.pack("<IIIqq", *{**fields, **changed}.values())}


@pytest.mark.parametrize(
    ("record", "changed", "field"),
    [
        (samples.STEPS, {5: d(0.5, math.nan, 0.1)}, "steps.duration_seconds[1]"),
        (samples.STEPS, {5: d(0.5, 0.5, -0.1)}, "steps.duration_seconds[2]"),
        (samples.STEPS, {5: d(math.inf, 0.5, 0.1)}, "steps.duration_seconds[0]"),
        (samples.STEPS, {6: b"\x04" + d(-1.0)}, "steps.data_seconds[2]"),
        (samples.STEPS, {6: b"\x07" + d(1.0, math.nan, 1.0)}, "steps.data_seconds[1]"),
        (samples.STEPS, {3: i(8, -2, 8)}, "steps.rank[1]"),
        (samples.STEPS, {4: q(-1, 41, 42)}, "steps.step[0]"),
        (samples.STEPS, {2: q(T0, T0 + 5, T0 + 4)}, "steps.rows[2]"),
        (samples.STEPS, {2: q(-5, T0, T0)}, "steps.ts_ns[0]"),
        (samples.COLLECTIVES, {7: q(-2, 1)}, "collectives.op_seq[0]"),
        (samples.COLLECTIVES, {10: q(T0 - 1, 0)}, "collectives.end_ns[0]"),
        (samples.COLLECTIVES, {11: i(-1, -9)}, "collectives.channel[1]"),
        (samples.COLLECTIVES, {3: struct.pack("<IBB", 2, 0, 1) + b"state\0done\0"}, "collectives.record[1]"),
        (samples.COLLECTIVES, {5: struct.pack("<IBB", 2, 1, 0) + b"\0dp\0"}, "collectives.comm_id[1]"),
        (samples.FRAME, shape(tick_count=0), "frame.tick_count"),
        (samples.FRAME, shape(tick_count=1_000_001), "frame.tick_count"),
        (samples.FRAME, shape(tick_count=4), "frame.gpu_matrix"),
        (samples.FRAME, shape(tick_ns=0), "frame.tick_ns"),
        (samples.FRAME, shape(tick_ns=999_999), "frame.tick_ns"),
        (samples.FRAME, shape(tick_ns=DAY_NS), "frame.tick_ns"),
        (samples.FRAME, shape(first=-1), "frame.first_tick_ns"),
        (samples.FRAME, shape(table_id=0), "frame.table_id"),
        (samples.FRAME, shape(table_id=16, tick_count=7), "frame.gpu_matrix"),
        (samples.FRAME, {2: b"same\0" * 8}, "frame.gpu_uuids"),
        (samples.FRAME, {2: b"\0" * 8}, "frame.gpu_uuids"),
        (samples.FRAME, {3: b"\0" * 4}, "frame.gpu_matrix"),
        (samples.FRAME, {4: b"\0" * 4}, "frame.host_matrix"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_packed_field_is_named(record: Record, changed: dict[int, bytes | None], field: str) -> None:
    with pytest.raises(FieldError) as caught:
        decode(forged(record, changed))

    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field} = ")


def steps(row: StepRecord) -> StepBatch:
    return dataclasses.replace(samples.STEPS, rows=(row,))


@pytest.mark.parametrize(
    ("record", "changed", "field", "shown"),
    [
        (samples.EVENT, {"rank": -2}, "event.rank", "-2"),
        (samples.EVENT, {"rank": True}, "event.rank", "True"),
        (samples.EVENT, {"rank": 1.0}, "event.rank", "1.0"),
        (samples.EVENT, {"source": "gossip"}, "event.source", "'gossip'"),
        (samples.EVENT, {"severity": []}, "event.severity", "[]"),
        (samples.EVENT, {"name": ""}, "event.name", "''"),
        (samples.EVENT, {"payload": [1]}, "event.payload", "[1]"),
        (samples.TOPOLOGY, {"places": [{"rank": -1}]}, "topology.places[0].rank", "-1"),
        (samples.TOPOLOGY, {"places": [{"rank": 0}]}, "topology.places[0].host", "None"),
        (samples.TOPOLOGY, {"places": 3}, "topology.places", "3"),
        (samples.GROUPS, {"groups": [{"ranks": [0, 4, "x"]}]}, "groups.groups[0].ranks[2]", "'x'"),
        (samples.GROUPS, {"groups": [{"ranks": [4, 4]}]}, "groups.groups[0].ranks", "4"),
        (samples.TABLE, {"table_id": 0}, "table.table_id", "0"),
        (samples.TABLE, {"gpu": [{"scope": "host"}]}, "table.gpu[0].scope", "'host'"),
        (samples.HOST_STATUS, {"clock_error_ns": -1}, "host_status.clock_error_ns", "-1"),
        (samples.HOST_STATUS, {"hook_present": 1}, "host_status.hook_present", "1"),
        (samples.HOST_STATUS, {"collectors": {"cpu": 3}}, "host_status.collectors.cpu", "3"),
        (samples.PROBE_ANSWER, {"probe": "guess"}, "probe_answer.probe", "'guess'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_json_field_is_named(record: Record, changed: dict[str, Any], field: str, shown: str) -> None:
    with pytest.raises(FieldError) as caught:
        decode(forged_json(record, **changed))

    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field} = {shown}: must be ")


@pytest.mark.parametrize(
    ("record", "field"),
    [
        (
            steps(StepRecord(1, 0, 0, math.nan)),
            "steps.duration_seconds[0]",
        ),
        (steps(StepRecord(1, 0, 0, "1")), "steps.duration_seconds[0]"),  # type: ignore[arg-type]
        (steps(StepRecord(1, 0, 0, None)), "steps.duration_seconds[0]"),  # type: ignore[arg-type]
        (steps(StepRecord(1, 2**31, 0, 1.0)), "steps.rank[0]"),
        (dataclasses.replace(samples.STEPS, rows=samples.STEPS.rows[::-1]), "steps.rows[1]"),
        (dataclasses.replace(samples.FRAME, tick_count=6), "frame.gpu_matrix"),
        (dataclasses.replace(samples.FRAME, gpu_matrix=None), "frame.gpu_matrix"),  # type: ignore[arg-type]
        (dataclasses.replace(samples.FRAME, gpu_uuids=("a\0b",)), "frame.gpu_uuids[0]"),
        (dataclasses.replace(samples.EVENT, rank=-2), "event.rank"),
        (dataclasses.replace(samples.EVENT, payload={"x": math.nan}), "event"),
        (dataclasses.replace(samples.EVENT, payload={"x": {1, 2}}), "event"),
        (dataclasses.replace(samples.EVENT, host=""), "event.host"),
        (dataclasses.replace(samples.EVENT, host="\udc80"), "event.host"),
        (dataclasses.replace(samples.EVENT, host="h" * 1_025), "event.host"),
        (dataclasses.replace(samples.EVENT, job=JobKey("c", "", 0)), "event.job_id"),
        (dataclasses.replace(samples.EVENT, job=JobKey("c", "j", -1)), "event.attempt"),
        (dataclasses.replace(samples.PROBE_ANSWER, payload="text"), "probe_answer.payload"),  # type: ignore[arg-type]
        (Tick(-1), "tick.ts_ns"),
        (Tick(2**63), "tick.ts_ns"),
        ("no record", "record"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_encode_refuses_what_decode_would(record: Record, field: str) -> None:
    with pytest.raises(FieldError) as caught:
        encode(record)

    assert caught.value.field == field


def test_empty_names_in_the_header_are_named() -> None:
    tick = encode(samples.TICK)
    event = resealed(tick[:3] + bytes([Kind.EVENT]) + tick[4:])
    for read in (decode, peek):
        with pytest.raises(FieldError, match=r"event\.cluster = '': must be not empty"):
            read(event)


@every_sample
@pytest.mark.parametrize("days", [-1, 1])
def test_a_time_more_than_a_day_away(record: Record, days: int) -> None:
    with pytest.raises(FieldError, match=r"\.ts_ns = \d+: must be within a day of"):
        decode(encode(record), now_ns=record.ts_ns - days * (DAY_NS + 1))


@pytest.mark.parametrize("days", [-1, 1])
def test_a_time_just_a_day_away(days: int) -> None:
    assert decode(encode(samples.EVENT), now_ns=samples.END_NS - days * DAY_NS) == samples.EVENT


def test_old_rows_and_old_ticks_do_not_hide_in_a_new_record() -> None:
    late = StepBatch(samples.JOB, "h", samples.END_NS, (StepRecord(0, 0, 0, 1.0), samples.STEPS.rows[0]))
    with pytest.raises(FieldError, match=r"steps\.ts_ns\[0\] = 0: must be within a day"):
        decode(encode(late), now_ns=samples.END_NS)
    early = steps(StepRecord(samples.END_NS + 2 * DAY_NS, 0, 0, 1.0))
    with pytest.raises(FieldError, match=r"steps\.ts_ns\[0\]"):
        decode(encode(early), now_ns=samples.END_NS)
    frame = dataclasses.replace(samples.FRAME, first_tick_ns=5)
    with pytest.raises(FieldError, match=r"frame\.first_tick_ns = 5: must be within a day"):
        decode(encode(frame), now_ns=samples.END_NS)


def test_no_record_has_the_job_of_verdicts_about_many_hosts() -> None:
    """Neither a job of that name nor its records are mixed up with incidents of the fleet."""
    record = dataclasses.replace(samples.STEPS, job=JobKey("c", "fleet"))
    with pytest.raises(FieldError, match=r"steps\.job_id = 'fleet'"):
        encode(record)
    data = encode(dataclasses.replace(samples.STEPS, job=JobKey("c", "fleeT")))
    with pytest.raises(FieldError, match=r"steps\.job_id = 'fleet'"):
        decode(resealed(data.replace(b"fleeT", b"fleet")))
