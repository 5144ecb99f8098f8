"""``tocsin startup`` on real logs, on logs with late processes, and on recordings."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.models.startup.kit import NS, T0_NS, make_start
from tests.schemas.formats.test_mllog import line_of
from tocsin.cli.main import main
from tocsin.schemas.startup import StageMark

T0_MS = T0_NS // 1_000_000
STARTS, ENDS = {"event_type": "INTERVAL_START"}, {"event_type": "INTERVAL_END"}


def _log(
    path: Path, inits: list[float], *, labelled: bool = False, stops: list[float] | None = None, t0: float = 0.0
) -> Path:
    """Write a log: ``init_start`` of each process at these seconds, ``init_stop`` and ``run_start`` after them."""

    def entry(at: float, key: str, process: int, kind: dict[str, str]) -> str:
        return line_of(f"{process}: " if labelled else "", time_ms=T0_MS + round((t0 + at) * 1000), key=key, **kind)

    lines = [entry(0.0, "submission_benchmark", 0, {})]
    lines += [entry(at, "init_start", process, STARTS) for process, at in enumerate(inits)]
    ends = stops or [max(inits) + 60.0]
    lines += [entry(at, "init_stop", process, ENDS) for process, at in enumerate(ends)]
    lines.append(entry(max(ends) + 1, "run_start", 0, STARTS))
    lines.append(entry(max(ends) + 5, "train_loss", 0, {}))
    path.write_text("".join(lines), encoding="utf-8")
    return path


def _found(capsys: pytest.CaptureFixture[str], *args: object) -> dict[str, Any]:
    assert main(["startup", *map(str, args), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


@pytest.mark.parametrize(
    ("folder", "starts", "processes"), [("8xXE9712x4GB200_llama2_70b_lora", 4, 32), ("dgxa100_n48_maskrcnn", 2, 384)]
)
def test_nobody_is_late_in_healthy_real_logs(
    shared_data: Path, capsys: pytest.CaptureFixture[str], folder: str, starts: int, processes: int
) -> None:
    files = sorted((shared_data / "mllog" / folder).glob("*.txt"))
    if not files:
        pytest.skip(f"no MLPerf logs in {folder}")
    found = _found(capsys, *files)

    assert len(found["starts"]) == starts
    assert found["repeated"] == []
    for start in found["starts"]:
        assert start["summary"] == "Nobody is late."
        assert (start["stragglers"], start["shared"], start["skipped"]) == ([], [], {})
        assert all(group["late_count"] == 0 for group in start["stamps"])
        assert start["processes"] == processes
        assert [stage["stage"] for stage in start["stages"]] == ["env_setup", "model_init", "first_step"]
    seconds = {start["begin_ns"] // 10**9: start["seconds"] for start in found["starts"]}
    known = {1746119101: 408.259, 1652565547: 195.479}
    assert {at: pytest.approx(known[at], abs=0.002) for at in known if at in seconds} == {
        at: seconds[at] for at in known if at in seconds
    }


def test_late_stamps_without_names_are_counted_and_nobody_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    inits = [9.5 + at / 1000 for at in range(376)] + [35.0 + at / 100 for at in range(8)]
    log = _log(tmp_path / "log.txt", inits)

    (start,) = _found(capsys, log)["starts"]
    assert start["stragglers"] == []
    assert [(group["key"], group["count"], group["late_count"]) for group in start["stamps"]] == [
        ("init_start", 384, 8)
    ]
    assert start["summary"].startswith("8 of 384 stamps of init_start come 25.3 to 25.4 s late")
    assert "does not say whose" in start["summary"]


def test_a_labelled_process_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = _log(tmp_path / "log.txt", [9.0, 9.1, 9.2, 45.0, 9.3, 9.4], labelled=True)

    assert main(["startup", str(log)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("rank 3 is late in env_setup: 45.0 s, the median of 5 peers is 9.2 s")
    (start,) = _found(capsys, log)["starts"]
    assert [(one["kind"], one["name"], one["stage"]) for one in start["stragglers"]] == [("rank", "3", "env_setup")]
    assert start["stages"][0]["blame"]["node"] == "3"


def test_a_victim_of_a_late_process_is_not_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All processes end the next stage together, so the one that came late took the shortest time for it."""
    log = _log(tmp_path / "log.txt", [9.0, 9.1, 9.2, 45.0, 9.3], labelled=True, stops=[100.0 + at for at in range(5)])

    (start,) = _found(capsys, log)["starts"]
    assert [(one["name"], one["stage"]) for one in start["stragglers"]] == [("3", "env_setup")]


