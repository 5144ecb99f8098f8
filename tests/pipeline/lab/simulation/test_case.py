import itertools
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.pipeline.lab.simulation.benign_disturbances import BENIGN_DISTURBANCES
from tocsin.pipeline.lab.simulation.case import (
    HEALTHY,
    KINDS,
    case_seed,
    draw_case,
)
from tocsin.pipeline.lab.simulation.draw import Half
from tocsin.pipeline.lab.simulation.faults import FAULTS
from tocsin.pipeline.lab.simulation.levels import USER_METRIC
from tocsin.pipeline.lab.simulation.rows import concatenated
from tocsin.pipeline.recording.reader import read_recording
from tocsin.pipeline.recording.tables import TABLES, Columns, ColumnSpec, Recording, Text
from tocsin.pipeline.recording.writer import write_recording
from tocsin.schemas.causes import CAUSES
from tocsin.schemas.errors import ConfigError

SECONDS = 120.0
HALVES = st.sampled_from(["fit", "held"])


def same(left: Columns, right: Columns) -> bool:
    if list(left) != list(right):
        return False
    for name, column in left.items():
        other = right[name]
        if isinstance(column, Text):
            assert isinstance(other, Text)
            if column.to_list() != other.to_list():
                return False
        elif np.asarray(column).tobytes() != np.asarray(other).tobytes():
            return False
    return True


def check_columns(recording: Recording) -> None:
    """Types, lengths, order of time and words are those of the format."""
    for table, columns in recording.tables.items():
        spec = TABLES[table]
        own = [ColumnSpec(name, "float32") for name in recording.user_metrics if table == "host_metrics"]
        known = {column.name: column for column in (*spec.columns, *own)}
        assert {name for name, column in known.items() if column.required} <= set(columns)
        assert len({len(column) for column in columns.values()}) == 1, table
        for name, column in columns.items():
            if isinstance(column, Text):
                assert known[name].kind == "text"
                assert not len(column) or 0 <= column.codes.min() <= column.codes.max() < len(column.words)
            else:
                assert np.asarray(column).dtype == known[name].kind, (table, name)
        if spec.time:
            ts = np.asarray(columns[spec.time])
            assert (np.diff(ts) >= 0).all(), table
            assert ((ts >= recording.manifest.start_ns) & (ts < recording.manifest.end_ns)).all(), table


