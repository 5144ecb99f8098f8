"""``tocsin replay`` and ``tocsin score`` as commands: files, messages, exit codes."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.pipeline.lab.backtest import kit
from tests.pipeline.recording.kit import good_tables, manifest, write_folder
from tocsin.cli.main import main
from tocsin.pipeline.core.slices import SliceBundle
from tocsin.pipeline.lab.simulation.case import draw_case
from tocsin.pipeline.recording.tables import Recording
from tocsin.pipeline.recording.writer import write_recording
from tocsin.pipeline.runtime.job_pipeline import BundleResult, JobPipeline


@cache
def case() -> Recording:
    return draw_case(2, 4, "machine_unreachable", duration_seconds=300.0).recording()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_recording(tmp_path / "good", case())
    return tmp_path / "good"


def lines_in(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_it_writes_verdicts_into_the_folder_and_says_what_is_absent(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", str(folder)]) == 0
    reported = capsys.readouterr()

    assert lines_in(folder / "verdicts.jsonl")
    assert reported.out.startswith(f"{folder}: ")
    assert "judged without collectives" in reported.out
    assert reported.err == ""  # no progress bar: this is no terminal


def test_again_and_shuffled_the_same_bytes(folder: Path) -> None:
    main(["replay", str(folder)])
    first = (folder / "verdicts.jsonl").read_bytes()
    for more in ([], ["--shuffle", "5"]):
        assert main(["replay", str(folder), *more]) == 0
        assert (folder / "verdicts.jsonl").read_bytes() == first


def test_a_file_of_ones_own(folder: Path, tmp_path: Path) -> None:
    assert main(["replay", str(folder), "--verdicts", str(tmp_path / "v")]) == 0

    assert lines_in(tmp_path / "v")
    assert not (folder / "verdicts.jsonl").exists()


def test_nothing_but_a_manifest_gives_an_empty_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_folder(tmp_path, {})

    assert main(["replay", str(tmp_path)]) == 0
    assert (tmp_path / "verdicts.jsonl").read_bytes() == b""
    assert "0 verdict lines (not judged: nothing_recorded; without topology, " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("hosts", "value", "seconds", "reason"),
    [(4, math.nan, 90, "metric_missing"), (1, 0.5, 90, "too_few_peers"), (4, 0.5, 0, "span_too_short")],
)
def test_where_nothing_was_judged_the_last_line_says_why(
    tmp_path: Path, hosts: int, value: float, seconds: int, reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    table = kit.metric_table([f"n{row}" for row in range(hosts)], {"cpu_util_ratio": np.full((90, hosts), value)})
    write_recording(tmp_path / "r", Recording(kit.manifest(seconds), {"host_metrics": table}))

    assert main(["replay", str(tmp_path / "r")]) == 0
    said = capsys.readouterr().out.splitlines()[-1]
    absent = "without topology, groups, steps, collectives, events"
    assert said == f"{tmp_path / 'r'}: 0 verdict lines (not judged: {reason}; {absent})"


def test_a_terminal_gets_a_progress_bar(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)

    assert main(["replay", str(folder)]) == 0
    assert "good [##############################] 100%" in capsys.readouterr().err


def test_an_operator_that_raises_is_reported_and_the_rest_is_judged(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As live: the job begins anew in that second. Status 2, in words, no traceback."""
    real, seconds = JobPipeline.on_bundle, []

    def on_bundle(self: JobPipeline, turn: SliceBundle) -> BundleResult:
        seconds.append(turn.end_ns)
        if len(seconds) == 30:
            raise OverflowError("int too large to convert to float")
        return real(self, turn)

    monkeypatch.setattr(JobPipeline, "on_bundle", on_bundle)
    status = main(["replay", str(folder)])
    reported = capsys.readouterr()

    assert status == 2
    assert len(seconds) > 31
    assert "operator_failed: second " in reported.err
    assert "OverflowError: int too large to convert to float; the job's state begins anew" in reported.err
    assert "Traceback" not in reported.err
    assert "verdict lines" in reported.out


def test_one_bad_folder_does_not_stop_the_others(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = good_tables()
    del tables["steps"]["rank"]
    bad = write_folder(tmp_path / "bad", tables)

    assert main(["replay", str(bad), str(folder), "--jobs", "2"]) == 2
    assert f"tocsin replay: {bad}: steps.parquet, column rank: the required" in capsys.readouterr().err
    assert lines_in(folder / "verdicts.jsonl")
    assert not (bad / "verdicts.jsonl").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--jobs", "0"], "at least 1"),
        (["--speed", "-1"], "0 (as fast as possible) or more"),
        (["--speed", "nan"], "0 (as fast as possible) or more"),
        (["--speed", "inf"], "0 (as fast as possible) or more"),
    ],
)
def test_wrong_arguments(folder: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(folder), *arguments]) == 2
    assert words in capsys.readouterr().err


