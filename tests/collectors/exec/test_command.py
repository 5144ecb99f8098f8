import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tocsin.collectors.exec import command as exec_
from tocsin.collectors.exec.command import StderrTail, last_lines, send_exit


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as agent:
        agent.bind(str(tmp_path / "agent.sock"))
        agent.settimeout(60)
        yield agent


def wrapped(agent: socket.socket, *command: str, env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
    arguments = [sys.executable, "-m", "tocsin", "exec", "--agent-socket", agent.getsockname(), "--", *command]
    environment = {**os.environ, "TOCSIN_JOB_ID": "train", "RANK": "5", **(env or {})}
    return subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True, env=environment
    )


def received(agent: socket.socket) -> dict[str, Any]:
    message: dict[str, Any] = json.loads(agent.recv(1 << 16))
    return message


def test_exit_code_and_the_last_lines_of_stderr_reach_the_agent(agent: socket.socket) -> None:
    process = wrapped(agent, sys.executable, "-c", "import sys; print('out'); sys.exit('boom')")
    out, err = process.communicate(timeout=60)

    assert (process.returncode, out, err) == (1, b"out\n", b"boom\n")
    message = received(agent)
    assert message["job"] == ["default", "train", 0]
    assert (message["t"], message["rank"], message["code"], message["signal"]) == ("exit", 5, 1, 0)
    assert message["stderr_tail"] == "boom\n"


def test_a_signal_that_kills_the_child_shows_in_both_places(agent: socket.socket) -> None:
    process = wrapped(agent, "sh", "-c", "kill -9 $$")
    process.communicate(timeout=60)

    assert process.returncode == 137
    message = received(agent)
    assert (message["code"], message["signal"]) == (137, 9)


def test_signals_are_passed_on(agent: socket.socket) -> None:
    script = (
        "import signal,sys,time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\n"
        "print('ready', flush=True)\n"
        "time.sleep(20)"
    )
    process = wrapped(agent, sys.executable, "-c", script)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"

    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)

    assert process.returncode == 7
    assert received(agent)["code"] == 7


def test_a_command_that_does_not_exist_is_said_in_one_line(agent: socket.socket) -> None:
    process = wrapped(agent, "no-such-command-here")
    _, err = process.communicate(timeout=60)

    assert process.returncode == 127
    assert err == b"tocsin exec: cannot run no-such-command-here: No such file or directory\n"


def test_options_of_the_command_are_left_to_it(agent: socket.socket) -> None:
    process = wrapped(agent, "echo", "--agent-socket", "--help")
    out, _ = process.communicate(timeout=60)

    assert out == b"--agent-socket --help\n"


def test_without_an_agent_the_command_still_has_its_exit_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exec_, "PATIENCE_SECONDS", 0.2)

    assert exec_.supervise(["sh", "-c", "exit 3"], str(tmp_path / "nobody"), ("c", "j", 0), 0) == 3


def test_signal_handlers_are_back_after_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exec_, "PATIENCE_SECONDS", 0.0)
    before = signal.getsignal(signal.SIGTERM)

    exec_.supervise(["true"], str(tmp_path / "nobody"), ("c", "j", 0), 0)

    assert signal.getsignal(signal.SIGTERM) == before


def test_a_signal_before_the_child_is_kept_for_it() -> None:
    child = subprocess.Popen(["sleep", "20"])
    with exec_.SignalForwarder() as forwarder:
        os.kill(os.getpid(), signal.SIGUSR1)
        forwarder.forward_to(child.pid)

    assert child.wait(timeout=60) == -signal.SIGUSR1


def test_the_news_waits_for_an_agent_that_starts(tmp_path: Path) -> None:
    path = str(tmp_path / "late.sock")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as agent:
        threading.Timer(0.3, agent.bind, [path]).start()

        assert send_exit(path, ("c", "j", 1), 2, 99, -15, "last words")

        agent.settimeout(60)
        message = received(agent)
    assert (message["pid"], message["code"], message["signal"]) == (99, 143, 15)
    assert abs(message["ts"] - time.time_ns()) < 5e9


def test_the_tail_passes_everything_on_and_keeps_the_end() -> None:
    source, writer = os.pipe()
    out, sink = os.pipe()
    text = b"".join(b"line %d\n" % number for number in range(5000))
    tail = StderrTail(source, sink).start()
    passed = bytearray()

    def read() -> None:
        while len(passed) < len(text):
            passed.extend(os.read(out, 65536))

    reader = threading.Thread(target=read)
    reader.start()
    os.write(writer, text[:30000])
    os.write(writer, text[30000:])
    os.close(writer)
    tail.join(60)
    reader.join(60)

    assert bytes(passed) == text
    kept = tail.text()
    assert kept.startswith("line ")
    assert kept.endswith("line 4999\n")
    assert 4000 < len(kept) <= 4096
    os.close(out)
    os.close(sink)


def test_a_broken_sink_does_not_block_the_writer() -> None:
    source, writer = os.pipe()
    out, sink = os.pipe()
    os.close(out)
    tail = StderrTail(source, sink).start()

    for _ in range(40):
        os.write(writer, b"x" * 10000)  # more than a pipe holds: it has to be read
    os.close(writer)
    tail.join(60)

    assert len(tail.text()) == 4096
    os.close(sink)


@pytest.mark.parametrize("data", [b"\xff" * 9000, b"\xc3\xa4" * 5000, b"a\n" * 4000, b"short"])
def test_last_lines_fit_and_decode(data: bytes) -> None:
    text = last_lines(data)

    assert 0 < len(text.encode()) <= 4096


def test_starting_is_light() -> None:
    script = "import sys; import tocsin.cli.exec; print(sorted(sys.modules))"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout

    assert not {"'numpy'", "'torch'", "'kafka'", "'asyncio'"} & set(out.strip("[]\n").split(", "))