def test_logs_of_one_time_are_one_start_and_each_file_is_a_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [_log(tmp_path / f"n{at}.log", [50.0 if at == 2 else 9.0 + at]) for at in range(6)]

    (start,) = _found(capsys, *files)["starts"]
    assert [(one["kind"], one["name"]) for one in start["stragglers"]] == [("file", "n2.log")]


def test_a_slow_stage_by_earlier_starts_is_a_shared_service(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [_log(tmp_path / f"{at}.txt", [20.0 + at], t0=1000.0 * at) for at in range(3)]
    files.append(_log(tmp_path / "3.txt", [80.0], t0=3000.0))

    *before, last = _found(capsys, *reversed(files))["starts"]
    assert [start["name"] for start in before] == ["0.txt", "1.txt", "2.txt"]
    assert all(start["shared"] == [] for start in before)
    assert [one["stage"] for one in last["shared"]] == ["env_setup"]
    assert "no machine is to blame" in last["summary"]


@pytest.mark.parametrize("how", ["windows", "gzip", "bom", "timestamps", "colour"])
def test_odd_writings_of_one_log_say_the_same(how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = _log(tmp_path / "log.txt", [9.0] * 7 + [40.0], labelled=how != "timestamps")
    text = log.read_text()
    plain = _found(capsys, log)["starts"][0]
    odd = {
        "windows": text.replace("\n", "\r\n").encode(),
        "gzip": gzip.compress(text.encode()),
        "bom": b"\xef\xbb\xbf" + text.encode(),
        "timestamps": "".join(f"2026-01-01T00:00:00Z {line}" for line in text.splitlines(keepends=True)).encode(),
        "colour": text.replace(":::MLLOG", "\x1b[32m:::MLLOG").encode(),
    }
    log.write_bytes(odd[how])
    again = _found(capsys, log)["starts"][0]

    names = [one["name"] for one in plain["stragglers"]]
    assert [one["name"] for one in again["stragglers"]] == names
    assert [one["job_seconds"] for one in again["stages"]] == [one["job_seconds"] for one in plain["stages"]]
    assert [one["late_count"] for one in again["stamps"]] == [one["late_count"] for one in plain["stamps"]]


def test_several_runs_in_one_file_are_starts_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log, parts = tmp_path / "log.txt", []
    for run in range(4):
        part = _log(tmp_path / "part", [9.0 if run < 3 else 60.0], t0=run * 1000.0).read_text()
        stop = line_of(time_ms=T0_MS + run * 1_000_000 + 500_000, key="run_stop", **ENDS)
        parts.append(part + stop + "\n")
    log.write_text("".join(parts))
    found = _found(capsys, log)["starts"]

    assert [one["name"] for one in found] == [f"log.txt run {at}" for at in (1, 2, 3, 4)]
    assert [len(one["shared"]) for one in found] == [0, 0, 0, 1]


def test_a_broken_gzip_file_is_refused_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed = gzip.compress(_log(tmp_path / "log.txt", [9.0]).read_bytes())
    for content in (packed[:-12], packed[:20] + b"\xff" * 20):
        (tmp_path / "log.gz").write_bytes(content)
        assert main(["startup", str(tmp_path / "log.gz")]) == 2
        assert "log.gz: " in capsys.readouterr().err


def _nccl(path: Path, late_seconds: float, hosts: int = 6) -> Path:
    """Write NCCL's lines of a communicator in which the host n2 comes late."""
    text = ""
    for rank in range(hosts):
        total = late_seconds + 1.0 - (late_seconds if rank == 2 else 0.0)
        head = f"n{rank}:7:8 [0] NCCL INFO "
        for edge in ("START", "COMPLETE"):
            text += f"{head}ncclCommInitRankConfig comm 0xa{rank} rank {rank} nranks {hosts} cudaDev 0 "
            text += f"nvmlDev 0 busId 1e0 commId 0x15c1 - Init {edge}\n"
        text += f"{head}Init timings - ncclCommInitRankConfig: rank {rank} nranks {hosts} total {total:.2f} "
        text += f"(kernels 0.50, alloc 0.10, bootstrap {total - 0.6:.2f})\n"
    path.write_text(text)
    return path


def test_the_lines_of_nccl_name_the_host_that_came_late(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = _nccl(tmp_path / "nccl.txt", 30.0)
    assert main(["startup", str(log)]) == 0
    out = capsys.readouterr().out
    assert "0x15c1: 6 of 6 ranks seen on 6 hosts, 6 complete, 31.00 s" in out
    assert "host n2 delayed the others: 30.6 s after the first rank came" in out
    (one,) = _found(capsys, log)["communicators"]
    assert [late["name"] for late in one["stragglers"]] == ["n2"]

    assert main(["startup", str(_nccl(tmp_path / "nccl.txt", 2.0))]) == 0
    assert "delayed" not in capsys.readouterr().out


def test_a_log_may_have_the_lines_of_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = _log(tmp_path / "log.txt", [9.0])
    nccl = _nccl(tmp_path / "nccl.txt", 30.0)
    log.write_text(log.read_text() + nccl.read_text())
    found = _found(capsys, log)

    assert (len(found["starts"]), len(found["communicators"])) == (1, 1)


def test_what_is_left_out_is_said_by_file_and_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = _log(tmp_path / "log.txt", [9.0])
    log.write_text("warming up\x1b[2J\n" + log.read_text() + line_of()[:40] + "\n")

    assert main(["startup", str(log)]) == 0
    out = capsys.readouterr().out
    assert "left out of log.txt: 1 x foreign_line (first: line 1), 1 x torn_line (first: line 7)" in out


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "log.txt: has no entry of MLPerf's log, a line with :::MLLOG (empty)"),
        ("a\nb\n", "log.txt: has no entry of MLPerf's log, a line with :::MLLOG (line 1: foreign_line (2 in all))"),
        (line_of(), "log.txt: shows no start-up stage"),
    ],
)
def test_a_log_without_a_start_is_refused_by_file(
    text: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log.txt").write_text(text)

    assert main(["startup", str(tmp_path / "log.txt")]) == 2
    assert said in capsys.readouterr().err


def test_a_missing_file_and_a_folder_among_files_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["startup", str(tmp_path / "none.txt")]) == 2
    assert "none.txt: cannot be read" in capsys.readouterr().err
    assert main(["startup", str(tmp_path), str(_log(tmp_path / "log.txt", [9.0]))]) == 2
    assert "log files, or one folder" in capsys.readouterr().err