def test_one_file_for_two_folders_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(folder), str(folder), "--verdicts", "v"]) == 2
    assert "one recording only" in capsys.readouterr().err


def test_no_such_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    absent = tmp_path / "absent"
    assert main(["replay", str(absent)]) == 2
    assert capsys.readouterr().err == f"tocsin replay: {absent}: no such folder\n"


def test_speed_paces_the_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    now = [0.0]
    monkeypatch.setattr("tocsin.cli.replay.time.monotonic", lambda: now[0])

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds

    monkeypatch.setattr("tocsin.cli.replay.time.sleep", sleep)
    write_folder(tmp_path, good_tables(), reported=manifest(20))

    assert main(["replay", str(tmp_path), "--speed", "2"]) == 0
    assert sum(slept) == pytest.approx(10.5)  # 20 s and the lateness


def test_score_prints_a_table_and_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["replay", str(folder)])

    assert main(["score", str(folder)]) == 0
    table = capsys.readouterr().out
    assert "precision 1.000  recall 1.000  F1 1.000" in table
    assert "machine_unreachable" in table

    assert main(["score", str(folder), "--json"]) == 0
    reported = json.loads(capsys.readouterr().out)
    assert reported["all"]["hits"] == 1
    assert reported["causes"]["machine_unreachable"]["hits"] == 1
    assert [(name, kind["hits"]) for name, kind in reported["kinds"].items()] == [("hang", 1)]
    assert reported["all"]["false_accusations_per_machine_day"] == 0.0


def test_score_without_verdicts(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["score", str(folder)]) == 2
    assert "run 'tocsin replay' first" in capsys.readouterr().err


def test_score_of_several_folders_scores_those_that_can_be(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["replay", str(folder)])
    blind = write_folder(tmp_path / "no truth", {})
    unheard = write_folder(tmp_path / "no verdicts", {}, truth={"faults": []})
    capsys.readouterr()

    assert main(["score", str(blind), str(folder), str(unheard), "--json"]) == 2
    reported = capsys.readouterr()
    assert json.loads(reported.out)["all"]["hits"] == 1
    assert [line.partition(": missing")[0] for line in reported.err.splitlines()] == [
        f"tocsin score: {blind}: truth.json",
        f"tocsin score: {unheard}: verdicts.jsonl",
    ]


def test_score_of_nothing_that_can_be_scored_prints_no_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["score", str(tmp_path)]) == 2
    assert capsys.readouterr().out == ""


