"""``flight_recorder/`` of a recording: files become evidence, at a time that the content gives."""

from __future__ import annotations

import ast
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.models import hang_cases as cases
from tests.pipeline.rca.evidence.test_dumps import BlindJob
from tests.pipeline.recording.kit import START_NS, manifest, seconds, write_folder
from tests.pipeline.recording.test_replay import restarted_lines
from tocsin.cli.main import main
from tocsin.pipeline.lab.testing import JobShape, Scenario
from tocsin.pipeline.rca.evidence.flight_recorder import analyse_folder
from tocsin.pipeline.recording.reader import read_recording
from tocsin.pipeline.recording.recorder import JobRecorder
from tocsin.pipeline.recording.replay import ReplayConfig, replay, replay_folder, verdict_lines
from tocsin.pipeline.recording.stream import records_of
from tocsin.pipeline.recording.writer import write_recording
from tocsin.schemas.errors import RecordingError
from tocsin.schemas.formats.flight_recorder import parse_dump
from tocsin.schemas.records import NS_PER_SECOND, ProbeAnswer
from tocsin.schemas.verdicts import Verdict

REAL_SETS = ("lock_gil_1st", "gpu_error_1st")
HUNG_SECONDS = 100.0
TIMEOUT_SECONDS = 60.0


def topology(rank_count: int = 16) -> dict[str, pa.Array]:
    """Two ranks a host."""
    ranks = range(rank_count)
    return {"rank": pa.array(ranks, pa.int32()), "host": pa.array([f"n{rank // 2:03d}" for rank in ranks])}


def suspects_of(verdict: Verdict) -> dict[str, list[int]]:
    return {suspect.component.name: list(suspect.ranks) for suspect in verdict.suspects}


def real_recording(shared_data: Path, name: str, folder: Path, **tables: Any) -> tuple[Path, tuple[int, ...], int]:
    """A recording around real dumps, the injected ranks, and when the first operation was issued that hangs."""
    source = shared_data / "flight_recorder" / name
    if not source.is_dir():
        pytest.skip(f"no dumps at {source}")
    first = (source / "fault_injection.log").read_text().splitlines()[0]
    injected = tuple(ast.literal_eval(first.partition(":")[2].strip()))
    shutil.copytree(source, folder / "flight_recorder")
    dumps = [parse_dump(path.read_bytes()) for path in source.glob("_dump_*")]
    hung_ns = min(entry.created_ns for dump in dumps for entry in dump.entries if not entry.is_done)
    reported = manifest(start_ns=hung_ns - 600 * NS_PER_SECOND, end_ns=hung_ns + 600 * NS_PER_SECOND)
    return write_folder(folder, tables, reported=reported), injected, hung_ns


def model_dumps(
    folder: Path, kind: str = "cpu_stall", rank: int = 5, hung_seconds: float = HUNG_SECONDS, **strike: Any
) -> Path:
    """Dumps of a model job of 16 ranks whose ``rank`` is struck."""
    stuck = cases.strike(kind, rank, 30, **strike)
    (folder / "flight_recorder").mkdir(parents=True)
    for number in stuck.states:
        dump = cases.dump_of(stuck, number, active_only=False)
        for index, entry in enumerate(dump["entries"]):
            done = entry["state"] == "completed"
            entry["time_created_ns"] = START_NS + round((hung_seconds - done) * NS_PER_SECOND) + index
            entry["timeout_ms"] = round(TIMEOUT_SECONDS * 1000)
            if done:
                entry["time_discovered_completed_ns"] = entry["time_created_ns"] + 1
        (folder / "flight_recorder" / f"fr_{number}").write_bytes(pickle.dumps(dump))
    return folder


def told_seconds(verdict: Verdict) -> float:
    return (verdict.detected_ns - START_NS) / NS_PER_SECOND


