"""Run a training command and report its end to the agent: exit code, signal, last lines of stderr."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Self

from tocsin.collectors.exec.launcher_lines import WorkerEnds
from tocsin.collectors.hook._places import may_speak_to

Sockets = str | tuple[str, ...]
"""Path of the agent's socket, or several paths that are tried in this order."""

TAIL_BYTES = 4096
RETRY_SECONDS = 0.1
PATIENCE_SECONDS = 2.0
WORKER_PATIENCE_SECONDS = 0.2
"""Time for which the report of a worker's end is retried; the command's stderr is not forwarded meanwhile."""
DRAIN_SECONDS = 2.0
SIGNAL_EXIT_BASE = 128

FORWARDED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
_FROM_KEYBOARD = (signal.SIGINT, signal.SIGQUIT)


class StderrTail:
    """A thread that forwards a stream unchanged and keeps its end.

    Args:
        source_fd: descriptor to read; closed at the end of the stream.
        sink_fd: descriptor to write to, None for none. If writing fails, reading continues, so that
            the writer never blocks.
        limit_bytes: bytes to keep.
        on_data: called with all data that was read.
    """

    def __init__(
        self,
        source_fd: int,
        sink_fd: int | None,
        limit_bytes: int = TAIL_BYTES,
        on_data: Callable[[bytes], None] = lambda _: None,
    ) -> None:
        self._source_fd = source_fd
        self._sink_fd = sink_fd
        self._limit_bytes = limit_bytes
        self._kept = b""
        self._on_data = on_data
        self._thread = threading.Thread(target=self._run, name="tocsin-stderr", daemon=True)

    def start(self) -> Self:
        """Start reading and return this object."""
        self._thread.start()
        return self

    def join(self, timeout_seconds: float | None = None) -> None:
        """Wait for the end of the stream, which a grandchild may hold open forever."""
        self._thread.join(timeout_seconds)

    def text(self) -> str:
        """Return the last lines so far, whole ones if possible, at most ``limit_bytes`` of UTF-8."""
        return last_lines(self._kept, self._limit_bytes)

    def _run(self) -> None:
        """Read until the end of the stream."""
        while data := os.read(self._source_fd, 65536):
            self._kept = (self._kept + data)[-2 * self._limit_bytes :]
            self._pass_on(data)
            self._on_data(data)
        os.close(self._source_fd)

    def _pass_on(self, data: bytes) -> None:
        """Write data to the sink; after a failed write nothing more is forwarded."""
        view = memoryview(data)
        while view and self._sink_fd is not None:
            try:
                view = view[os.write(self._sink_fd, view) :]
            except BlockingIOError:
                time.sleep(0.01)  # somebody made our stderr non-blocking
            except OSError:
                self._sink_fd = None


def last_lines(data: bytes, limit_bytes: int = TAIL_BYTES) -> str:
    r"""Return the end of a text, cut at a line's beginning where it has to be cut.

    >>> last_lines(b"first\nsecond\nthird\n", 14)
    'second\nthird\n'
    """
    text = data.decode("utf-8", "replace").encode()  # a replaced byte takes three
    if len(text) <= limit_bytes:
        return text.decode()
    start = text.rfind(b"\n", 0, len(text) - limit_bytes) + 1
    if start < len(text) - limit_bytes:
        start = text.find(b"\n", len(text) - limit_bytes - 1) + 1
    if not 0 < start < len(text):
        start = len(text) - limit_bytes  # one line longer than the limit
    return text[start:].decode("utf-8", "ignore")


def send_exit(
    agent_sockets: Sockets,
    job: tuple[str, str, int],
    rank: int,
    pid: int,
    returncode: int,
    stderr_tail: str,
) -> bool:
    """Report the end of a process to the agent; return whether its socket accepted the report.

    It is retried for ``PATIENCE_SECONDS``, because nobody else reports it.

    Args:
        agent_sockets: path of the agent's socket, or several; the first one with a listener is used.
        job: ``(cluster, job_id, attempt)``.
        rank: global rank of the process.
        pid: process id.
        returncode: as from ``subprocess``, negative for a signal. A signal is sent as ``signal`` and, as shells do, as
            ``code`` 128 + signal, so that only success has code 0.
        stderr_tail: last lines of the process's stderr.
    """
    message = _exit_message(job, rank, pid, returncode)
    message["stderr_tail"] = last_lines(stderr_tail.encode("utf-8", "replace"))
    return deliver(message, agent_sockets, PATIENCE_SECONDS)


