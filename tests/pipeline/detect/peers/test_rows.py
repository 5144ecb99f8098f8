"""Rows of machines and GPUs: means that know gaps, states that come back as they were."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from numpy.typing import NDArray

from tests.pipeline.states import through_bytes
from tests.strategies import tables
from tocsin.models.metric_means import MetricMeans
from tocsin.models.peers import PeerConfig
from tocsin.pipeline.core.operator import (
    pack_state,
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
from tocsin.schemas.metrics import BUILTIN_TABLE, GPU_METRICS, Metric, MetricTable

NAN = float("nan")
FloatArray = NDArray[np.float32]


def f32(values: object) -> FloatArray:
    return np.array(values, np.float32)


class TestMeans:
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
        told = (("b", "G1"),)
        means = MetricMeans(("b",), no_longs, no_longs, no_longs, told, f32([[0.5]]), nothing, f32([[0.7]]), nothing)
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