@pytest.mark.parametrize("name", REAL_SETS)
class TestRealDumps:
    def test_the_verdict_names_exactly_the_ranks_that_were_injected(
        self, shared_data: Path, tmp_path: Path, name: str
    ) -> None:
        folder, injected, hung_ns = real_recording(shared_data, name, tmp_path, topology=topology())
        verdicts = replay_folder(folder)

        assert [suspects_of(verdict) for verdict in verdicts] == [
            {f"n{rank // 2:03d}": [rank] for rank in injected}
        ] * 2
        assert {verdict.verdict_id for verdict in verdicts} == {verdicts[0].verdict_id}
        assert [verdict.state.value for verdict in verdicts] == ["open", "confirmed"]
        assert (verdicts[0].fault.value, verdicts[0].cause) == ("hang", "unknown")
        assert verdicts[0].evidence[0].detector == "flight_recorder"
        assert verdicts[0].onset_ns == hung_ns
        # Megatron's groups time out after 180 s: then the watchdog writes the dumps, not before.
        assert 180 <= (verdicts[0].detected_ns - hung_ns) / NS_PER_SECOND <= 181

    def test_without_a_topology_ranks_are_named(self, shared_data: Path, tmp_path: Path, name: str) -> None:
        folder, injected, _ = real_recording(shared_data, name, tmp_path)
        verdicts = replay_folder(folder)

        assert [s.component.kind.value for s in verdicts[-1].suspects] == ["rank"] * len(injected)
        assert [s.component.name for s in verdicts[-1].suspects] == [str(rank) for rank in injected]

    def test_who_left_no_dump_is_named_where_the_others_wait_for_it(
        self, shared_data: Path, tmp_path: Path, name: str
    ) -> None:
        folder, injected, _ = real_recording(shared_data, name, tmp_path, topology=topology())
        for rank in injected:
            (folder / "flight_recorder" / f"_dump_{rank}").unlink()
        verdicts = replay_folder(folder)

        assert suspects_of(verdicts[-1]) == {f"n{rank // 2:03d}": [rank] for rank in injected}
        assert verdicts[-1].reason == "silent_and_peers_stalled"

    def test_the_folders_own_times_do_not_matter(self, shared_data: Path, tmp_path: Path, name: str) -> None:
        folder, _, _ = real_recording(shared_data, name, tmp_path, topology=topology())
        before = verdict_lines(replay_folder(folder))
        for path in (folder / "flight_recorder").iterdir():
            path.chmod(0o644)
            os.utime(path, (1, 1))

        assert before
        assert verdict_lines(replay_folder(folder)) == before

    def test_shuffled_twice_and_restored(self, shared_data: Path, tmp_path: Path, name: str) -> None:
        folder, _, hung_ns = real_recording(shared_data, name, tmp_path, topology=topology())
        recording = read_recording(folder)
        plain = verdict_lines(replay(recording, ReplayConfig()))
        until = (hung_ns - recording.manifest.start_ns) // NS_PER_SECOND

        assert plain
        assert verdict_lines(replay(recording, ReplayConfig(shuffle_seed=4, repeat_count=2))) == plain
        assert restarted_lines(recording, until + 183) == plain  # between the two lines

    def test_written_and_read_again(self, shared_data: Path, tmp_path: Path, name: str) -> None:
        folder, _, _ = real_recording(shared_data, name, tmp_path / "a", topology=topology())
        recording = read_recording(folder)
        write_recording(tmp_path / "b", recording)

        assert read_recording(tmp_path / "b").dumps == recording.dumps
        assert verdict_lines(replay_folder(tmp_path / "b")) == verdict_lines(replay_folder(folder))


class TestTime:
    def test_the_first_unfinished_operations_own_timeout(self, tmp_path: Path) -> None:
        write_folder(model_dumps(tmp_path), {"topology": topology()}, reported=manifest(300))

        assert told_seconds(replay_folder(tmp_path)[0]) == HUNG_SECONDS + TIMEOUT_SECONDS + 1

    def test_the_end_of_the_recording_where_it_comes_first(self, tmp_path: Path) -> None:
        write_folder(model_dumps(tmp_path), {"topology": topology()}, reported=manifest(130))
        verdicts = replay_folder(tmp_path)

        assert [told_seconds(verdict) for verdict in verdicts] == [130]
        assert suspects_of(verdicts[0]) == {"n002": [5]}

    @pytest.mark.parametrize("hung_seconds", [-100_000.0, 100_000.0])
    def test_dumps_of_another_clock_are_there_at_the_end(self, tmp_path: Path, hung_seconds: float) -> None:
        write_folder(model_dumps(tmp_path, hung_seconds=hung_seconds), {"topology": topology()}, reported=manifest(130))
        (verdict,) = replay_folder(tmp_path)

        assert suspects_of(verdict) == {"n002": [5]}
        assert told_seconds(verdict) == 130
        assert verdict.onset_ns <= verdict.detected_ns

    def test_the_attempt_that_they_are_of(self, tmp_path: Path) -> None:
        """The next attempt begins before the timeout: it is not accused of what the last one did."""
        rows = topology()
        both = {name: pa.concat_arrays([column, column]) for name, column in rows.items()}
        both["from_ns"] = pa.concat_arrays([seconds(*[0.0] * 16), seconds(*[140.0] * 16)])
        both["attempt"] = pa.array([0] * 16 + [1] * 16, pa.int32())
        both["host"] = pa.concat_arrays([rows["host"], pa.array([f"z{rank // 2}" for rank in range(16)])])
        folder = write_folder(model_dumps(tmp_path), {"topology": both}, reported=manifest(300))
        answers = [record for record in records_of(read_recording(folder)) if isinstance(record, ProbeAnswer)]
        verdicts = replay_folder(folder)

        assert {(answer.job.attempt, answer.ts_ns) for answer in answers} == {(0, START_NS + 140 * NS_PER_SECOND - 1)}
        assert suspects_of(verdicts[0]) == {"n002": [5]}
        assert {verdict.job.attempt for verdict in verdicts} == {0}