@pytest.mark.parametrize("half", ["fit", "held"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_can_be_drawn_and_gives_a_valid_recording(kind: str, half: Half) -> None:
    case = draw_case(5, (4, 9), kind, half, duration_seconds=SECONDS)
    recording = case.recording()

    check_columns(recording)
    assert recording.truth is not None
    faults = recording.truth["faults"]
    assert len(faults) == (kind in FAULTS)
    assert case.kind == (kind if kind in FAULTS else HEALTHY)
    for fault in faults:
        assert fault["cause"] == kind
        assert fault["kind"] in {"fail_stop", "hang", "fail_slow", "silent_corruption"}
        assert [suspect["kind"] for suspect in fault["suspects"]] == ["host"]
        assert fault["suspects"][0]["name"] in case.shape.host_names
        assert recording.manifest.start_ns < fault["onset_ns"] < fault["end_ns"] <= recording.manifest.end_ns


@pytest.mark.parametrize("name", BENIGN_DISTURBANCES)
def test_a_disturbance_that_was_asked_for_is_there_and_nobody_is_accused(name: str) -> None:
    for seed in range(3):
        case = draw_case(seed, 12, name, duration_seconds=600.0)

        assert name in case.plan.benign_disturbances
        assert case.plan.truths == ()


@settings(max_examples=25)
@given(st.integers(0, 2**63), st.integers(2, 12), st.sampled_from([None, *KINDS]), HALVES)
def test_whatever_is_drawn_is_valid(seed: int, hosts: int, kind: str | None, half: Half) -> None:
    check_columns(draw_case(seed, hosts, kind, half, duration_seconds=60.0).recording())


@settings(max_examples=10)
@given(st.integers(0, 2**32), HALVES)
def test_the_same_seed_gives_the_same_bytes(seed: int, half: Half) -> None:
    one, two = (draw_case(seed, (3, 8), None, half, duration_seconds=SECONDS) for _ in range(2))
    first, again, other = one.recording(), one.recording(), two.recording()

    for recording in (again, other):
        assert list(recording.tables) == list(first.tables)
        assert all(same(first.tables[name], recording.tables[name]) for name in first.tables)
        assert recording.manifest == first.manifest
        assert recording.truth == first.truth


def test_other_seeds_and_other_halves_give_other_cases() -> None:
    names = {draw_case(seed, 4, HEALTHY, half).shape.job_id for seed in range(5) for half in ("fit", "held")}
    seeds = {case_seed(seed, index) for seed in range(10) for index in range(100)}

    assert len(names) == 10
    assert len(seeds) == 1000


@pytest.mark.parametrize("seed", range(4))
def test_the_chunks_are_the_recording_cut_at_slices(seed: int) -> None:
    case = draw_case(seed, (4, 8), duration_seconds=SECONDS)
    chunks, whole = list(case.chunks()), case.recording()
    parts: dict[str, list[Columns]] = {}

    assert len(chunks) == case.slice_count
    for chunk in chunks:
        assert chunk.manifest.end_ns - chunk.manifest.start_ns == case.shape.slice_ns
        assert chunk.manifest.start_ns % case.shape.slice_ns == 0
        check_columns(chunk)
        for name, columns in chunk.tables.items():
            parts.setdefault(name, []).append(columns)
    assert set(parts) == set(whole.tables)
    assert all(same(concatenated(parts[name]), whole.tables[name]) for name in parts)


def test_a_month_is_drawn_at_once_and_made_slice_by_slice() -> None:
    case = draw_case(3, 4, HEALTHY, duration_seconds=30 * 86400.0)
    first = list(itertools.islice(case.chunks(), 3))

    assert [chunk.manifest.start_ns for chunk in first] == [
        case.shape.start_ns + index * case.shape.slice_ns for index in range(3)
    ]


def test_two_thousand_hosts_make_one_slice_at_a_time() -> None:
    case = draw_case(3, 2000, HEALTHY, duration_seconds=3600.0)
    chunk = next(case.chunks())

    assert len(chunk.tables["host_metrics"]["ts_ns"]) > 0.9 * 2000 * 5


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    made = draw_case(11, 4, "ecc_error", duration_seconds=SECONDS).recording()
    write_recording(tmp_path / "case", made)
    read = read_recording(tmp_path / "case")

    assert read.manifest.start_ns == made.manifest.start_ns
    assert read.truth == json.loads(json.dumps(made.truth))
    ts: Mapping[str, object] = read.tables["host_metrics"]
    assert np.array_equal(np.asarray(ts["ts_ns"]), np.asarray(made.tables["host_metrics"]["ts_ns"]))


def test_a_metric_of_the_users_own_is_declared_where_it_is_there() -> None:
    seen = set()
    for seed in range(40):
        case = draw_case(seed, 4, "hdfs_error", duration_seconds=60.0)
        chunk = next(case.chunks())
        assert set(chunk.user_metrics) <= {USER_METRIC.name}
        assert (USER_METRIC.name in chunk.tables["host_metrics"]) == bool(chunk.user_metrics)
        seen.add(bool(chunk.user_metrics))

    assert seen == {True, False}


def test_every_fault_is_a_cause_that_tocsin_documents() -> None:
    assert set(FAULTS) <= set(CAUSES)


@pytest.mark.parametrize(
    ("hosts", "kind", "seconds"),
    [(1, None, 60.0), ((8, 4), None, 60.0), (4, "gremlins", 60.0), (4, None, 0.0), (4, None, float("inf"))],
)
def test_nonsense_is_refused_in_a_sentence(hosts: int | tuple[int, int], kind: str | None, seconds: float) -> None:
    with pytest.raises(ConfigError, match="must be"):
        draw_case(1, hosts, kind, duration_seconds=seconds)
