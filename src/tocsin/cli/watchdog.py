"""Ends a drill's processes if the drill itself no longer can (after SIGKILL).

It runs as a file, not as a module: only the standard library, eight megabytes. Its own process ID is the process group
that all other processes of the drill join. It waits until the drill's end of a pipe is closed.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time

_TRIES = 100


def wait_and_clean(pipe: int, folders: list[str]) -> None:
    """Wait until the drill has ended, then kill its process group and remove its folders.

    Args:
        pipe: read end of a pipe; the kernel closes the other end when the drill dies.
        folders: folders to remove.
    """
    group = os.getpid()
    while os.read(pipe, 1):
        pass
    if os.fork() > 0:
        signal.pause()  # the child ends the group, and this process with it
    os.setsid()  # out of the group that dies now
    for _ in range(_TRIES):  # again and again: a fork may have been under way
        try:
            os.killpg(group, signal.SIGKILL)  # ends stopped processes, too
        except ProcessLookupError:
            break
        time.sleep(0.02)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def ignore_hangup() -> None:
    """Ignore the signals that would end this process together with the drill.

    The drill's death orphans the process group; if a member is stopped (a frozen rank), the kernel then sends SIGHUP to
    the whole group, including this process.
    """
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


if __name__ == "__main__":
    ignore_hangup()
    wait_and_clean(int(sys.argv[1]), sys.argv[2:])
