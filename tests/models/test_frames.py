"""Frames of one slice as aligned arrays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.models.frames import FloatArray, Grid, stack_frames
from tocsin.schemas.errors import FieldError
from tocsin.schemas.metrics import Metric, MetricTable
from tocsin.schemas.records import Frame, JobKey
from tocsin.schemas.wire.codec import decode, encode

SECOND = 1_000_000_000
T0 = 1_800_000_000 * SECOND
TABLE = MetricTable(16, (Metric("watts", "gpu"), Metric("bytes", "gpu")), (Metric("load_ratio", "host"),))
GRID = Grid(T0, SECOND, 5)
NAN = float("nan")


def frame(
    host: str,
    host_values: list[float],
    *,
    gpus: dict[str, list[list[float]]] | None = None,
    first_ns: int = T0,
    tick_ns: int = SECOND,
    table_id: int = 16,
) -> Frame:
    """A frame of one host metric and, for each GPU, two series."""
    gpu_values = np.array(list((gpus or {}).values()), "<f4")
    made = Frame(
        job=JobKey("c", "j", 0),
        host=host,
        ts_ns=T0 + 5 * SECOND - 1,
        table_id=table_id,
        first_tick_ns=first_ns,
        tick_ns=tick_ns,
        tick_count=len(host_values),
        gpu_uuids=tuple(gpus or {}),
        gpu_matrix=gpu_values.tobytes(),
        host_matrix=np.array(host_values, "<f4").tobytes(),
    )
    assert decode(encode(made)) == made
    return made


def assert_equal(found: FloatArray, wanted: object) -> None:
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, np.array(wanted, np.float32))


def test_rows_are_sorted_by_host_and_uuid_whatever_the_order_of_the_frames() -> None:
    b = frame("b", [1, 2, 3, 4, 5], gpus={"G2": [[20] * 5, [21] * 5], "G1": [[10] * 5, [11] * 5]})
    a = frame("a", [6, 7, 8, 9, 10], gpus={"G9": [[90] * 5, [91] * 5]})

    for frames in ([a, b], [b, a]):
        stack = stack_frames(frames, TABLE, GRID)
        assert stack.hosts == ("a", "b")
        assert stack.gpu_rows == (("a", "G9"), ("b", "G1"), ("b", "G2"))
        assert_equal(stack.host_values, [[[6, 7, 8, 9, 10]], [[1, 2, 3, 4, 5]]])
        assert_equal(stack.gpu_values[:, :, 0], [[90, 91], [10, 11], [20, 21]])
        assert stack.gpu_values.shape == (3, 2, 5)


def test_a_wanted_host_without_a_frame_is_nan_and_an_unwanted_one_is_left_out() -> None:
    frames = [frame("a", [1] * 5, gpus={"G1": [[1] * 5, [1] * 5]}), frame("x", [2] * 5)]

    stack = stack_frames(frames, TABLE, GRID, hosts=["z", "a"], gpu_rows=[("z", "G1"), ("a", "G1")])

    assert stack.hosts == ("z", "a")
    assert_equal(stack.host_values, [[[NAN] * 5], [[1] * 5]])
    assert_equal(stack.gpu_values, [[[NAN] * 5] * 2, [[1] * 5] * 2])


def test_an_unwanted_gpu_is_left_out() -> None:
    both = frame("a", [1] * 5, gpus={"G1": [[1] * 5, [2] * 5], "G2": [[3] * 5, [4] * 5]})

    stack = stack_frames([both], TABLE, GRID, gpu_rows=[("a", "G2")])

    assert_equal(stack.gpu_values, [[[3] * 5, [4] * 5]])


def test_ticks_that_a_frame_lacks_are_nan() -> None:
    late = frame("a", [1, 2], first_ns=T0 + 2 * SECOND)
    outside = frame("b", [1, 2, 3], first_ns=T0 - 2 * SECOND)
    elsewhere = frame("c", [1, 2], first_ns=T0 + 50 * SECOND)

    stack = stack_frames([late, outside, elsewhere], TABLE, GRID)

    assert_equal(
        stack.host_values,
        [[[NAN, NAN, 1, 2, NAN]], [[3, NAN, NAN, NAN, NAN]], [[NAN] * 5]],
    )


@pytest.mark.parametrize(
    ("off_ns", "wanted"),
    [
        (0, [1, 2, 3, 4, 5]),
        (499_999_999, [1, 2, 3, 4, 5]),
        (500_000_000, [1, 2, 3, 4, 5]),
        (500_000_001, [NAN, 1, 2, 3, 4]),
        (-499_999_999, [1, 2, 3, 4, 5]),
        (-500_000_000, [2, 3, 4, 5, NAN]),
    ],
)
def test_off_the_grid_snaps_to_the_nearest_tick(off_ns: int, wanted: list[float]) -> None:
    stack = stack_frames([frame("a", [1, 2, 3, 4, 5], first_ns=T0 + off_ns)], TABLE, GRID)

    assert_equal(stack.host_values, [[wanted]])


def test_a_faster_source_gives_its_nearest_samples() -> None:
    fast = frame("a", list(range(20)), tick_ns=SECOND // 4, first_ns=T0 + SECOND // 10)

    assert_equal(stack_frames([fast], TABLE, GRID).host_values, [[[0, 4, 8, 12, 16]]])


def test_a_slower_source_leaves_gaps() -> None:
    slow = frame("a", [1, 2], tick_ns=2 * SECOND, first_ns=T0 + SECOND)

    assert_equal(stack_frames([slow], TABLE, GRID).host_values, [[[NAN, 1, NAN, 2, NAN]]])


def test_the_later_frame_wins_where_it_has_a_sample() -> None:
    first = frame("a", [1, 1, 1, 1, 1])
    second = frame("a", [2, NAN, 2], first_ns=T0 + SECOND)

    assert_equal(stack_frames([first, second], TABLE, GRID).host_values, [[[1, 2, 1, 2, 1]]])
    assert_equal(stack_frames([second, first], TABLE, GRID).host_values, [[[1, 1, 1, 1, 1]]])


def test_infinity_is_no_sample() -> None:
    stack = stack_frames([frame("a", [1, float("inf"), 3, float("-inf"), 5])], TABLE, GRID)

    assert_equal(stack.host_values, [[[1, NAN, 3, NAN, 5]]])


def test_frames_of_another_table_are_left_out() -> None:
    stack = stack_frames([frame("a", [1] * 5, table_id=17), frame("b", [2] * 5)], TABLE, GRID)

    assert stack.hosts == ("b",)


def test_a_frame_that_is_not_as_its_table_says() -> None:
    wrong = frame("a", [1] * 5, gpus={"G1": [[1] * 5, [1] * 5, [1] * 5]})

    with pytest.raises(FieldError, match=r"frame\.gpu_matrix = '60 bytes from a': must be 40 bytes"):
        stack_frames([wrong], TABLE, GRID)


def test_a_table_without_gpu_metrics() -> None:
    table = MetricTable(16, (), TABLE.host)
    plain = Frame(JobKey("c", "j"), "a", T0, 16, T0, SECOND, 1, ("G1",), b"", np.float32(7).tobytes())

    stack = stack_frames([plain], table, Grid(T0, SECOND, 1), gpu_rows=[])

    assert stack.gpu_values.shape == (0, 0, 1)
    assert_equal(stack.host_values, [[[7]]])


def test_no_frames_no_rows() -> None:
    stack = stack_frames([], TABLE, GRID)

    assert (stack.hosts, stack.gpu_rows) == ((), ())
    assert stack.host_values.shape == (0, 1, 5)
    assert stack.gpu_values.shape == (0, 2, 5)


@given(
    st.lists(
        st.tuples(
            st.sampled_from("abc"),
            st.integers(-3 * SECOND, 6 * SECOND),
            st.sampled_from((SECOND, SECOND // 2, 2 * SECOND, SECOND * 3 // 7)),
            st.lists(st.integers(0, 99), min_size=1, max_size=8),
        ),
        max_size=6,
    )
)
def test_agrees_with_the_definition(drawn: list[tuple[str, int, int, list[int]]]) -> None:
    frames = [frame(h, [float(v) for v in vs], first_ns=T0 + off, tick_ns=tick) for h, off, tick, vs in drawn]

    stack = stack_frames(frames, TABLE, GRID)

    wanted = np.full((len(stack.hosts), 1, 5), np.nan, np.float32)
    for host, off, tick_ns, values in drawn:
        for tick in range(5):
            behind = [(off + i * tick_ns - tick * SECOND, i) for i in range(len(values))]
            # A sample half way between two ticks belongs to the earlier one.
            near = [(abs(ns), i) for ns, i in behind if -SECOND < 2 * ns <= SECOND]
            if near:
                wanted[stack.hosts.index(host), 0, tick] = values[min(near)[1]]
    np.testing.assert_array_equal(stack.host_values, wanted)
