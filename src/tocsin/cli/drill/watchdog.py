"""Ends a drill's processes when the drill itself can no longer do it (kill -9).

Run as a file, not as a module: the standard library only, eight megabytes, and its own
pid is the process group that all other processes of the drill join. It waits for the
drill's end of a pipe to close.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time

_TRIES = 100


def wait_and_clean(pipe: int, folders: list[str]) -> None:
    """Wait until the drill is gone, then end its group and remove its folders.

    Args:
        pipe: read end; closed by the kernel when the drill dies.
        folders: what to remove.
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
    """Survive the drill's death.

    It leaves an orphaned process group; where a member is stopped (a frozen rank), the
    kernel then sends SIGHUP to the whole group, this process included.
    """
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


if __name__ == "__main__":
    ignore_hangup()
    wait_and_clean(int(sys.argv[1]), sys.argv[2:])
