import math
from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.collectors.agent.slicer import (
    Boundaries,
    FrameCutter,
    metric_slice_ns,
    spread_ns,
)
from tocsin.schemas.errors import ConfigError
from tocsin.schemas.metrics import GPU_METRICS, HOST_METRICS
from tocsin.schemas.records import NS_PER_SECOND as S

T0 = 1_700_000_000 * S


def test_every_second_is_due_once_after_the_spread() -> None:
    boundaries = Boundaries(delay_ns=S // 4)
    boundaries.due(T0)

    found = [boundaries.due(T0 + k * S // 4) for k in range(1, 10)]

    assert found == [[T0], [], [], [], [T0 + S], [], [], [], [T0 + 2 * S]]


def test_a_short_sleep_is_made_up_for() -> None:
    boundaries = Boundaries(0)
    boundaries.due(T0)

    assert boundaries.due(T0 + 3 * S + 5) == [T0 + S, T0 + 2 * S, T0 + 3 * S]


@pytest.mark.parametrize("jump_seconds", [600, -600])
def test_a_jump_gives_the_latest_second_only(jump_seconds: int) -> None:
    boundaries = Boundaries(0)
    boundaries.due(T0)

    assert boundaries.due(T0 + jump_seconds * S) == [T0 + jump_seconds * S]
    assert boundaries.due(T0 + (jump_seconds + 1) * S) == [T0 + (jump_seconds + 1) * S]


@given(st.lists(st.integers(0, 3 * S), max_size=50), st.integers(0, S // 2))
def test_no_second_is_left_out_or_named_twice(steps: list[int], delay: int) -> None:
    boundaries = Boundaries(delay)
    now = T0
    boundaries.due(now)
    found = []
    for step in steps:
        now += step
        found += boundaries.due(now)
    first = (T0 - delay) // S * S + S

    assert found == list(range(first, (now - delay) // S * S + 1, S))


def test_the_spread_is_under_half_a_second_and_differs_by_host() -> None:
    spreads = {spread_ns(f"node{n:03d}") for n in range(100)}

    assert max(spreads) < S // 2
    assert len(spreads) > 50


@pytest.mark.parametrize("period", [0.0, -1.0, 0.3, 1.23, math.nan, math.inf, 1e300])
def test_a_period_that_fits_no_slice_is_refused(period: float) -> None:
    with pytest.raises(ConfigError, match="period-seconds"):
        metric_slice_ns(period)


def host_row(matrix: bytes, name: str, ticks: int) -> list[float]:
    index = [metric.name for metric in HOST_METRICS].index(name)
    return list(array("f", matrix))[index * ticks : (index + 1) * ticks]


def test_a_frame_holds_the_ticks_of_its_slice_and_nan_where_none_came() -> None:
    cutter = FrameCutter(S, 5 * S)
    for tick in (0, 1, 2, 4, 5):
        cutter.add(T0 + tick * S, {"cpu_util_ratio": tick / 10}, {})

    cut = cutter.cut(T0 + 5 * S)
    row = host_row(cut.host_matrix, "cpu_util_ratio", 5)

    assert (cut.first_tick_ns, cut.tick_count, cut.is_empty) == (T0, 5, False)
    assert row[:3] == pytest.approx([0.0, 0.1, 0.2])
    assert math.isnan(row[3])
    assert row[4] == pytest.approx(0.4)
    assert all(math.isnan(value) for value in host_row(cut.host_matrix, "rdma_bytes_per_second", 5))
    assert host_row(cutter.cut(T0 + 10 * S).host_matrix, "cpu_util_ratio", 5)[0] == pytest.approx(0.5)


def test_a_sample_that_comes_after_its_slice_is_counted_not_mixed_in() -> None:
    cutter = FrameCutter(S, 5 * S)
    cutter.cut(T0 + 5 * S)
    cutter.add(T0 + 4 * S, {"cpu_util_ratio": 1.0}, {})

    assert cutter.late_count == 1
    assert cutter.cut(T0 + 10 * S).is_empty


def test_gpus_have_a_matrix_each_by_uuid() -> None:
    cutter = FrameCutter(S, 5 * S)
    cutter.add(T0, {}, {"GPU-b": {"gpu_util_ratio": 0.5}, "GPU-a": {"gpu_util_ratio": 0.25}})

    cut = cutter.cut(T0 + 5 * S)
    both = array("f", cut.gpu_matrix(["GPU-a", "GPU-b"]))

    assert len(both) == 2 * len(GPU_METRICS) * 5
    assert (both[0], both[len(GPU_METRICS) * 5]) == (0.25, 0.5)
