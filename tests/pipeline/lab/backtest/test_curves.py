"""Lines for plots: means, gaps, few points."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.pipeline.lab.backtest.kit import (
    T0,
    at,
    cpu_recording,
    manifest,
    metric_table,
)
from tocsin.pipeline.lab.backtest.curves import Curves, Points, curves_of
from tocsin.pipeline.recording.tables import Columns, Recording, Text
from tocsin.schemas.records import NS_PER_SECOND


def curves(recording: Recording, *named: str) -> dict[str, Curves]:
    return {one.metric: one for one in curves_of(recording, Points.of(recording), named)}


@pytest.mark.parametrize(
    ("hosts", "seconds", "tick_seconds", "span_seconds", "count"),
    [
        (6, 600, 1.0, 2, 300),
        (6, 60, 1.0, 2, 30),
        (6, 6000, 1.0, 20, 300),
        (64, 1000, 1.0, 10, 100),
        (6, 600, 5.0, 10, 60),
    ],
)
def test_points_are_few_and_never_of_a_single_sample(
    hosts: int, seconds: int, tick_seconds: float, span_seconds: int, count: int
) -> None:
    recording = replace(cpu_recording(hosts, 60), manifest=manifest(seconds, tick_seconds))

    assert Points.of(recording) == Points(T0, span_seconds * NS_PER_SECOND, count)


def test_a_point_is_the_mean_of_its_span() -> None:
    values = np.arange(1200.0).reshape(600, 2)
    found = curves(Recording(manifest(600), {"host_metrics": metric_table(["b", "a"], {"cpu_util_ratio": values})}))
    one = found["cpu_util_ratio"]

    assert one.hosts == ("a", "b")
    assert one.values.shape == (2, 300)
    assert one.values[1].tolist() == (values[::2, 0] + 1.0).tolist()  # ticks 0 and 1 hold 0 and 2
    assert one.values[0, :2].tolist() == [2.0, 6.0]


def test_a_span_without_a_sample_is_a_gap_and_a_machine_without_any_is_absent() -> None:
    values = np.ones((600, 3))
    values[100:104, 0] = np.nan
    values[:, 2] = np.nan
    one = curves(Recording(manifest(600), {"host_metrics": metric_table(["a", "b", "c"], {"cpu_util_ratio": values})}))

    assert one["cpu_util_ratio"].hosts == ("a", "b")
    assert np.flatnonzero(np.isnan(one["cpu_util_ratio"].values[0])).tolist() == [50, 51]


def test_gpus_count_as_their_mean_and_those_of_named_machines_are_told_apart() -> None:
    power = np.full((600, 2, 4), 400.0)
    power[:, 0, 3] = 200.0
    power[300:, 0, 1] = np.nan
    recording = Recording(manifest(600), {"host_metrics": metric_table(["a", "b"], {"gpu_power_watts": power}, gpus=4)})
    one = curves(recording, "a")["gpu_power_watts"]

    assert one.values[:, 0].tolist() == [350.0, 400.0]
    assert one.values[0, 200] == pytest.approx(1000 / 3)
    assert set(one.spread) == {"a"}
    assert one.spread["a"].shape == (2, 300)
    assert np.unique(one.spread["a"][0]).tolist() == [200.0]
    assert np.unique(one.spread["a"][1]).tolist() == [400.0]


def test_steps_are_lines_of_their_hosts() -> None:
    ranks = np.tile(np.array([0, 1, 2, 3], np.int32), 100)
    steps = {
        "ts_ns": np.repeat(T0 + np.arange(1, 101) * NS_PER_SECOND, 4),
        "rank": ranks,
        "step": np.repeat(np.arange(100), 4),
        "duration_seconds": np.ones(400),
        "communication_seconds": np.where(ranks == 3, 0.1, 0.4),
    }
    topology: Columns = {"rank": np.arange(4, dtype=np.int32), "host": Text.of(["a", "a", "b", "b"])}
    found = curves(Recording(manifest(120), {"steps": steps, "topology": topology}))

    assert set(found) == {"steps.step", "steps.duration_seconds", "steps.communication_seconds"}
    one = found["steps.communication_seconds"]
    assert one.hosts == ("a", "b")
    assert one.values[:, 10].tolist() == pytest.approx([0.4, 0.25])
    alone = curves(Recording(manifest(120), {"steps": steps}))["steps.communication_seconds"]
    assert alone.hosts == ("0", "1", "2", "3")


def test_rows_outside_of_the_recording_and_infinite_ones_are_left_out() -> None:
    table = dict(metric_table(["a"], {"cpu_util_ratio": np.ones((60, 1))}))
    times, values = np.asarray(table["ts_ns"]).copy(), np.asarray(table["cpu_util_ratio"]).copy()
    times[0], times[-1], values[5] = at(-50), at(500), np.inf
    found = curves(Recording(manifest(60), {"host_metrics": {**table, "ts_ns": times, "cpu_util_ratio": values}}))

    assert np.unique(found["cpu_util_ratio"].values).tolist() == [1.0]
    assert curves(Recording(manifest(60), {})) == {}
