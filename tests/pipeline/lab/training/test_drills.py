"""Recorded drills in compact form: what the trace detectors read is all there, and always the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.pipeline.lab.backtest.trace_kit import traced
from tocsin.pipeline.detect.traces.training import role_windows
from tocsin.pipeline.detect.traces.windows import RoleWindow, WindowConfig
from tocsin.pipeline.lab.backtest.trace_runner import slices_of
from tocsin.pipeline.lab.registry import fingerprint_of
from tocsin.pipeline.lab.training.drills import drill_files, pack, unpack, write_drills
from tocsin.pipeline.recording.ops import read_with_ops
from tocsin.pipeline.recording.tables import Columns, Recording, Text
from tocsin.schemas.errors import RecordingError
from tocsin.schemas.records import NS_PER_SECOND

MOST_BYTES = 400_000


def windows(recording: Recording) -> list[RoleWindow]:
    """The windows that a trace detector cuts."""
    return list(role_windows(slices_of(recording), WindowConfig()))


def with_operations(recording: Recording) -> Recording:
    """The recording of a drill of a minute: a collective of each rank every second, and two things announced."""
    ranks = np.unique(np.asarray(recording.tables["topology"]["rank"]))
    second, rank = np.divmod(np.arange(60 * ranks.size), ranks.size)
    end_ns = recording.manifest.start_ns + (second + 1) * NS_PER_SECOND
    count = len(end_ns)
    collectives = {
        "ts_ns": end_ns,
        "record": Text.of(["completion"] * count),
        "rank": ranks[rank].astype(np.int32),
        "channel": np.full(count, -1, np.int16),
        "comm_id": Text.of(["0/world"] * count),
        "op_seq": second.astype(np.int64),
        "msg_bytes": np.full(count, 8192),
        "op_name": Text.of(["all_reduce", "broadcast"] * (count // 2)),
        "start_ns": end_ns - 50_000_000 - rank * 1_000_000,
        "end_ns": end_ns,
    }
    words = {"host": ["n0", "n1"], "name": ["exit", "phase"], "severity": ["info", "info"], "payload": ["{}", "{}"]}
    texts = {name: Text.of(both) for name, both in words.items()}
    source: Columns = {"ts_ns": end_ns[:2], "rank": np.array([0, 1]), "source": Text.of(["process", "job"])}
    events: Columns = {**source, **texts}
    return replace(recording, tables={**recording.tables, "collectives": collectives, "events": events})


def test_what_comes_back_has_the_same_windows(tmp_path: Path) -> None:
    whole = with_operations(traced(60, 3, slow_from=40))
    unpack(pack(whole), tmp_path / "drill")
    again = read_with_ops(tmp_path / "drill")

    assert again.truth == whole.truth
    assert (again.manifest.start_ns, again.manifest.end_ns) == (whole.manifest.start_ns, whole.manifest.end_ns)
    assert again.tables["events"]["name"][0] == "phase"
    assert len(again.tables["events"]["ts_ns"]) == 1
    pairs = list(zip(windows(whole), windows(again), strict=False))
    assert {one.family for one, _ in pairs} == {"phases", "collectives"}
    for one, other in pairs:
        assert (one.family, one.sources) == (other.family, other.sources)
        assert np.unique(one.rows.ranks).tolist() == np.unique(other.rows.ranks).tolist()
        assert np.median(other.rows.seconds) == pytest.approx(np.median(one.rows.seconds), rel=0.06)


def test_a_duration_that_nobody_measured_stays_unknown(tmp_path: Path) -> None:
    whole = with_operations(traced(60, 3))
    steps = {**whole.tables["steps"]}
    steps["forward_seconds"] = np.full(len(steps["ts_ns"]), np.nan)
    unpack(pack(replace(whole, tables={**whole.tables, "steps": steps})), tmp_path / "drill")
    again = read_with_ops(tmp_path / "drill").tables["steps"]

    assert np.isnan(np.asarray(again["forward_seconds"])).all()
    assert np.isfinite(np.asarray(again["data_seconds"])).all()


def test_a_table_without_its_texts_is_named() -> None:
    whole = with_operations(traced(60, 3))
    broken = {**whole.tables["collectives"], "op_name": np.zeros(360)}
    with pytest.raises(RecordingError, match="op_name"):
        pack(replace(whole, tables={**whole.tables, "collectives": broken}))


def test_those_that_are_part_of_the_program_are_small_and_always_the_same(tmp_path: Path) -> None:
    assert sum(len(entry.read_bytes()) for entry in drill_files()) < MOST_BYTES
    first, again = write_drills(tmp_path / "first"), write_drills(tmp_path / "again")

    assert [folder.name for folder in first] == [folder.name for folder in again]
    assert fingerprint_of(first) == fingerprint_of(again)
    found = [read_with_ops(folder) for folder in first]
    kinds = {fault["kind"] for one in found for fault in (one.truth or {})["faults"]}
    assert kinds == {"fail_slow"}
    assert any(not (one.truth or {})["faults"] for one in found)
