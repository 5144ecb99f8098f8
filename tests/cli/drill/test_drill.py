"""A real drill, from the forkserver to the verdict, and what it leaves behind: nothing."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tocsin.cli.drill import relay
from tocsin.cli.drill.recording import LIVE_FILE
from tocsin.pipeline.recording.replay import replay_folder, verdict_lines

pytestmark = pytest.mark.drill

MARK = "TOCSIN_DRILL_TEST"


@dataclass(frozen=True)
class Marked:
    """A drill whose descendants carry a mark in their environment."""

    process: subprocess.Popen[str]
    mark: str
    folder: Path

    def alive(self) -> list[str]:
        """Command lines of all living processes with the mark."""
        found = []
        for environ in Path("/proc").glob("[0-9]*/environ"):
            try:
                if self.mark.encode() in environ.read_bytes():
                    found.append((environ.parent / "cmdline").read_text().replace("\0", " ")[:120])
            except OSError:
                continue  # gone while we looked, or not ours
        return found

    def wait_for_line(self, text: str) -> None:
        """Read the drill's output up to a line with this text."""
        assert self.process.stdout is not None
        seen = []
        for line in self.process.stdout:
            seen.append(line)
            if text in line:
                return
        pytest.fail(f"no line with {text!r} in:\n{''.join(seen)}")


@pytest.fixture
def short_folder() -> Iterator[Path]:
    # pytest's own folders are too long for the path of a unix socket
    folder = Path(tempfile.mkdtemp(prefix="td-"))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def start(folder: Path, *arguments: str) -> Marked:
    mark = uuid.uuid4().hex
    process = subprocess.Popen(
        [sys.executable, "-m", "tocsin", "drill", *arguments],
        env=os.environ | {MARK: mark, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    return Marked(process, mark, folder)


@pytest.mark.parametrize(
    "kind",
    [
        "kill",
        pytest.param("freeze", marks=pytest.mark.slow),
        "slow_compute",
        "slow_network",
    ],
)
def test_a_struck_rank_is_named_live_and_in_the_replay(short_folder: Path, tmp_path: Path, kind: str) -> None:
    drill = start(short_folder, "--kind", kind, "--ranks", "4", "--seed", "1", "--record", str(tmp_path / "r"))

    output, _ = drill.process.communicate(timeout=300)

    assert drill.process.returncode == 0, output
    assert "1 of 1 right" in output
    assert drill.alive() == []
    assert [path.name for path in short_folder.iterdir()] == []
    (recording,) = (tmp_path / "r").iterdir()
    live = [json.loads(line) for line in (recording / LIVE_FILE).read_text("utf-8").splitlines()]
    replayed = [json.loads(line) for line in verdict_lines(replay_folder(recording)).splitlines()]
    assert live
    assert replayed == live


def test_a_host_that_joins_late_is_named_and_nobody_else(short_folder: Path, tmp_path: Path) -> None:
    drill = start(
        short_folder, "--kind", "slow_startup", "--ranks", "6", "--seed", "1", "--record", str(tmp_path / "r")
    )

    output, _ = drill.process.communicate(timeout=300)

    assert drill.process.returncode == 0, output
    assert "ever named wrongly: 0" in output
    (recording,) = (tmp_path / "r").iterdir()
    truth = json.loads((recording / "truth.json").read_text("utf-8"))["faults"]
    lines = [json.loads(line) for line in (recording / LIVE_FILE).read_text("utf-8").splitlines()]
    late = [one["suspects"] for one in lines if one["cause"] == "startup_slow"]
    assert late
    assert all([one["name"] for one in named] == [truth[0]["suspects"][0]["name"]] for named in late), lines


@pytest.mark.slow
def test_a_long_stage_accuses_nobody(short_folder: Path) -> None:
    drill = start(short_folder, "--kind", "slow_stage", "--ranks", "4", "--seed", "1")

    output, _ = drill.process.communicate(timeout=300)

    assert drill.process.returncode == 0, output
    assert "1 of 1 right" in output
    assert "ever named wrongly: 0" in output


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "cause"), [("gc_pauses", "software_jitter"), ("uneven_data", "data_imbalance")])
def test_what_goes_round_among_few_ranks_is_told_and_accuses_nobody(
    short_folder: Path, tmp_path: Path, kind: str, cause: str
) -> None:
    drill = start(short_folder, "--kind", kind, "--ranks", "4", "--seed", "1", "--record", str(tmp_path / "r"))

    output, _ = drill.process.communicate(timeout=300)

    assert drill.process.returncode == 0, output
    (recording,) = (tmp_path / "r").iterdir()
    said = [json.loads(line) for line in (recording / LIVE_FILE).read_text("utf-8").splitlines()]
    assert any(line["cause"] == cause for line in said), output
    assert [line for line in said if line["suspects"]] == [], output


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGINT, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, marks=pytest.mark.slow),
        signal.SIGKILL,  # the hardest of the three: nobody is left to clean up but the watchdog
    ],
    ids=lambda number: number.name,
)
def test_nothing_is_left_behind_even_of_a_stopped_rank(short_folder: Path, number: signal.Signals) -> None:
    drill = start(short_folder, "--kind", "freeze", "--ranks", "2", "--seed", "1")
    drill.wait_for_line("SIGSTOP")
    assert len(drill.alive()) > 5

    drill.process.send_signal(number)
    drill.process.wait(timeout=60)
    deadline = time.monotonic() + 60.0  # after SIGKILL it is the watchdog that cleans up
    while (drill.alive() or any(short_folder.iterdir())) and time.monotonic() < deadline:
        time.sleep(0.1)

    assert drill.alive() == []
    assert [path.name for path in short_folder.iterdir()] == []


def test_the_relay_delays_what_passes_from_the_moment_it_is_told_to(short_folder: Path) -> None:
    control = short_folder / "relay"
    process = subprocess.Popen([sys.executable, relay.__file__, str(control)])
    try:
        while not control.exists():
            time.sleep(0.02)
        with socket.create_server(("127.0.0.1", 0)) as target:
            port = int(relay.ask(str(control), f"open {target.getsockname()[1]}"))
            with socket.create_connection(("127.0.0.1", port)) as near, target.accept()[0] as far:
                # of several: another program on the core makes some slow, the relay would make all
                healthy_seconds = min(round_trip_seconds(near, far) for _ in range(20))
                assert relay.ask(str(control), "delay 0.2") == "ok"

                assert healthy_seconds < 0.2
                assert round_trip_seconds(near, far) > 0.4
    finally:
        process.kill()
        process.wait()


def round_trip_seconds(near: socket.socket, far: socket.socket) -> float:
    began = time.monotonic()
    near.sendall(b"ping")
    assert far.recv(4) == b"ping"
    far.sendall(b"pong")
    assert near.recv(4) == b"pong"
    return time.monotonic() - began
