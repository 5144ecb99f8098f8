"""``tocsin startup`` where the clock of one host is off, and where a host carries no rank of the job."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tests.cli.test_startup import T0_MS, _found, _recording
from tests.models.startup.kit import NS, T0_NS, make_start
from tests.schemas.formats.test_mllog import line_of
from tocsin.cli.main import main
from tocsin.cli.startup import judge, read
from tocsin.pipeline.recording.limits import DEFAULT_LIMITS


def _log(path: Path, ahead: float) -> Path:
    """Write a log of eight labelled processes, of which the clock of process 3 is ahead."""
    lines = [line_of("0: ", time_ms=T0_MS, key="submission_benchmark")]
    for key, at, kind in (("init_start", 9.0, "INTERVAL_START"), ("init_stop", 100.0, "INTERVAL_END")):
        for process in range(8):
            time_ms = T0_MS + round(1000 * (at + process / 10 + ahead * (process == 3)))
            lines.append(line_of(f"{process}: ", time_ms=time_ms, key=key, event_type=kind))
    lines.append(line_of("0: ", time_ms=T0_MS + 102_000, key="run_start", event_type="INTERVAL_START"))
    path.write_text("".join(lines), encoding="utf-8")
    return path


@pytest.mark.parametrize(("ahead", "how"), [(12.0, "ahead"), (-30.0, "behind"), (400.0, "ahead")])
def test_a_log_says_whose_clock_is_off_and_nobody_is_late(
    ahead: float, how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (start,) = _found(capsys, _log(tmp_path / "log.txt", ahead))["starts"]

    assert start["stragglers"] == []
    assert [(one["node"], one["stamp_count"]) for one in start["clocks"]] == [("3", 2)]
    assert start["clocks"][0]["seconds"] == pytest.approx(ahead, abs=0.2)
    assert start["summary"].startswith("The clock of rank 3 seems ")
    assert f" s {how}, or it began " in start["summary"]
    assert start["summary"].endswith("only its own durations are compared. Nobody is late.")


def test_a_log_on_right_clocks_says_nothing_of_clocks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (start,) = _found(capsys, _log(tmp_path / "log.txt", 0.0))["starts"]

    assert (start["clocks"], start["summary"]) == ([], "Nobody is late.")


@pytest.mark.parametrize("shift", [-400, -60, 60, 400])
def test_a_recording_whose_end_a_wrong_clock_tells_accuses_nobody(
    shift: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = make_start(10)
    known = [one for one in made.marks if one.ts_ns <= T0_NS + 300 * NS]
    marks = tuple(replace(one, ts_ns=one.ts_ns + shift * NS) if one.node == "n007" else one for one in known)
    folder = _recording(tmp_path / "r", marks, None)
    manifest = json.loads((folder / "manifest.json").read_text())
    first_ns, last_ns = (pick(one.ts_ns for one in marks) for pick in (min, max))
    (folder / "manifest.json").write_text(json.dumps({**manifest, "start_ns": first_ns, "end_ns": last_ns + 1}))

    (start,) = _found(capsys, folder)["starts"]
    assert start["stragglers"] == []
    assert [(one["node"], one["seconds"]) for one in start["clocks"]] == [("n007", float(shift))]
    assert "n007" not in {one["blame"]["node"] for one in start["stages"] if one["stage"] == "image_load"}
    assert main(["startup", str(folder)]) == 0
    assert f"The clock of host n007 seems {abs(shift):.0f}" in capsys.readouterr().out


def test_a_late_host_of_a_recording_is_named_beside_one_whose_clock_is_off(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = make_start(10, slow={("n004", "model_init"): 6.0})
    late_ns = T0_NS + round(made.truth["n004"]["model_init"][1] * NS)
    known = [one for one in made.marks if one.ts_ns < late_ns]
    marks = tuple(replace(one, ts_ns=one.ts_ns + 60 * NS) if one.node == "n007" else one for one in known)

    (start,) = _found(capsys, _recording(tmp_path / "r", marks, None))["starts"]
    assert [one["name"] for one in start["stragglers"]] == ["n004"]


@pytest.mark.parametrize("is_placed", [False, True])
def test_a_host_without_a_rank_in_the_topology_is_left_out(
    *, is_placed: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = make_start(10, slow={("n004", "model_init"): 6.0})
    folder = _recording(tmp_path / "r", made.marks, None)
    if not is_placed:
        topology = pq.read_table(folder / "topology.parquet")
        pq.write_table(topology.filter(pc.not_equal(topology["host"], "n004")), folder / "topology.parquet")

    (start,) = _found(capsys, folder)["starts"]
    assert [one["name"] for one in start["stragglers"]] == (["n004"] if is_placed else [])
    assert start["outsiders"] == ([] if is_placed else ["n004"])
    assert main(["startup", str(folder)]) == 0
    out = capsys.readouterr().out
    assert ("left out, as they carry no rank of the topology: n004" in out) is not is_placed


def test_where_names_of_hosts_differ_from_the_topology_s_none_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = _recording(tmp_path / "r", make_start(10, slow={("n004", "model_init"): 6.0}).marks, None)
    topology = pq.read_table(folder / "topology.parquet")
    hosts = [f"{host}.cluster" for host in topology["host"].to_pylist()]
    at = topology.schema.get_field_index("host")
    pq.write_table(topology.set_column(at, "host", [hosts]), folder / "topology.parquet")

    (start,) = _found(capsys, folder)["starts"]
    assert [one["name"] for one in start["stragglers"]] == ["n004"]


def test_a_host_that_began_and_ended_before_its_peers_is_never_slow_again_and_again(tmp_path: Path) -> None:
    """History names who was late in its starts, and such a host was in none."""
    logs = []
    for start in range(4):
        lines = []
        for key, kind, at in (("init_start", "INTERVAL_START", 40.0), ("init_stop", "INTERVAL_END", 60.0)):
            for process in range(8):
                sooner = (30.0 if key == "init_start" else 12.0) * (process == 5)
                time_ms = T0_MS + start * 1_000_000 + round(1000 * (at - sooner + process / 10))
                lines.append(line_of(f"{process}: ", time_ms=time_ms, key=key, event_type=kind))
        log = tmp_path / f"{start}.txt"
        log.write_text("".join(lines), encoding="utf-8")
        logs.append(log)

    judged = judge(read(logs, DEFAULT_LIMITS))
    assert [one.late for one in judged.starts] == [()] * 4
    assert judged.repeated == ()


def test_eight_clocks_are_told_of_in_the_order_of_their_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = []
    for key, kind, at in (("init_start", "INTERVAL_START", 9.0), ("init_stop", "INTERVAL_END", 70.0)):
        for process in range(32):
            time_ms = T0_MS + round(1000 * (at + process / 100 + 30 * (4 <= process < 14)))
            lines.append(line_of(f"{process}: ", time_ms=time_ms, key=key, event_type=kind))
    log = tmp_path / "log.txt"
    log.write_text("".join(lines), encoding="utf-8")

    (start,) = _found(capsys, log)["starts"]
    told = [sentence.split()[4] for sentence in start["summary"].split(". ") if sentence.startswith("The clock")]
    assert told == [str(process) for process in range(4, 12)]
    assert "… 2 more clocks seem off. Nobody is late." in start["summary"]
