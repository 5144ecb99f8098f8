"""``tocsin record`` against a running engine: a process of its own, ended as a user ends it."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tocsin.cli.paths import control_socket
from tocsin.pipeline.lab.testing import FakeJob, JobShape, MemoryStore
from tocsin.pipeline.recording.live import RecordingManager
from tocsin.pipeline.recording.reader import read_recording
from tocsin.pipeline.recording.replay import replay_folder
from tocsin.pipeline.runtime.embedded.control_socket import ControlClient
from tocsin.pipeline.runtime.embedded.service import EngineService, ServiceConfig
from tocsin.schemas.kinds import EventSource, Severity
from tocsin.schemas.records import NS_PER_SECOND, Event, JobKey
from tocsin.schemas.wire.codec import encode

DEADLINE_SECONDS = 60.0
SOMETHING = (EventSource.JOB, "x", Severity.INFO)


def wait_until(done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not done():
        if time.monotonic() > deadline:
            raise AssertionError(f"never: {what}")
        time.sleep(0.01)


class Agent:
    """A host's agent as the engine sees it: a stream of records."""

    def __init__(self, path: Path, host: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(DEADLINE_SECONDS)
        self.socket.connect(str(path))
        self.send(b'{"t": "hello", "host": "%s", "agent_version": "0"}' % host.encode())

    def send(self, data: bytes) -> None:
        self.socket.sendall(len(data).to_bytes(4, "little") + data)


class Bench:
    """An engine whose clock is the fake job's, fed through its socket, and ``tocsin record`` beside it."""

    def __init__(self, folder: Path) -> None:
        self.data = folder / "data"
        self.data.mkdir()
        self.job = FakeJob(JobShape())
        self.agents: dict[str, Agent] = {}
        self.sent_count = 0
        config = ServiceConfig(f"unix:{folder}/e.sock", control_socket(self.data))
        self.socket_path = folder / "e.sock"
        self.service = EngineService(config, MemoryStore(), lambda: self.job.now_ns)
        self.service.attach_recordings(RecordingManager(self.service.engine))
        self.service.start(ticking=False)
        self.client = ControlClient(control_socket(self.data))
        self.processes: list[subprocess.Popen[str]] = []

    def run(self, seconds: int) -> None:
        for _ in range(seconds):
            for record in self.job.second():
                host = record.host
                if host not in self.agents:
                    self.agents[host] = Agent(self.socket_path, host)
                self.agents[host].send(encode(record))
                self.sent_count += 1
            wait_until(lambda: self.taken_count() >= self.sent_count, "records taken")
            self.service.tick(self.job.now_ns)

    def taken_count(self) -> int:
        counters = self.service.engine.counters
        return counters["records_ok"] + counters["records_late"]

    def record(self, folder: Path, *arguments: str) -> subprocess.Popen[str]:
        """Start the command and wait until the engine records."""
        process = self.start(folder, *arguments)
        assert process.stdout is not None
        assert process.stdout.readline().startswith("recording ")
        return process

    def start(self, folder: Path, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tocsin", "record", str(folder), "--data", str(self.data), *arguments]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.processes.append(process)
        return process

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.communicate()
        for agent in self.agents.values():
            agent.socket.close()
        self.service.stop()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.close()


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=DEADLINE_SECONDS)
    return process.returncode, out, err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_recording_that_is_cut_by_ctrl_c_is_complete(bench: Bench, tmp_path: Path, number: signal.Signals) -> None:
    folder = tmp_path / "my recording"
    process = bench.record(folder)
    bench.run(30)
    bench.job.kill(3)
    bench.run(10)
    process.send_signal(number)
    status, out, err = ended(process)
    live = next(line for line in bench.client.stream("verdicts", after=0) if line)
    replayed = replay_folder(folder)

    assert (status, err) == (0, "")
    assert out == f"recorded 39 s of job job: tocsin replay {folder}\n"
    assert read_recording(folder).manifest.job_id == "job"
    assert replayed[0].to_line() == live["verdict"]
    assert {suspect.component.name for suspect in replayed[0].suspects} == {"n03"}


def test_ctrl_c_before_the_job_has_said_anything(bench: Bench, tmp_path: Path) -> None:
    process = bench.record(tmp_path / "r")
    process.send_signal(signal.SIGINT)
    status, out, err = ended(process)

    assert (status, out) == (1, "")
    assert "nothing was heard of any job" in err
    assert replay_folder(tmp_path / "r") == []


def test_seconds_end_it(bench: Bench, tmp_path: Path) -> None:
    process = bench.record(tmp_path / "r", "--seconds", "0.1", "--job", "job")
    status, _, err = ended(process)

    assert status == 1
    assert "nothing was heard of job job" in err
    assert (tmp_path / "r" / "manifest.json").is_file()


def test_whoever_kills_the_command_ends_the_recording(bench: Bench, tmp_path: Path) -> None:
    """Otherwise it would go on until the disk is full."""
    process = bench.record(tmp_path / "r")
    bench.run(10)
    process.kill()
    wait_until((tmp_path / "r" / "manifest.json").is_file, "the engine ends the recording")

    assert read_recording(tmp_path / "r").tables["steps"]
    wait_until(lambda: not bench.service.engine.taps, "the tap is closed")


def test_an_engine_that_ends_leaves_a_whole_recording(bench: Bench, tmp_path: Path) -> None:
    process = bench.record(tmp_path / "r")
    bench.run(10)
    bench.service.stop()
    status, out, err = ended(process)

    assert status == 0
    assert "the engine ended, and the recording with it" in err
    assert out.startswith("recorded ")
    assert read_recording(tmp_path / "r").tables["steps"]


def test_a_full_disk_ends_it_at_once_and_says_so(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tocsin.pipeline.recording.recorder._FLUSH_ROWS", 1)
    monkeypatch.setattr("tocsin.pipeline.recording.recorder.arrow_table", full)
    process = bench.record(tmp_path / "r")
    bench.run(10)
    status, _, err = ended(process)

    assert status == 2
    assert "the recording broke off: [Errno 28] No space left on device" in err
    assert not (tmp_path / "r" / "manifest.json").exists()


def test_what_cannot_be_done_is_said(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("keep")
    bench.run(5)
    bench.service.engine.take(encode(Event(JobKey("test", "other"), "n00", bench.job.now_ns, -1, *SOMETHING)))
    bench.run(3)
    for arguments, words in (
        ((tmp_path / "full", "--job", "job"), "holds something already"),
        ((tmp_path / "r",), "several jobs run (job, other): name one"),
        ((tmp_path / "r", "--seconds", "nan"), "--seconds = nan"),
        ((tmp_path / "r", "--seconds", "-1"), "--seconds = -1.0"),
        ((tmp_path / "r", "--data", str(tmp_path)), "no engine listens"),
    ):
        status, out, err = ended(bench.start(*arguments))
        assert (status, out) == (2, ""), arguments
        assert words in err
        assert len(err.splitlines()) == 1
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine"]
    assert not (tmp_path / "r").exists()


def test_a_job_that_has_ended_is_not_the_job_that_is_meant(bench: Bench, tmp_path: Path) -> None:
    """It has a turn each second for an hour, and nothing to say."""
    bench.run(10)
    bench.job.end()
    bench.run(3)
    bench.client.call("record", folder=str(tmp_path / "r"))
    bench.run(5)
    bench.job = FakeJob(replace(JobShape(), start_ns=bench.job.now_ns), JobKey("test", "next"))
    bench.run(10)
    done = bench.client.call("record_stop", folder=str(tmp_path / "r"))

    assert done["job_id"] == "next"
    assert read_recording(tmp_path / "r").manifest.job_id == "next"


@pytest.mark.slow
def test_a_served_engine_is_recorded_in_real_time(tmp_path: Path) -> None:
    """Both commands as processes, an agent's stream in between, Ctrl-C for both."""
    data = ["--data", str(tmp_path / "data")]
    serve = [sys.executable, "-m", "tocsin", "serve", "--listen", f"unix:{tmp_path}/e.sock", *data]
    record = [sys.executable, "-m", "tocsin", "record", str(tmp_path / "r"), *data]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    engine = subprocess.Popen(serve, **pipes)
    try:
        wait_until((tmp_path / "e.sock").exists, "the engine listens")
        with subprocess.Popen(record, **pipes) as recorder:
            assert recorder.stdout is not None
            assert recorder.stdout.readline().startswith("recording the next job")
            live_for(6, tmp_path / "e.sock")
            recorder.send_signal(signal.SIGINT)
            assert ended(recorder)[0] == 0
    finally:
        engine.send_signal(signal.SIGINT)
        engine.communicate(timeout=DEADLINE_SECONDS)
    steps = read_recording(tmp_path / "r").tables["steps"]

    assert engine.returncode == 0
    assert len(steps["rank"]) >= 8
    assert replay_folder(tmp_path / "r") == []


def live_for(seconds: int, path: Path) -> None:
    """A healthy job, now."""
    job = FakeJob(replace(JobShape(), start_ns=time.time_ns() // NS_PER_SECOND * NS_PER_SECOND))
    agent = Agent(path, "n00")
    for _ in range(seconds):
        records = list(job.second())
        time.sleep(max(0.0, (job.now_ns - time.time_ns()) / NS_PER_SECOND))
        for record in records:
            agent.send(encode(record))
    time.sleep(2.5)  # a lateness, and the tick behind it
    agent.socket.close()