def _recording(folder: Path, marks: tuple[StageMark, ...], train_ns: int | None, **payload: object) -> Path:
    """Write a recording with stage events of hosts with two ranks each."""
    folder.mkdir()
    end_ns = max(mark.ts_ns for mark in marks) + 120 * NS
    manifest = {"format_version": 1, "job_id": "j7", "attempt": 0, "start_ns": T0_NS, "end_ns": end_ns}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    rows = sorted(marks, key=lambda mark: mark.ts_ns)
    bodies = [{"stage": one.stage, "edge": one.edge, "start_kind": one.start_kind, **payload} for one in rows]
    columns = {
        "ts_ns": pa.array([mark.ts_ns for mark in rows], pa.int64()),
        "host": [mark.node for mark in rows],
        "rank": pa.array([-1] * len(rows), pa.int32()),
        "source": ["startup"] * len(rows),
        "name": ["stage"] * len(rows),
        "severity": ["info"] * len(rows),
        "payload": [json.dumps(body) for body in bodies],
    }
    pq.write_table(pa.table(columns), folder / "events.parquet")
    hosts = sorted({mark.node for mark in marks})
    places = {name: pa.array([0] * (2 * len(hosts)), pa.int16()) for name in ("dp", "pp", "tp")}
    topology = {
        "rank": pa.array(range(2 * len(hosts)), pa.int32()),
        "host": [host for host in hosts for _ in range(2)],
        "gpu": pa.array([at % 2 for at in range(2 * len(hosts))], pa.int8()),
        "gpu_uuid": [f"GPU-{at}" for at in range(2 * len(hosts))],
        **places,
        "leaf": [""] * (2 * len(hosts)),
        "minipod": [""] * (2 * len(hosts)),
    }
    pq.write_table(pa.table(topology), folder / "topology.parquet")
    if train_ns is not None:
        step = {"ts_ns": [train_ns + NS], "rank": pa.array([0], pa.int32()), "step": [1], "duration_seconds": [1.0]}
        pq.write_table(pa.table(step), folder / "steps.parquet")
    return folder


