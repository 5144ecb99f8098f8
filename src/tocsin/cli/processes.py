"""The drill's processes, which are started in one process group and are always ended together."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from multiprocessing.util import get_temp_dir
from pathlib import Path

from tocsin.cli import watchdog

_END_SECONDS = 5.0


class ProcessGroup:
    """All processes of a drill, and its work folder.

    A watchdog process leads the group. It kills the others and removes the folder if this process dies without doing
    so,
    for example by SIGKILL.
    """

    def __init__(self, *, keep_folder: bool) -> None:
        """Create the folder and start the watchdog.

        Args:
            keep_folder: whether the folder is kept at the end.
        """
        # Short: a unix socket's path has at most 107 characters.
        self.folder = Path(tempfile.mkdtemp(prefix="tocsin-"))
        self._keep_folder = keep_folder
        self._children: list[subprocess.Popen[bytes]] = []
        read_end, self._pipe = os.pipe()
        self._watchdog = subprocess.Popen(
            [
                sys.executable,
                "-S",
                "-E",
                watchdog.__file__,
                str(read_end),
                get_temp_dir(),  # multiprocessing's own, which it removes at every exit but kill -9
                *([] if keep_folder else [str(self.folder)]),
            ],
            pass_fds=(read_end,),
            process_group=0,
            stdin=subprocess.DEVNULL,
        )
        os.close(read_end)
        self.group = self._watchdog.pid

    def start(self, command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
        """Start a command in the group.

        Args:
            command: program and arguments.
            log: file that its output is appended to.

        Returns:
            The process.
        """
        with log.open("ab") as output:
            child = subprocess.Popen(
                list(command),
                process_group=self.group,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self._children.append(child)
        return child

    def end(self, *, pids: Sequence[int] = (), children: Sequence[subprocess.Popen[bytes]] = ()) -> None:
        """Kill some members now, with SIGKILL, because a stopped process receives no other signal."""
        for pid in pids:
            kill_quietly(pid)
        for child in children:
            child.kill()
            child.wait(_END_SECONDS)
            self._children.remove(child)

    def members(self) -> list[int]:
        """Return the process IDs of all running processes of the drill except this one."""
        return running_members(self.group)

    def close(self) -> None:
        """Kill all processes and remove the folder; may be called repeatedly."""
        if self._pipe < 0:
            return
        with contextlib.suppress(ProcessLookupError):  # the watchdog died before us, and with it the group
            os.killpg(self.group, signal.SIGKILL)
        for child in (*self._children, self._watchdog):
            child.wait(_END_SECONDS)
        self._wait_for_grandchildren()
        os.close(self._pipe)
        self._pipe = -1
        if not self._keep_folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _wait_for_grandchildren(self) -> None:
        """Wait until no rank runs any more; ranks are children of the forkserver, not of this process."""
        deadline = time.monotonic() + _END_SECONDS
        while time.monotonic() < deadline:
            running = running_members(self.group)
            if not running:
                return
            for pid in running:
                kill_quietly(pid)
            time.sleep(0.01)


def running_members(group: int) -> list[int]:
    """Return the process IDs of a group, including stopped processes but not zombies."""
    members = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, process_group = stat.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue  # gone while we looked
        if int(process_group) == group and state not in "ZX":
            members.append(int(stat.parent.name))
    return members


def kill_quietly(pid: int) -> None:
    """Send SIGKILL to a process, which may have ended already."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def signal_quietly(pid: int, number: signal.Signals) -> bool:
    """Send a signal to a process; return False if it has ended already."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True
