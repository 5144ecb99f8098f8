"""Whose the agent's socket is, and what happens when it vanishes."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.collectors.agent.test_agent import ROOT, quiet_agent
from tests.collectors.peer import FakeHook, datagram, wait_until
from tocsin.collectors.agent.agent import Agent
from tocsin.collectors.agent.datagram_socket import DatagramSocket
from tocsin.collectors.transport.sink import MemorySink
from tocsin.schemas.errors import ConfigError


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Agent]:
    agent = quiet_agent(tmp_path, MemorySink())
    thread = threading.Thread(target=agent.run)
    thread.start()
    yield agent
    agent.stop()
    thread.join(60)


def value(agent: Agent, name: str) -> float:
    return next(f.samples[0].value for f in agent.families() if f.name == f"tocsin_agent_{name}")


def agent_process(folder: Path, *flags: str) -> subprocess.Popen[str]:
    words = ["--host=h", f"--engine=unix:{folder}/engine", f"--socket={folder}/a", "--spool-dir=", "--metrics-listen="]
    command = [sys.executable, "-m", "tocsin", "agent", *words, "--nvml=off", "--kmsg-path=", *flags]
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)


def test_a_second_agent_is_refused_with_the_first_ones_pid_and_takes_nothing_away(tmp_path: Path) -> None:
    first = agent_process(tmp_path)
    try:
        wait_until((tmp_path / "a").exists)
        inode = (tmp_path / "a").stat().st_ino
        second = agent_process(tmp_path)
        _, said = second.communicate(timeout=60)

        assert second.returncode != 0
        assert f"socket = '{tmp_path}/a': must be free, but process {first.pid} listens there" in said
        assert (tmp_path / "a").stat().st_ino == inode
        FakeHook(tmp_path / "a").send("hello", pid=1)
        first.send_signal(signal.SIGTERM)
        assert first.wait(60) == 0
        assert list(tmp_path.glob("a*")) == []
    finally:
        first.kill()
        first.communicate()


def test_what_a_killed_agent_left_is_taken_over(tmp_path: Path) -> None:
    first = agent_process(tmp_path)
    wait_until((tmp_path / "a").exists)
    first.kill()
    first.communicate()
    assert {path.name for path in tmp_path.glob("a*")} == {"a", "a.lock"}

    second = DatagramSocket(str(tmp_path / "a"))

    assert second.look()
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o666
    second.close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", [socket.SOCK_DGRAM, socket.SOCK_STREAM])
def test_a_socket_of_another_program_that_listens_is_left_alone(tmp_path: Path, kind: socket.SocketKind) -> None:
    with socket.socket(socket.AF_UNIX, kind) as other:
        other.bind(str(tmp_path / "a"))
        if kind is socket.SOCK_STREAM:
            other.listen()
        inode = (tmp_path / "a").stat().st_ino
        with pytest.raises(ConfigError, match="another process listens there"):
            DatagramSocket(str(tmp_path / "a"))

    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").stat().st_ino == inode


@pytest.mark.parametrize("remove", [Path.unlink, lambda path: shutil.rmtree(path.parent)], ids=["file", "folder"])
def test_a_socket_that_vanished_is_made_again(running: Agent, tmp_path: Path, remove: Callable[[Path], None]) -> None:
    mode = tmp_path.stat().st_mode
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as hook:
        hook.connect(str(tmp_path / "a"))
        remove(tmp_path / "a")
        hook.send(datagram("hello", 0, ("c", "j", 0), pid=1))  # the old socket took it: it is not lost
    wait_until((tmp_path / "a").exists)
    FakeHook(tmp_path / "a", 1).send("hello", pid=2)

    wait_until(lambda: running.core.tally.datagrams["Hello"] == 2)
    assert value(running, "socket_renewals_total") == 1
    assert value(running, "socket_reached") == 1
    assert tmp_path.stat().st_mode == mode
    with pytest.raises(ConfigError, match=f"process {os.getpid()} listens"):
        DatagramSocket(str(tmp_path / "a"))


def test_a_socket_in_its_place_is_said_once_and_replaced_when_it_is_dead(
    running: Agent, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a").unlink()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(tmp_path / "a"))
        wait_until(lambda: value(running, "socket_reached") == 0)
        assert "hooks do not reach" in running.ready()[1]
    wait_until(lambda: value(running, "socket_renewals_total") == 1)

    assert value(running, "socket_reached") == 1
    assert sum("do not reach" in record.message for record in caplog.records) == 1
