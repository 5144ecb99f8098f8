"""Rows between records and arrays: means that know gaps, states that come back as they were."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from numpy.typing import NDArray

from tests.pipeline.states import through_bytes
from tests.strategies import tables
from tocsin.models.metric_means import MetricMeans, mean_over_ticks
from tocsin.models.peers import PeerConfig
from tocsin.pipeline.core.arrays import array_from, array_state
from tocsin.pipeline.core.operator import (
    columns_of,
    from_columns,
    pack_state,
    unpack_state,
)
from tocsin.pipeline.detect.peers.rows import (
    Block,
    MeanRows,
    directed,
    largest_by_host,
    mean_by_host,
    table_from,
    table_state,
)
from tocsin.pipeline.detect.steps.rows import (
    COLUMNS,
    StepRows,
    pending_from,
    pending_state,
    table_of,
)
from tocsin.schemas.errors import SnapshotError
from tocsin.schemas.metrics import BUILTIN_TABLE, GPU_METRICS, Metric, MetricTable
from tocsin.schemas.records import StepRecord

NAN = float("nan")
FloatArray = NDArray[np.float32]
series = arrays.arrays(np.float32, (3, 2, 4), elements=st.floats(-1e6, 1e6, width=32) | st.just(NAN))


def f32(values: object) -> FloatArray:
    return np.array(values, np.float32)


@dataclass
class Mixed:
    """A column of each sort."""

    whole: int
    number: float
    text: str
    either: bool | int | None
    several: list[int]


def strangers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Lists and objects, with names that a state uses itself."""
    return st.lists(inner, max_size=3) | st.dictionaries(st.text("@k", max_size=3), inner, max_size=2)


class TestArrays:
    @pytest.mark.parametrize("kind", ["<f4", "<f8", "<i8", ">f4", "?"])
    def test_there_and_back_through_bytes(self, kind: str) -> None:
        values = np.array([[1, 0, 1], [0, 1, 1]]).astype(kind)
        found = array_from(through_bytes(array_state(values)))

        np.testing.assert_array_equal(found, values)
        assert found.shape == values.shape
        assert found.flags.writeable

    @given(st.recursive(st.none() | st.integers() | st.text("@k", max_size=3), strangers, max_leaves=8))
    def test_whatever_a_stranger_sent_is_not_taken_for_an_array(self, sent: object) -> None:
        state = {"sent": sent, "own": np.arange(3), "more": [np.array([], "<f8"), np.array([True])]}
        found = through_bytes(state)

        assert found["sent"] == sent
        assert found["own"].tolist() == [0, 1, 2]
        assert [(one.dtype.str, one.tolist()) for one in found["more"]] == [("<f8", []), ("|b1", [True])]

    @pytest.mark.parametrize("cut", [1, 30, 60])
    def test_a_cut_one_is_damaged(self, cut: int) -> None:
        data = pack_state({"own": np.arange(5)})

        with pytest.raises(SnapshotError, match="'part' is damaged"):
            unpack_state({"part": data[:-cut]}, "part")

    @given(
        st.lists(
            st.tuples(
                st.integers(0, 3) | st.integers(-(1 << 63), (1 << 63)),
                st.floats(allow_nan=False),
                st.sampled_from(["a", "b"]),
                st.booleans() | st.none() | st.integers(0, 1),
                st.lists(st.integers(0, 2), max_size=2),
            ).map(lambda fields: Mixed(*fields))
        )
    )
    def test_dataclasses_by_columns_keep_their_types(self, rows: list[Mixed]) -> None:
        found = list(from_columns(Mixed, through_bytes(columns_of(Mixed, rows))))

        assert [repr(row) for row in found] == [repr(row) for row in rows]

    @given(arrays.arrays(np.float32, arrays.array_shapes(min_dims=1, max_dims=3, min_side=0)))
    def test_every_bit_of_any_float(self, values: FloatArray) -> None:
        assert array_from(array_state(values)).tobytes() == values.tobytes()

    def test_mostly_zeros_take_little_room(self) -> None:
        values = np.zeros((2, 1000, 20), np.int64)
        values[1, 7, 3], values[0, 0, 0] = 1 << 62, -1
        state = array_state(values)

        assert len(pack_state(state)) < 200
        assert array_from(state).tobytes() == values.tobytes()
        assert array_from(state).flags.writeable

    def test_columns_that_do_not_lie_together(self) -> None:
        values = np.arange(12.0).reshape(3, 4).T

        np.testing.assert_array_equal(array_from(array_state(values)), values)