def test_score_by_kind_and_by_cause(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    faults = [
        {"kind": kind, "cause": cause, "suspects": [{"kind": "host", "name": "a"}], "onset_ns": 1, "end_ns": 2}
        for kind, cause in (("hang", "unknown"), ("fail_slow", "power_cap"), ("hang", "power_cap"))
    ]
    (write_folder(tmp_path, {}, truth={"faults": faults}) / "verdicts.jsonl").write_text("")

    assert main(["score", str(tmp_path)]) == 0
    rows = [line.split()[:2] for line in capsys.readouterr().out.splitlines() if line]
    assert rows[rows.index(["kind", "faults"]) :] == [
        ["kind", "faults"],
        ["fail_slow", "1"],
        ["hang", "2"],
        ["cause", "faults"],
        ["power_cap", "2"],
        ["unknown", "1"],
    ]


def test_a_folder_that_cannot_be_written_to_is_known_before_the_work(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: Any = Path.open

    def refuse(path: Path, mode: str = "r", *rest: Any, **more: Any) -> Any:
        if "w" in mode:
            raise PermissionError(30, "Read-only file system")
        return opened(path, mode, *rest, **more)

    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr("tocsin.pipeline.recording.replay.drive", lambda *_: pytest.fail("it began to work"))

    assert main(["replay", str(folder)]) == 2
    reported = capsys.readouterr()
    assert reported.err == (
        f"tocsin replay: {folder}: verdicts = '{folder}/verdicts.jsonl': "
        "must be in a folder that can be written to (Read-only file system)\n"
    )


def test_verdicts_beside_a_recording_that_is_read_only(folder: Path, tmp_path: Path) -> None:
    for path in folder.iterdir():
        path.chmod(0o444)
    folder.chmod(0o555)
    try:
        assert main(["replay", str(folder), "--verdicts", str(tmp_path / "of this.jsonl")]) == 0
    finally:
        folder.chmod(0o755)

    assert lines_in(tmp_path / "of this.jsonl")
    assert not (folder / "verdicts.jsonl").exists()


def test_nothing_half_written_stays(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old verdicts stay until the new ones are complete."""
    (folder / "verdicts.jsonl").write_text("old\n")
    names = {path.name for path in folder.iterdir()}

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("tocsin.pipeline.recording.replay.drive", interrupted)

    assert main(["replay", str(folder)]) == 130
    assert (folder / "verdicts.jsonl").read_text() == "old\n"
    assert {path.name for path in folder.iterdir()} == names


def test_a_path_with_spaces_and_no_name_of_its_own(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    named = folder.rename(folder.parent / "a b (1) ü")
    monkeypatch.chdir(named)

    assert main(["replay", "."]) == 0
    assert main(["replay", str(named)]) == 0
    assert str(named) in capsys.readouterr().out
    assert lines_in(named / "verdicts.jsonl")


def test_an_empty_argument_is_the_folder_one_stands_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)

    assert main(["replay", ""]) == 2
    assert "manifest.json: missing in ." in capsys.readouterr().err


def test_the_same_folder_twice_side_by_side(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(folder), str(folder), "--jobs", "2"]) == 0
    reported = capsys.readouterr()

    assert len(reported.out.splitlines()) == 2
    assert reported.err == ""
    assert lines_in(folder / "verdicts.jsonl")


def test_what_was_left_out_is_told_also_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        write_folder(tmp_path / name, good_tables(), reported=manifest(2))

    assert main(["replay", str(tmp_path / "a"), str(tmp_path / "b"), "--jobs", "2"]) == 0
    reported = capsys.readouterr().err
    for name in ("a", "b"):
        assert f"tocsin replay: {tmp_path / name}: host_metrics.parquet, column ts_ns, row 2: " in reported


def slow_replay(folders: list[Path]) -> subprocess.Popen[str]:
    """``tocsin replay`` of recordings in real time, side by side, once it is at work in each."""
    command = [sys.executable, "-m", "tocsin", "replay", *map(str, folders), "--jobs", "2", "--speed", "1"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while any(not list(folder.glob(".verdicts.jsonl.*")) for folder in folders):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.05)
    return process


def workers_of(process: subprocess.Popen[str]) -> list[int]:
    """The processes that replay (the third child tracks semaphores)."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(pid) for pid in children if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text()]


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_all_workers_without_a_word(tmp_path: Path, number: signal.Signals) -> None:
    folders = [write_folder(tmp_path / name, good_tables(), reported=manifest(600)) for name in ("a", "b")]
    process = slow_replay(folders)
    workers = workers_of(process)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)

    assert (process.returncode, out, err) == (130, "", "")
    assert len(workers) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)
    assert not [path for folder in folders for path in folder.iterdir() if "verdicts" in path.name]


@pytest.mark.slow
def test_a_worker_that_is_killed_costs_nobody_his_verdicts(tmp_path: Path) -> None:
    """As when memory runs out: each folder that was at work is replayed again, alone."""
    folders = [write_folder(tmp_path / name, good_tables(), reported=manifest(5)) for name in ("a", "b")]
    process = slow_replay(folders)
    os.kill(workers_of(process)[0], signal.SIGKILL)
    out, _ = process.communicate(timeout=60)

    assert process.returncode == 0
    assert len(out.splitlines()) == 2
    assert all((folder / "verdicts.jsonl").exists() for folder in folders)


def test_a_folder_of_recordings_is_each_of_them(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_recording(folder.parent / "second", case())
    assert main(["replay", str(folder.parent)]) == 0
    assert lines_in(folder / "verdicts.jsonl")
    assert lines_in(folder.parent / "second" / "verdicts.jsonl")
    capsys.readouterr()
    assert main(["score", str(folder.parent), "--json"]) == 0
    both = json.loads(capsys.readouterr().out)["all"]
    assert main(["score", str(folder), str(folder.parent / "second"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["all"] == both


def test_one_file_for_a_folder_of_two_recordings_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_recording(folder.parent / "second", case())
    assert main(["replay", str(folder.parent), "--verdicts", str(folder.parent / "one.jsonl")]) == 2
    assert "used with one recording only, not 2" in capsys.readouterr().err
