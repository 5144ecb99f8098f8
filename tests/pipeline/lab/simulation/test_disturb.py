"""Disturbances of recordings: what changes, what does not, and that a seed gives the same bytes."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tocsin.pipeline.lab.simulation.case import draw_case
from tocsin.pipeline.lab.simulation.disturb import (
    DISTURBANCES,
    OTHER_SKU_FACTORS,
    PROFILING_METRICS,
    change_sku,
    disturb_all,
    hide_profiling,
    lose_samples,
    shift_clocks,
)
from tocsin.pipeline.recording.places import Places
from tocsin.pipeline.recording.reader import read_recording
from tocsin.pipeline.recording.tables import Columns, Manifest, Recording, Text
from tocsin.pipeline.recording.writer import write_recording
from tocsin.schemas.records import NS_PER_SECOND

EVERYTHING = {**DISTURBANCES, "all": disturb_all}
EMPTY = Recording(Manifest("job", 0, 0, 60 * NS_PER_SECOND), {})


@cache
def case() -> Recording:
    """Ten hosts with all metrics, whose ranks tell their steps."""
    for seed in range(100):
        drawn = draw_case(seed, 10, "ecc_error", duration_seconds=300.0)
        reported = set(PROFILING_METRICS) | set(OTHER_SKU_FACTORS) <= set(drawn.shape.metrics)
        if drawn.shape.step_detail != "none" and reported:
            return drawn.recording()
    raise AssertionError("no seed gives such a case")


def numbers(recording: Recording, table: str, name: str) -> NDArray[Any]:
    column = recording.tables[table][name]
    assert isinstance(column, np.ndarray)
    return column


def hosts(columns: Columns) -> list[str]:
    text = columns["host"]
    assert isinstance(text, Text)
    return text.to_list()


def same(left: Recording, right: Recording) -> bool:
    def equal(one: object, other: object) -> bool:
        if isinstance(one, Text) and isinstance(other, Text):
            return one.to_list() == other.to_list()
        return bool(np.array_equal(np.asarray(one), np.asarray(other), equal_nan=np.asarray(one).dtype.kind == "f"))

    return left.tables.keys() == right.tables.keys() and all(
        equal(column, right.tables[name][key]) for name, table in left.tables.items() for key, column in table.items()
    )


@pytest.mark.parametrize("name", EVERYTHING)
def test_a_seed_gives_the_same_and_another_seed_another_recording(name: str) -> None:
    change = EVERYTHING[name]

    assert same(change(case(), 7), change(case(), 7))
    assert not same(change(case(), 7), change(case(), 8))


@pytest.mark.parametrize("name", EVERYTHING)
def test_the_truth_and_the_recording_itself_stay(name: str, tmp_path: Path) -> None:
    before = draw_case(3, 4, "power_cap", duration_seconds=120.0)
    recording = before.recording()
    changed = EVERYTHING[name](recording, 1)

    assert same(recording, before.recording())  # nothing was changed in place
    assert changed.truth == recording.truth
    assert changed.manifest == recording.manifest
    write_recording(tmp_path / "it", changed)
    again = read_recording(tmp_path / "it")  # raises where times go backwards
    assert again.tables.keys() == changed.tables.keys()
    assert numbers(again, "host_metrics", "ts_ns").tolist() == numbers(changed, "host_metrics", "ts_ns").tolist()


@pytest.mark.parametrize("name", EVERYTHING)
def test_what_is_not_there_cannot_be_disturbed(name: str) -> None:
    assert EVERYTHING[name](EMPTY, 1).tables == {}


def test_lost_samples_take_a_host_and_tick_as_a_whole() -> None:
    changed = lose_samples(case(), 1, 0.05)
    before, after = case().tables["host_metrics"], changed.tables["host_metrics"]
    keys = [set(zip(np.asarray(t["ts_ns"]).tolist(), hosts(t), strict=True)) for t in (before, after)]
    rows = len(np.asarray(before["ts_ns"])) / len(keys[0])

    assert keys[1] < keys[0]
    assert 0.03 < 1 - len(keys[1]) / len(keys[0]) < 0.07
    assert len(np.asarray(after["ts_ns"])) == pytest.approx(rows * len(keys[1]))
    assert {name: table for name, table in changed.tables.items() if name != "host_metrics"} == {
        name: table for name, table in case().tables.items() if name != "host_metrics"
    }


def test_clocks_are_off_by_the_whole_bound_each_host_by_one_value() -> None:
    changed = shift_clocks(case(), 1, 0.2)
    offsets: dict[str, set[int]] = {}
    for table in ("host_metrics", "steps"):
        before, after = (recording.tables[table] for recording in (case(), changed))
        own = [names(recording, table) for recording in (case(), changed)]
        for host in sorted(set(own[0])):
            times = [
                np.asarray(columns["ts_ns"])[[name == host for name in reported]]
                for columns, reported in ((before, own[0]), (after, own[1]))
            ]
            offsets.setdefault(host, set()).update((times[1] - times[0]).tolist())

    assert all(len(found) == 1 for found in offsets.values())
    assert {offset for found in offsets.values() for offset in found} == {-200_000_000, 200_000_000}


def names(recording: Recording, table: str) -> list[str]:
    columns = recording.tables[table]
    if "host" in columns:
        return hosts(columns)
    known, row = Places(recording).hosts_of(numbers(recording, table, "rank"), numbers(recording, table, "ts_ns"))
    return [known[index] for index in row.tolist()]


@pytest.mark.parametrize("table", ["host_metrics", "steps", "events"])
def test_times_stay_in_order_and_rows_whole(table: str) -> None:
    changed = shift_clocks(case(), 1)
    times = numbers(changed, table, "ts_ns")

    assert (np.diff(times) >= 0).all()
    assert len(times) == len(numbers(case(), table, "ts_ns"))
    if table == "steps":
        keys = ("rank", "step", "duration_seconds")
        pairs = [
            sorted(zip(*(numbers(one, "steps", key).tolist() for key in keys), strict=True))
            for one in (case(), changed)
        ]
        assert pairs[0] == pairs[1]


def test_times_inside_a_row_move_with_its_clock_and_absent_ones_stay_absent() -> None:
    collectives: dict[str, NDArray[Any]] = {
        "ts_ns": np.array([10, 20], np.int64) * NS_PER_SECOND,
        "rank": np.array([0, 1], np.int32),
        "start_ns": np.array([9, 19], np.int64) * NS_PER_SECOND,
        "end_ns": np.array([10 * NS_PER_SECOND, 0], np.int64),
    }
    topology: Columns = {"rank": np.array([0, 1], np.int32), "host": Text.of(["a", "b"])}
    recording = Recording(EMPTY.manifest, {"collectives": collectives, "topology": topology})
    changed = shift_clocks(recording, 1)
    moved = {
        name: numbers(changed, "collectives", name) - collectives[name] for name in ("ts_ns", "start_ns", "end_ns")
    }

    assert set(np.abs(moved["ts_ns"])) == {200_000_000}
    assert (moved["start_ns"] == moved["ts_ns"]).all()
    assert moved["end_ns"][0] == moved["ts_ns"][0]
    assert numbers(changed, "collectives", "end_ns")[1] == 0


def test_a_fifth_of_the_hosts_has_no_profiling_metric_and_all_others() -> None:
    changed = hide_profiling(case(), 1, 0.2)
    named = np.array(hosts(case().tables["host_metrics"]))
    blind = None
    for name, column in case().tables["host_metrics"].items():
        if name in ("ts_ns", "host", "gpu"):
            continue
        before, after = np.asarray(column), numbers(changed, "host_metrics", name)
        gone = np.isnan(after) & ~np.isnan(before)
        if name in PROFILING_METRICS:
            blind = set(named[gone]) if blind is None else blind
            assert set(named[gone]) == blind
            assert np.isnan(after[np.isin(named, sorted(blind))]).all()
        else:
            assert not gone.any()
    assert blind is not None
    assert len(blind) == 2


def test_one_innocent_host_is_of_another_make_from_begin_to_end() -> None:
    assert case().truth is not None
    [fault] = case().truth["faults"]  # type: ignore[index]
    for seed in range(6):
        changed = change_sku(case(), seed)
        named, odd = np.array(hosts(case().tables["host_metrics"])), set[str]()
        for name in OTHER_SKU_FACTORS:
            before, after = numbers(case(), "host_metrics", name), numbers(changed, "host_metrics", name)
            differs = np.abs(after - before) > 1e-6 * np.abs(before)
            odd |= set(named[differs])
        [host] = odd
        assert host != fault["suspects"][0]["name"]
        own = named == host
        clock = [numbers(one, "host_metrics", "gpu_sm_clock_hertz")[own] for one in (case(), changed)]
        ratio = clock[1][clock[0] > 0] / clock[0][clock[0] > 0]
        assert 0.7 <= ratio.min() <= ratio.max() <= 0.9
        assert ratio.max() - ratio.min() < 1e-3
        for name in ("gpu_sm_active_ratio", "gpu_tensor_active_ratio"):
            assert np.nanmax(numbers(changed, "host_metrics", name)) <= 1.0


def test_all_are_all_of_them() -> None:
    changed = disturb_all(case(), 5)
    one_by_one = case()
    for change in DISTURBANCES.values():
        one_by_one = change(one_by_one, 5)

    assert same(changed, one_by_one)
    assert len(numbers(changed, "host_metrics", "ts_ns")) < len(numbers(case(), "host_metrics", "ts_ns"))
