"""``tocsin cluster``: up in one command, a recording through all of it, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.collectors.peer import wait_until
from tests.flink_fixtures import case_of
from tests.kafka_fixtures import need_java
from tocsin.cli.cluster.process import free_port
from tocsin.cli.cluster.state import ClusterState, last_state, read_state
from tocsin.cli.main import main
from tocsin.pipeline.recording.replay import ReplayConfig, replay
from tocsin.pipeline.recording.writer import write_recording

SEED = 11
READY_SECONDS = 300.0
"""Sixty on an idle machine; tests share theirs."""


def processes_of(folder: Path) -> list[int]:
    """Processes that name a folder in their arguments or their environment."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            text = (place / "cmdline").read_bytes() + (place / "environ").read_bytes()
            is_dead = (place / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
        except OSError:
            continue
        if not is_dead and os.fsencode(folder) in text:
            found.append(int(place.name))
    return found


class Up:
    """``tocsin cluster up`` as a user runs it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process: subprocess.Popen[str] | None = None

    def start(self, *flags: str) -> None:
        folder = f"--folder={self.folder}"
        with (self.folder.parent / "up.log").open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tocsin", "cluster", "up", folder, *flags], stdout=log, stderr=log, text=True
            )

    def state(self) -> ClusterState:
        found = last_state(self.folder)
        assert found is not None
        return found

    def wait(self, phase: str) -> ClusterState:
        def is_there() -> bool:
            assert self.process is not None
            assert self.process.poll() is None, (self.folder.parent / "up.log").read_text()
            state = read_state(self.folder)
            return state is not None and state.phase == phase

        wait_until(is_there, READY_SECONDS)
        return self.state()

    def tocsin(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "tocsin", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)

    def end(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    need_java()
    pytest.importorskip("pyflink", reason="no pyflink: pip install '.[flink]'")
    made = Up(tmp_path / "cluster")
    yield made
    made.end()


def final_rows(lines: list[dict[str, Any]]) -> dict[str, tuple[int, str]]:
    """What a table shows in the end: of each verdict the last update."""
    found: dict[str, tuple[int, str]] = {}
    for line in sorted(lines, key=lambda one: int(one["update"])):
        found[line["id"]] = (int(line["update"]), line["state"])
    return found


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_recording_goes_through_all_of_it_while_its_servers_die(up: Up, tmp_path: Path) -> None:
    recording = case_of(SEED)
    write_recording(tmp_path / "recording", recording)
    wanted = final_rows([verdict.to_line() for verdict in replay(recording, ReplayConfig())])
    up.start("--no-ticker", "--checkpoint-seconds=1", "--start=earliest")
    addresses = up.wait("running").addresses
    kafka, clickhouse = f"--kafka={addresses['kafka']}", f"--clickhouse={addresses['clickhouse']}"
    status = up.tocsin("cluster", "status", f"--folder={up.folder}")
    assert (status.returncode, status.stderr) == (0, "")
    assert "job tocsin" in status.stdout
    assert up.tocsin("topics", "apply", "--retain-forever", kafka).returncode == 0

    def rows() -> list[dict[str, Any]]:
        query = "SELECT verdict_id AS id, update_number AS update, state FROM tocsin.incidents_all"
        asked = up.tocsin("sql", clickhouse, "--format=JSONEachRow", query)
        return [json.loads(line) for line in asked.stdout.splitlines()] if asked.returncode == 0 else []

    player = subprocess.Popen(
        [sys.executable, "-m", "tocsin", "replay", str(tmp_path / "recording"), "--speed=15", f"--to-{kafka[2:]}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    wait_until(rows, 120)
    for name in ("jobmanager", "sink", "clickhouse"):
        os.kill(up.state().processes[name], signal.SIGKILL)
    _, said = player.communicate(timeout=300)
    assert player.returncode == 0, said
    wait_until(lambda: final_rows(rows()) == wanted, READY_SECONDS)

    members = processes_of(up.folder)
    assert len(members) > 5
    down = up.tocsin("cluster", "down", f"--folder={up.folder}")
    assert (down.returncode, down.stdout) == (0, "ended\n")
    assert up.process is not None
    assert up.process.wait(60) == 0
    wait_until(lambda: not processes_of(up.folder), 60)
    assert up.tocsin("cluster", "logs", f"--folder={up.folder}", "jobmanager", "-n1").stdout.count("\n") == 1


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_whatever_ends_it_while_it_starts_it_leaves_nobody_behind(up: Up, number: signal.Signals) -> None:
    up.start()
    wait_until(lambda: (up.folder / "kafka" / "broker.log").exists() and len(processes_of(up.folder)) > 3, 60)
    assert up.process is not None
    up.process.send_signal(number)
    status = up.process.wait(60)

    assert status == (-number if number is signal.SIGKILL else 0)
    wait_until(lambda: not processes_of(up.folder), 60)
    assert up.tocsin("cluster", "status", f"--folder={up.folder}").returncode == 1
    again = up.tocsin("cluster", "down", f"--folder={up.folder}")
    assert (again.returncode, again.stdout) == (0, f"no cluster runs in {up.folder}\n")


def test_what_is_wrong_is_said_before_anything_starts(up: Up) -> None:
    for flag, named in (
        ("--parallelism=3", "--parallelism"),
        ("--kafka-port=70000", "--kafka-port"),
        ("--topic-prefix=a b", "prefix"),
        ("--flink-setting=x", "NAME=VALUE"),
    ):
        said = up.tocsin("cluster", "up", f"--folder={up.folder}", flag)
        assert (said.returncode, said.stdout) == (2, "")
        assert named in said.stderr
        assert said.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "reported"),
    [
        (["--kafka-port={port}"], "port {port} is in use: choose another --kafka-port, or end what listens there"),
        (["--clickhouse-port={port}"], "port {port} is in use: choose another --clickhouse-port, or end what"),
        (["--kafka-port={free}", "--flink-port={free}"], "port {free} is named twice: choose another --flink-port"),
    ],
)
def test_a_port_that_is_taken_is_said_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], reported: str
) -> None:
    need_java()
    pytest.importorskip("pyflink", reason="no pyflink: pip install '.[flink]'")
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)}
    try:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            ports = {"port": taken.getsockname()[1], "free": free_port()}
            given = [flag.format(**ports) for flag in flags]
            assert main(["cluster", "up", f"--folder={tmp_path / 'cluster'}", *given]) == 2
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

    said = capsys.readouterr().err
    assert reported.format(**ports) in said
    assert said.count("\n") == 1
