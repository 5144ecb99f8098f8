"""``scontrol``, ``squeue`` and ``sinfo`` as programs that ask a Slurm in memory, which another process keeps."""

from __future__ import annotations

import contextlib
import json
import shlex
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.pipeline.actions.executors.fake_slurm import FakeSlurm

PROGRAMS: Final = ("scontrol", "squeue", "sinfo")
_ASK: Final = """import json, socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
s.sendall(json.dumps(sys.argv[2:]).encode() + b"\\n")
status, out, err = json.loads(b"".join(iter(lambda: s.recv(65536), b"")))
sys.stdout.write(out)
sys.stderr.write(err)
sys.exit(status)
"""


class SlurmServer(socketserver.ThreadingUnixStreamServer):
    """Answers one command a connection.

    Attributes:
        slurm: the Slurm in memory.
        lock: held while a command runs.
        made: (time in Unix ns, effect) of each effect, in order.
    """

    daemon_threads = True

    def __init__(self, path: Path, slurm: FakeSlurm) -> None:
        self.slurm, self.lock = slurm, threading.Lock()
        self.made: list[tuple[int, str]] = []
        super().__init__(str(path), _Handler)

    def answer(self, arguments: list[str]) -> tuple[int, str, str]:
        with self.lock:
            before = len(self.slurm.effects)
            found = self.slurm.run(arguments)
            self.made += [(time.time_ns(), one) for one in self.slurm.effects[before:]]
        return found.status, found.output, found.error


class _Handler(socketserver.StreamRequestHandler):
    server: SlurmServer

    def handle(self) -> None:
        line = self.rfile.readline()
        if line.endswith(b"\n"):  # a program that was killed meanwhile asks for nothing
            answer = json.dumps(self.server.answer(json.loads(line))).encode()
            with contextlib.suppress(OSError):  # who asked was killed
                self.wfile.write(answer)


def write_programs(folder: Path, path: Path) -> Path:
    """Write the programs; they ask at a socket."""
    folder.mkdir()
    script = folder / "ask.py"
    script.write_text(_ASK)
    for name in PROGRAMS:
        words = shlex.join([sys.executable, "-I", "-S", str(script), str(path), name])
        (folder / name).write_text(f'#!/bin/sh\nexec {words} "$@"\n')
        (folder / name).chmod(0o755)
    return folder


@contextmanager
def slurm_at(path: Path, made: Callable[[], FakeSlurm] = FakeSlurm) -> Iterator[SlurmServer]:
    """A Slurm that answers during the block."""
    with SlurmServer(path, made()) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
