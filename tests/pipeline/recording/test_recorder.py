"""What is recorded of a running engine gives, replayed, the verdicts that the engine gave."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.pipeline.recording.kit import START_NS
from tests.pipeline.runtime.embedded.service_bench import ServiceBench
from tocsin.pipeline.lab.simulation.case import draw_case
from tocsin.pipeline.lab.testing import (
    FakeJob,
    JobShape,
    Scenario,
)
from tocsin.pipeline.recording.live import RecordingManager
from tocsin.pipeline.recording.reader import read_recording
from tocsin.pipeline.recording.recorder import JobRecorder
from tocsin.pipeline.recording.replay import ReplayConfig, replay, replay_folder, verdict_lines
from tocsin.pipeline.recording.stream import records_of
from tocsin.pipeline.recording.tables import Recording
from tocsin.pipeline.runtime.embedded.control_socket import EngineRefusedError
from tocsin.schemas.errors import RecordingError
from tocsin.schemas.metrics import BUILTIN_TABLE, FIRST_CUSTOM_TABLE_ID, Metric, MetricTable
from tocsin.schemas.records import IDLE_JOB_ID, NS_PER_SECOND, Frame, JobKey, TableAnnouncement
from tocsin.schemas.wire.codec import encode

FAULTS: dict[str, Callable[[FakeJob], None]] = {
    "freeze": lambda job: job.freeze(3),
    "kill": lambda job: job.kill(3),
    "slow": lambda job: job.slow(3, "forward", 4.0),
    "nan": lambda job: job.nan(3),
    "lose_host": lambda job: job.lose_host(3),
    "unseen freeze": lambda job: job.freeze(3, seen=False),
    "skip": lambda job: job.skip_collective(3),
}


def recorded(folder: Path, fault: str, seconds: int = 65, job_id: str = "") -> Scenario:
    scenario = Scenario(JobShape())
    recorder = JobRecorder(folder, job_id, {"fault": fault})
    scenario.engine.taps.append(recorder.on_bundle)
    scenario.at(25).inject(FAULTS[fault], scenario.job)
    scenario.run(seconds)
    recorder.close()
    return scenario


@pytest.mark.parametrize("fault", sorted(FAULTS))
def test_the_replay_says_what_the_engine_said(tmp_path: Path, fault: str) -> None:
    scenario = recorded(tmp_path / "r", fault)
    live = verdict_lines(scenario.verdicts)

    assert live
    assert verdict_lines(replay_folder(tmp_path / "r")) == live
    assert verdict_lines(replay_folder(tmp_path / "r", ReplayConfig(shuffle_seed=3, repeat_count=2))) == live


@pytest.mark.parametrize(("kind", "seed"), [("power_cap", 2), ("machine_unreachable", 2), ("nan_gradient", 1)])
def test_a_recording_of_a_replay_is_that_replay(tmp_path: Path, kind: str, seed: int) -> None:
    """With frames, GPUs, sampling periods of other than a second."""
    case = draw_case(seed, 5, kind, duration_seconds=400.0).recording()
    again, lines = rerecorded(tmp_path / "r", case)

    assert verdict_lines(replay_folder(again)) == lines
    assert read_recording(again).manifest.tick_seconds == case.manifest.tick_seconds


def rerecorded(folder: Path, recording: Recording) -> tuple[Path, str]:
    from tocsin.pipeline.recording.replay import drive
    from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine

    config = ReplayConfig()
    engine = EmbeddedEngine(config.engine)
    recorder = JobRecorder(folder, "")
    engine.taps.append(recorder.on_bundle)
    lines = verdict_lines(drive(engine, recording, config))
    recorder.close()
    assert lines
    assert verdict_lines(replay(recording, config)) == lines
    return folder, lines


def test_metrics_of_the_users_are_declared_again(tmp_path: Path) -> None:
    own = Metric("disk_latency_seconds", "host", 0.0, 1.0, "high")
    table = MetricTable(FIRST_CUSTOM_TABLE_ID, BUILTIN_TABLE.gpu, (*BUILTIN_TABLE.host, own))
    scenario = Scenario(JobShape())
    recorder = JobRecorder(tmp_path / "r", "job")
    scenario.engine.taps.append(recorder.on_bundle)
    key = scenario.job.job
    scenario.engine.take(encode(TableAnnouncement(key, "n00", START_NS, table)))
    values = np.full((len(table.host), 5), np.nan, "<f4")
    values[-1] = np.arange(5) / 10
    ts_ns = START_NS + 5 * NS_PER_SECOND - 1_000_000
    frame = Frame(key, "n00", ts_ns, table.table_id, START_NS, NS_PER_SECOND, 5, (), b"", values.tobytes())
    scenario.engine.take(encode(frame))
    scenario.run(10)
    recorder.close()
    recording = read_recording(tmp_path / "r")

    assert recording.user_metrics == {
        own.name: {"unit": "seconds", "min": 0.0, "max": 1.0, "bad": "high", "scope": "host"}
    }
    assert [record for record in records_of(recording) if isinstance(record, Frame)] == [frame]


def test_more_rows_than_are_held_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Portions of a file have one schema, and their rows end in order."""
    monkeypatch.setattr("tocsin.pipeline.recording.recorder._FLUSH_ROWS", 7)
    scenario = recorded(tmp_path / "r", "nan")

    assert verdict_lines(replay_folder(tmp_path / "r")) == verdict_lines(scenario.verdicts)