def steps(until_seconds: int, rank_count: int = 16) -> dict[str, pa.Array]:
    """A step of each rank every second."""
    times = [float(second) for second in range(1, until_seconds) for _ in range(rank_count)]
    return {
        "ts_ns": seconds(*times),
        "rank": pa.array(list(range(rank_count)) * (until_seconds - 1), pa.int32()),
        "step": pa.array([int(time) for time in times], pa.int64()),
        "duration_seconds": pa.array([1.0] * len(times)),
    }


class TestJob:
    def test_a_job_that_makes_steps_until_the_end_has_not_hung(self, tmp_path: Path) -> None:
        write_folder(model_dumps(tmp_path), {"topology": topology(), "steps": steps(200)}, reported=manifest(200))

        assert replay_folder(tmp_path) == []

    def test_a_job_that_goes_on_afterwards_takes_the_verdict_back(self, tmp_path: Path) -> None:
        """Steps until 100 s, dumps at 160 s, steps again from 200 s on."""
        rows = steps(260)
        keep = [not 100 < (time.as_py() - START_NS) / NS_PER_SECOND < 200 for time in rows["ts_ns"]]
        rows = {name: column.filter(pa.array(keep)) for name, column in rows.items()}
        write_folder(model_dumps(tmp_path), {"topology": topology(), "steps": rows}, reported=manifest(260))
        verdicts = replay_folder(tmp_path)

        assert [suspects_of(verdict) for verdict in verdicts] == [{"n002": [5]}] * 3
        assert [verdict.state.value for verdict in verdicts] == ["open", "confirmed", "resolved"]
        assert 199 <= told_seconds(verdicts[-1]) <= 208

    def test_steps_that_end_when_the_ranks_wait(self, tmp_path: Path) -> None:
        write_folder(model_dumps(tmp_path), {"topology": topology(), "steps": steps(100)}, reported=manifest(300))

        assert suspects_of(replay_folder(tmp_path)[-1]) == {"n002": [5]}

    def test_processes_that_the_watchdog_ends_are_no_culprits(self, tmp_path: Path) -> None:
        """SIGABRT without a word, rank 0 first: without the dumps it would look like the first to die."""
        exits = {
            "ts_ns": seconds(*[161.5 + rank / 4 for rank in range(16)]),
            "host": topology()["host"],
            "rank": pa.array(range(16), pa.int32()),
            "source": pa.array(["process"] * 16),
            "name": pa.array(["exit"] * 16),
            "severity": pa.array(["error"] * 16),
            "payload": pa.array(['{"code": -6, "signal": 6, "stderr_tail": ""}'] * 16),
        }
        write_folder(model_dumps(tmp_path), {"topology": topology(), "events": exits}, reported=manifest(300))
        last = {verdict.verdict_id: verdict for verdict in replay_folder(tmp_path)}.values()

        assert [(suspects_of(verdict), verdict.fault.value) for verdict in last] == [({"n002": [5]}, "hang")]

    def test_an_operation_in_which_everybody_is_accuses_nobody(self, tmp_path: Path) -> None:
        model_dumps(tmp_path)
        for path in (tmp_path / "flight_recorder").iterdir():
            dump = pickle.loads(path.read_bytes())
            waits = {
                **dump["entries"][-1],
                "process_group": ("world", "default_pg"),
                "profiling_name": "nccl:all_reduce",
            }
            waits |= {"collective_seq_id": 99, "p2p_seq_id": 0, "is_p2p": False, "state": "scheduled", "retired": False}
            waits |= {"time_discovered_completed_ns": None, "input_sizes": [[4]], "record_id": 0}
            path.write_bytes(pickle.dumps({**dump, "entries": [waits], "pg_status": {}}))
        write_folder(tmp_path, {"topology": topology()}, reported=manifest(300))
        verdicts = replay_folder(tmp_path)

        assert verdicts
        assert {(verdict.suspects, verdict.reason) for verdict in verdicts} == {((), "job_stalled_unexplained")}