class TestMeans:
    @given(series)
    def test_missing_ticks_do_not_count(self, values: FloatArray) -> None:
        found, counts = mean_over_ticks(values)
        for row, metric in np.ndindex(3, 2):
            known = [float(value) for value in values[row, metric] if not math.isnan(value)]
            assert counts[row, metric] == len(known)
            if known:
                assert found[row, metric] == pytest.approx(sum(known) / len(known), rel=1e-4, abs=0.2)
            else:
                assert np.isnan(found[row, metric])

    def test_gpus_without_samples_do_not_count(self) -> None:
        values = f32([[1, NAN], [3, NAN], [NAN, 5], [NAN, NAN]])

        np.testing.assert_array_equal(
            mean_by_host(values, np.array([0, 0, 1, 1]), 3), f32([[2, NAN], [NAN, 5], [NAN, NAN]])
        )

    def test_only_what_is_bad_counts(self) -> None:
        metrics = (Metric("a", "gpu", bad="both"), Metric("b", "gpu", bad="high"), Metric("c", "gpu", bad="low"))
        found = directed(f32([[5, 5, 5], [-5, -5, -5]]), metrics)

        np.testing.assert_array_equal(found, f32([[[5, 5, 0], [0, 0, 0]], [[0, 0, 0], [5, 0, 5]]]))

    def test_the_largest_gpu_of_each_host(self) -> None:
        values = np.stack([f32([[1], [7], [NAN], [NAN]]), f32([[0], [0], [2], [NAN]])])

        np.testing.assert_array_equal(
            largest_by_host(values, np.array([0, 0, 1, 2]), 3), f32([[[7], [NAN], [NAN]], [[0], [2], [NAN]]])
        )

    def test_gpus_know_their_hosts(self) -> None:
        no_longs, nothing = np.zeros(1, np.int64), np.zeros((1, 1), np.uint16)
        reported = (("b", "G1"),)
        means = MetricMeans(
            ("b",), no_longs, no_longs, no_longs, reported, f32([[0.5]]), nothing, f32([[0.7]]), nothing
        )
        rows = MeanRows.of(means, ["a", "b"], [("a", "G1"), ("b", "G1"), ("b", "G2")])
        found = rows.slice_means(means)

        assert found.of_host.tolist() == [0, 1, 1]
        np.testing.assert_array_equal(found.host_values, f32([[NAN], [0.5]]))
        np.testing.assert_array_equal(found.gpu_values, f32([[NAN], [0.7], [NAN]]))


class TestBlock:
    def test_rows_are_known_by_name_wherever_they_move(self) -> None:
        block, config = Block(GPU_METRICS[:1]), PeerConfig()
        level = {"a": 0.4, "c": 0.6, "b": 0.9}
        for names in (["a", "c"], ["a", "b", "c"]):
            for _ in range(20):
                values = f32([[level[name]] for name in names])
                window = block.compare(names, values, np.zeros(len(names), np.intp), config)

        assert np.abs(window.sigmas).max() < 1
        assert block.state.level[:, 0] == pytest.approx([0.4, 0.9, 0.6])
        assert block.state.seen_count[:, 0].tolist() == [40, 20, 40]

    def test_state_there_and_back(self) -> None:
        block, other = Block(GPU_METRICS[:1]), Block(GPU_METRICS[:1])
        names = [("a", "G1"), ("a", "G2"), ("b", "G1")]
        block.compare(names, f32([[0.1], [NAN], [0.3]]), np.zeros(3, np.intp), PeerConfig())
        other.load_state(through_bytes(block.to_state()))

        assert other.names == names
        assert pack_state(other.to_state()) == pack_state(block.to_state())


class TestTables:
    @pytest.mark.parametrize("table", [BUILTIN_TABLE, MetricTable(17, (), (Metric("x", "host", -1.0, None, "low"),))])
    def test_there_and_back(self, table: MetricTable) -> None:
        assert table_from(through_bytes(table_state(table))) == table

    @given(tables)
    def test_any(self, table: MetricTable) -> None:
        assert table_from(through_bytes(table_state(table))) == table


def step_row(rank: int, seconds: float, ts_ns: int) -> StepRecord:
    """A rank's step with the same number in every column."""
    return StepRecord(ts_ns, rank, 1, *[seconds] * len(COLUMNS))


class TestSteps:
    def test_ranks_in_order_and_the_last_end(self) -> None:
        reported = StepRows.of({3: step_row(3, 1.0, 50), 1: step_row(1, 2.0, 70)})

        assert (reported.ranks, reported.end_ns) == ((1, 3), 70)
        assert (reported.duration_of(3), reported.duration_of(1), reported.duration_of(2)) == (1.0, 2.0, None)

    def test_a_rank_that_is_missing_in_a_step_is_nan_there(self) -> None:
        full = {rank: step_row(rank, float(rank), 9) for rank in (0, 1, 2)}
        ranks, table = table_of([StepRows.of(full), StepRows.of({0: full[0], 2: full[2]})])

        assert ranks == (0, 1, 2)
        assert table.shape == (len(COLUMNS), 2, 3)
        np.testing.assert_array_equal(table[0], np.array([[0, 1, 2], [0, NAN, 2]]))

    def test_state_there_and_back_with_gaps(self) -> None:
        reported = StepRows.of({0: StepRecord(5, 0, 1, 1.0, None, 2.0, None, 4.0), 7: step_row(7, 2.0, 6)})
        found = StepRows.from_state(through_bytes(reported.to_state()))

        assert (found.end_ns, found.ranks) == (reported.end_ns, reported.ranks)
        np.testing.assert_array_equal(found.values, reported.values)
        np.testing.assert_array_equal(reported.values[0], [1.0, NAN, NAN, 2.0, NAN, 4.0])

    def test_steps_that_are_not_finished_come_back(self) -> None:
        pending = {7: {3: step_row(3, 1.0, 5), 1: StepRecord(6, 1, 7, 2.0, loss=NAN)}, 8: {1: step_row(1, 0.5, 9)}}
        found = pending_from(through_bytes(pending_state(pending)))

        assert list(found) == [7, 8]
        assert all(repr(found[step]) == repr(dict(sorted(rows.items()))) for step, rows in pending.items())

    def test_times_of_today_lose_less_than_a_microsecond(self) -> None:
        """They pass through a float between the ranks' values."""
        end_ns = 1_800_000_000_123_456_789

        assert abs(StepRows.of({0: step_row(0, 1.0, end_ns)}).end_ns - end_ns) < 1000