def test_another_job_and_an_idle_host_are_not_recorded(tmp_path: Path) -> None:
    recorded(tmp_path / "other", "freeze", 30, job_id="another")
    assert sorted(path.name for path in (tmp_path / "other").iterdir()) == ["manifest.json"]

    scenario = Scenario(JobShape())
    scenario.job = FakeJob(JobShape(), JobKey("test", IDLE_JOB_ID, 0))
    recorder = JobRecorder(tmp_path / "idle", "")
    scenario.engine.taps.append(recorder.on_bundle)
    scenario.run(10)
    assert (recorder.job_id, recorder.turn_count) == ("", 0)


def test_a_disk_error_ends_the_recording_and_not_the_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tocsin.pipeline.recording.recorder._FLUSH_ROWS", 1)
    scenario = Scenario(JobShape())
    recorder = JobRecorder(tmp_path / "r", "")
    scenario.engine.taps.append(recorder.on_bundle)
    scenario.run(10)
    monkeypatch.setattr("pyarrow.parquet.ParquetWriter.write_table", full_disk)
    scenario.at(15).inject(scenario.job.kill, 3)
    scenario.run(20)

    assert scenario.verdicts
    assert "No space left" in recorder.error
    with pytest.raises(RecordingError, match="broke off"):
        recorder.close()
    assert not (tmp_path / "r" / "manifest.json").exists()


def full_disk(*_: object, **__: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_folder_that_holds_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("keep")
    with pytest.raises(RecordingError, match="holds something already"):
        JobRecorder(tmp_path, "")


class Bench(ServiceBench):
    """A service that records on request."""

    def attach(self) -> None:
        self.service.attach_recordings(RecordingManager(self.service.engine))


class TestService:
    @pytest.fixture
    def bench(self, tmp_path: Path) -> Iterator[Bench]:
        made = Bench(tmp_path)
        yield made
        made.service.stop()

    def test_record_and_record_stop(self, bench: Bench, tmp_path: Path) -> None:
        folder = str(tmp_path / "r")
        assert bench.client.call("record", folder=folder)["job_id"] == ""
        bench.run(20)
        bench.job.kill(3)
        bench.run(10)
        done = bench.client.call("record_stop", folder=folder)
        live = next(line for line in bench.client.stream("verdicts", after=0) if "verdict" in line)

        assert (done["job_id"], done["turn_count"]) == ("job", 29)
        assert json.loads(json.dumps(replay_folder(tmp_path / "r")[0].to_line())) == live["verdict"]

    def test_what_is_refused(self, bench: Bench, tmp_path: Path) -> None:
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "mine").write_text("keep")
        bench.client.call("record", folder=str(tmp_path / "r"))
        refused = {
            "absolute path": ("record", "relative"),
            "being recorded into already": ("record", str(tmp_path / "r")),
            "holds something already": ("record", str(tmp_path / "full")),
            "is not being recorded into": ("record_stop", str(tmp_path / "never")),
        }
        for words, (command, folder) in refused.items():
            with pytest.raises(EngineRefusedError, match=words):
                bench.client.call(command, folder=folder)

    def test_the_service_ends_its_recordings(self, tmp_path: Path) -> None:
        bench = Bench(tmp_path)
        bench.client.call("record", folder=str(tmp_path / "r"))
        bench.run(5)
        bench.service.stop()

        assert read_recording(tmp_path / "r").manifest.job_id == "job"

    def test_a_recording_that_broke_off_does_not_keep_the_service_from_ending(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bench = Bench(tmp_path)
        bench.client.call("record", folder=str(tmp_path / "r"))
        bench.client.call("record", folder=str(tmp_path / "s"))
        monkeypatch.setattr("tocsin.pipeline.recording.recorder.arrow_table", full_disk)
        monkeypatch.setattr("tocsin.pipeline.recording.recorder._FLUSH_ROWS", 1)
        bench.run(5)
        bench.service.stop()

        assert not bench.service.server.is_alive
        assert not (tmp_path / "r" / "manifest.json").exists()


def test_the_tables_are_those_of_the_format(tmp_path: Path) -> None:
    """Types to the letter, so that outside programs can read them."""
    from pyarrow import parquet

    recorded(tmp_path / "r", "slow")
    steps = parquet.read_schema(tmp_path / "r" / "steps.parquet")

    assert steps.field("ts_ns").type == pa.int64()
    assert steps.field("rank").type == pa.int32()
    assert steps.field("loss").type == pa.float64()