class TestFiles:
    def test_a_broken_dump_is_told_and_the_others_speak(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        write_folder(model_dumps(tmp_path), {"topology": topology()}, reported=manifest(300))
        broken = tmp_path / "flight_recorder" / "fr_9"
        broken.write_bytes(broken.read_bytes()[:100])

        assert main(["replay", str(tmp_path)]) == 0
        assert f"{tmp_path}: flight_recorder: fr_9 is no whole dump: " in capsys.readouterr().err
        assert suspects_of(replay_folder(tmp_path)[-1]) == {"n002": [5]}

    @pytest.mark.parametrize("content", [b"", b"no dump", pickle.dumps([1, 2])])
    def test_nothing_that_can_be_judged_is_told(self, tmp_path: Path, content: bytes) -> None:
        write_folder(tmp_path, {"topology": topology()})
        (tmp_path / "flight_recorder").mkdir()
        (tmp_path / "flight_recorder" / "dump_0").write_bytes(content)
        recording = read_recording(tmp_path)

        assert replay_folder(tmp_path) == []
        assert recording.dumps == {}
        assert "nothing to judge" in recording.notes[0]
        assert "dump_0" in recording.notes[0]

    def test_an_empty_folder_is_told(self, tmp_path: Path) -> None:
        write_folder(tmp_path, {})
        (tmp_path / "flight_recorder").mkdir()

        assert "nothing to judge" in read_recording(tmp_path).notes[0]

    def test_a_file_of_this_name_is_an_error(self, tmp_path: Path) -> None:
        write_folder(tmp_path, {})
        (tmp_path / "flight_recorder").write_bytes(b"")
        with pytest.raises(RecordingError, match="flight_recorder: must be a folder"):
            read_recording(tmp_path)

    def test_a_dump_that_is_too_large_for_a_record_is_cut_down(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write_folder(model_dumps(tmp_path), {"topology": topology()}, reported=manifest(300))
        plain = [suspects_of(verdict) for verdict in replay_folder(tmp_path)]
        sizes = {len(data) for data in read_recording(tmp_path).dumps.values()}
        limit = max(sizes) // 2
        monkeypatch.setattr("tocsin.pipeline.recording.dumps.MAX_PAYLOAD_BYTES", limit)
        answers = [r for r in records_of(read_recording(tmp_path)) if isinstance(r, ProbeAnswer)]

        assert all(len(answer.payload) <= limit for answer in answers)
        assert [suspects_of(verdict) for verdict in replay_folder(tmp_path)] == plain

    def test_a_rank_that_answered_a_probe_is_not_read_twice(self, tmp_path: Path) -> None:
        """``probes.parquet`` knows the time: all dumps answer at 130 s, and the files add nothing."""
        write_folder(model_dumps(tmp_path), {"topology": topology()}, reported=manifest(300))
        files = read_recording(tmp_path).dumps
        probes = {
            "ts_ns": seconds(*[130.0] * 16),
            "host": topology()["host"],
            "rank": pa.array(range(16), pa.int32()),
            "request_id": pa.array(["q"] * 16),
            "kind": pa.array(["flight_recorder"] * 16),
            "payload": pa.array([files[rank] for rank in range(16)], pa.binary()),
        }
        tables = {"topology": topology(), "probes": probes, "steps": steps(100)}
        write_folder(tmp_path, tables, reported=manifest(300))
        answers = [r for r in records_of(read_recording(tmp_path)) if isinstance(r, ProbeAnswer)]
        verdicts = replay_folder(tmp_path)

        assert {(answer.request_id, answer.ts_ns) for answer in answers} == {("q", START_NS + 130 * NS_PER_SECOND)}
        assert suspects_of(verdicts[0]) == {"n002": [5]}
        assert told_seconds(verdicts[0]) == 131


def test_dumps_that_reach_a_running_engine_are_recorded_as_answers_and_as_files(tmp_path: Path) -> None:
    scenario = Scenario(JobShape())
    job = scenario.job = BlindJob(scenario.shape)
    recorder = JobRecorder(tmp_path / "r", "")
    scenario.engine.taps.append(recorder.on_bundle)
    scenario.at(30).inject(job.freeze, 3, seen=False)
    scenario.at(70).inject(job.dump)
    scenario.at(75).inject(job.answer, 0, b"")
    scenario.run(90)
    recorder.close()
    live = verdict_lines(scenario.verdicts)

    assert live
    assert verdict_lines(replay_folder(tmp_path / "r")) == live
    assert sorted(path.name for path in (tmp_path / "r" / "flight_recorder").iterdir()) == [
        f"rank_{rank}" for rank in range(8)
    ]
    assert analyse_folder(tmp_path / "r" / "flight_recorder").culprits == (3,)