def send_worker_exit(agent_sockets: Sockets, job: tuple[str, str, int], pid: int, returncode: int, ts_ns: int) -> bool:
    """Report the end of a launcher's worker to the agent, which knows whether the process was a rank.

    Args:
        agent_sockets: as for ``send_exit``.
        job: the launcher's job, as far as its environment has it.
        pid: process id of the worker.
        returncode: as for ``send_exit``.
        ts_ns: time of the end, Unix nanoseconds.

    Returns:
        Whether the agent's socket accepted the report.
    """
    message = _exit_message(job, -1, pid, returncode)
    message.update(ts=ts_ns, of="worker")
    return deliver(message, agent_sockets, WORKER_PATIENCE_SECONDS)


def _exit_message(job: tuple[str, str, int], rank: int, pid: int, returncode: int) -> dict[str, object]:
    """Return the fields of an exit datagram."""
    return {
        "v": 1,
        "t": "exit",
        "job": job,
        "rank": rank,
        "ts": time.time_ns(),
        "pid": pid,
        "code": exit_status(returncode),
        "signal": max(-returncode, 0),
    }


def deliver(message: dict[str, object], agent_sockets: Sockets, patience_seconds: float) -> bool:
    """Send a message to the first socket with a listener, retrying for ``patience_seconds``.

    Return whether it was accepted.
    """
    payload = json.dumps(message, ensure_ascii=False).encode()
    deadline = time.monotonic() + patience_seconds
    paths = (agent_sockets,) if isinstance(agent_sockets, str) else agent_sockets
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        while True:
            for path in paths:
                try:
                    if may_speak_to(path):
                        sender.sendto(payload, path)
                        return True
                except BlockingIOError:
                    break  # it listens, and is behind: nobody else is told
                except OSError:
                    continue
            if time.monotonic() >= deadline:
                return False
            time.sleep(RETRY_SECONDS)


def exit_status(returncode: int) -> int:
    """Convert ``subprocess``'s return code to a shell's exit status.

    >>> exit_status(-9)
    137
    """
    return SIGNAL_EXIT_BASE - returncode if returncode < 0 else returncode


class SignalForwarder:
    """Context manager that forwards signals to a child; signals before the child exists are kept for it.

    Ctrl-C on a terminal reaches the whole foreground group, so the child has it already and it is not
    forwarded a second time.
    """

    def __init__(self) -> None:
        self._pid = 0
        self._early: list[int] = []
        self._before: dict[int, object] = {}

    def __enter__(self) -> Self:
        for number in FORWARDED:
            self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # what signal.signal itself returned

    def forward_to(self, pid: int) -> None:
        """Forward signals to this process from now on; 0: to none, because its id may be reused."""
        self._pid = pid
        while pid and self._early:
            self._send(self._early.pop(0))

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        """Forward a signal to the child, or keep it."""
        if not self._pid:
            self._early.append(number)
        elif not (number in _FROM_KEYBOARD and _owns_terminal()):
            self._send(number)

    def _send(self, number: int) -> None:
        """Send a signal to the child if it still exists."""
        with contextlib.suppress(ProcessLookupError):  # gone already: its exit status is on the way
            os.kill(self._pid, number)


def _owns_terminal() -> bool:
    """Return whether this process is in the terminal's foreground group."""
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


def supervise(command: Sequence[str], agent_sockets: Sockets, job: tuple[str, str, int], rank: int) -> int:
    """Run a command to its end, report the end to the agent, and return a shell's exit status.

    Standard input and output are inherited; stderr passes through a pipe. If the command is torchrun, the ends of its
    workers are reported as it prints them.

    Args:
        command: program and arguments.
        agent_sockets: as for ``send_exit``.
        job: ``(cluster, job_id, attempt)``.
        rank: global rank of the command, -1 for none.

    Raises:
        OSError: the command cannot be started (not found, not executable).
    """
    read_fd, write_fd = os.pipe()
    with SignalForwarder() as forwarder:
        try:
            child = subprocess.Popen(command, stderr=write_fd)
        except OSError:
            os.close(read_fd)
            raise
        finally:
            os.close(write_fd)
        ends = WorkerEnds(lambda pid, code, ts_ns: send_worker_exit(agent_sockets, job, pid, code, ts_ns))
        tail = StderrTail(read_fd, 2, on_data=ends.feed).start()
        forwarder.forward_to(child.pid)
        returncode = child.wait()
        forwarder.forward_to(0)
        tail.join(DRAIN_SECONDS)
        ends.close()
        message = _exit_message(job, rank, child.pid, returncode)
        message.update(of="command", stderr_tail=tail.text())
        deliver(message, agent_sockets, PATIENCE_SECONDS)
    return exit_status(returncode)
