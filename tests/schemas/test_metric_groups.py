"""Frames cut by metric groups, and put together again."""

from dataclasses import replace

import pytest
from hypothesis import given

from tests.schemas.samples import FRAME, UUIDS
from tests.strategies import frames, same
from tocsin.schemas.errors import FieldError
from tocsin.schemas.metric_groups import GROUP_OF_TABLE, METRIC_GROUPS, group_of, join_frames, split_frame
from tocsin.schemas.metrics import BUILTIN_TABLE, FIRST_CUSTOM_TABLE_ID
from tocsin.schemas.records import Frame
from tocsin.schemas.wire.codec import decode, encode


def test_the_groups_hold_each_column_once_in_its_order() -> None:
    assert tuple(metric for group in METRIC_GROUPS for metric in group.table.gpu) == BUILTIN_TABLE.gpu
    assert tuple(metric for group in METRIC_GROUPS for metric in group.table.host) == BUILTIN_TABLE.host
    assert all(1 < table_id < FIRST_CUSTOM_TABLE_ID for table_id in GROUP_OF_TABLE)


def test_a_host_s_frame_becomes_one_a_group_each_a_record_of_its_own() -> None:
    parts = split_frame(FRAME)

    assert [group_of(part) for part in parts] == ["compute", "device", "network"]
    assert [decode(encode(part)) for part in parts] == list(parts)
    assert sum(len(part.gpu_matrix) for part in parts) == len(FRAME.gpu_matrix)
    assert {part.gpu_uuids for part in parts} == {UUIDS}


@given(frames())
def test_what_is_cut_can_be_joined_in_any_order(frame: Frame) -> None:
    parts = split_frame(frame)
    if parts == (frame,):
        assert group_of(frame) == "all"
    else:
        assert same(join_frames(reversed(parts)), frame)


def test_a_group_that_is_missing_is_no_sample() -> None:
    compute, _, network = split_frame(FRAME)
    joined = join_frames([network, compute])

    assert len(joined.gpu_matrix) == len(FRAME.gpu_matrix)
    assert split_frame(joined)[0] == compute
    assert set(split_frame(joined)[1].host_matrix) == set(b"\x00\x00\xc0\x7f")


def test_what_does_not_belong_together_is_not_joined() -> None:
    compute, device, _ = split_frame(FRAME)
    with pytest.raises(FieldError, match="cut from the frame"):
        join_frames([compute, replace(device, host="another")])
    with pytest.raises(FieldError, match="table_id"):
        join_frames([FRAME])
    with pytest.raises(FieldError, match="table_id"):
        join_frames([])
    with pytest.raises(FieldError, match="bytes by table"):
        join_frames([replace(compute, gpu_matrix=compute.gpu_matrix[:-4]), device])


def test_a_host_without_gpus_sends_only_what_it_has() -> None:
    frame = replace(FRAME, gpu_uuids=(), gpu_matrix=b"")

    assert [group_of(part) for part in split_frame(frame)] == ["device", "network"]
    assert join_frames(split_frame(frame)) == frame
