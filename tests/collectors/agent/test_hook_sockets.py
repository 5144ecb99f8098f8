"""What killed training processes leave beside the agent's socket goes; nothing else does."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tocsin.collectors.agent.hook_sockets import LOOK_NS, HookSockets

RANK = """
import sys, time
from tocsin.collectors.hook._sender import ReplySocket
print(ReplySocket(sys.argv[1]).path, flush=True)
time.sleep(600)
"""


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tocsin-t-") as name:  # a socket's path is short
        monkeypatch.setattr(tempfile, "gettempdir", lambda: name)
        yield Path(name)


def rank(folder: Path) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", RANK, str(folder / "agent.sock")], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_the_socket_of_a_killed_rank_goes_and_that_of_a_living_one_stays(folder: Path) -> None:
    (killed, gone), (living, kept) = rank(folder), rank(folder)
    try:
        sockets = HookSockets(str(folder / "agent.sock"))
        sockets.on_time(1)
        assert gone.exists()
        killed.send_signal(signal.SIGKILL)
        killed.wait(60)
        sockets.on_time(LOOK_NS)
        assert gone.exists()  # not a minute yet
        sockets.on_time(1 + LOOK_NS)
        assert not gone.exists()
        assert kept.exists()
    finally:
        for process in (killed, living):
            process.kill()
            process.wait(60)
            assert process.stdout is not None
            process.stdout.close()


def test_what_is_no_socket_has_another_name_or_is_listened_on_stays(folder: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait(60)
    name = f"tocsin-hook-{dead.pid}-0123abcd.sock"
    (folder / name).write_text("data")
    HookSockets(str(folder / "agent.sock")).on_time(0)
    assert (folder / name).read_text() == "data"
    (folder / name).unlink()

    target = folder / "target.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        other.bind(str(target))
    (folder / name).symlink_to(target)
    HookSockets(str(folder / "agent.sock")).on_time(0)
    assert (folder / name).is_symlink()
    assert target.exists()
    (folder / name).unlink()

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as held:  # of a process that another container numbers so
        held.bind(str(folder / name))
        HookSockets(str(folder / "agent.sock")).on_time(0)
        assert (folder / name).exists()
    own = folder / f"tocsin-hook-{os.getpid()}-0123abcd.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as closed:
        closed.bind(str(own))
    HookSockets(str(folder / "agent.sock")).on_time(0)
    assert own.exists()  # its process lives
    assert not (folder / name).exists()  # closed meanwhile