def test_a_recording_names_the_host_that_is_still_in_its_stage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = make_start(10, slow={("n004", "model_init"): 6.0})
    late_ns = T0_NS + round(made.truth["n004"]["model_init"][1] * NS)
    marks = tuple(mark for mark in made.marks if mark.ts_ns < late_ns)
    folder = _recording(tmp_path / "r", marks, None)

    (start,) = _found(capsys, folder)["starts"]
    assert [(one["kind"], one["name"], one["stage"], one["is_open"]) for one in start["stragglers"]] == [
        ("host", "n004", "model_init", True)
    ]
    assert start["train_ns"] is None
    assert start["stages"][-1]["open"] == ["n004"]
    assert main(["startup", str(folder)]) == 0
    text = capsys.readouterr().out
    assert "not training after" in text
    assert "so far, the median of 9 peers" in text
    assert "#...." in text


def test_the_cost_of_a_recorded_start_counts_the_gpus_of_its_hosts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = make_start(6)
    train_ns = max(mark.ts_ns for mark in made.marks) + 5 * NS
    (start,) = _found(capsys, _recording(tmp_path / "r", made.marks, train_ns))["starts"]

    assert (start["processes"], start["train_ns"], start["what"]) == (12, train_ns, "j7")
    assert start["waste_gpu_seconds"] == pytest.approx(12 * (train_ns - T0_NS) / NS)
    assert start["summary"] == "Nobody is late."
    for stage in start["stages"]:
        ends = sorted(spans[stage["stage"]][1] for spans in made.truth.values())
        assert stage["waiting_gpu_seconds"] == pytest.approx(sum(2 * (ends[-1] - end) for end in ends), abs=0.01)
        assert stage["blame"]["gpu_seconds"] == pytest.approx((ends[-1] - ends[-2]) * 12, abs=0.01)


def test_a_stage_event_without_an_edge_is_refused_by_file_and_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = _recording(tmp_path / "r", make_start(2).marks, None, edge="middle")

    assert main(["startup", str(folder)]) == 2
    assert "events.parquet, column payload, row 0: " in capsys.readouterr().err


def test_a_recording_without_a_stage_event_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = _recording(tmp_path / "r", make_start(2).marks, None)
    (folder / "events.parquet").unlink()

    assert main(["startup", str(folder)]) == 2
    assert "r/events.parquet: has no stage event" in capsys.readouterr().err
