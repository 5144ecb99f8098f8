"""Removal of hook sockets that killed training processes left; a process that ends normally removes its own."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import stat
import tempfile
from collections.abc import Iterator
from typing import Final

LOOK_NS: Final = 60_000_000_000
"""Time between two searches."""
MAX_ENTRIES: Final = 20_000
"""Most entries of a folder that are examined, so that a full temporary folder cannot block the agent."""

_NAME: Final = re.compile(r"tocsin-hook-([1-9][0-9]{0,9})-[0-9a-f]{8}\.sock")
_LOG = logging.getLogger(__name__)


class HookSockets:
    """Removes files that are hook sockets by name, whose process is gone, and on which nobody listens.

    A process id alone proves nothing, because another container has its own numbering. The kernel refuses a connection
    to a socket file only if no process in any container holds that socket. So both are checked.
    """

    def __init__(self, agent_socket: str) -> None:
        """Prepare without searching.

        Args:
            agent_socket: path of the agent's own socket. Hooks create theirs in its folder, or in the temporary folder.
        """
        folder = os.path.dirname(os.path.abspath(agent_socket))
        self._folders = tuple(dict.fromkeys((folder, tempfile.gettempdir())))
        self._looked_ns = -LOOK_NS

    def on_time(self, mono_ns: int) -> None:
        """Search and remove at the first call and once a minute."""
        if mono_ns - self._looked_ns < LOOK_NS:
            return
        self._looked_ns = mono_ns
        removed = sum(_remove(path) for folder in self._folders for path in _abandoned(folder))
        if removed:
            _LOG.info("sockets of killed processes removed", extra={"count": removed})


def _abandoned(folder: str) -> Iterator[str]:
    """Yield the paths of abandoned hook sockets in a folder."""
    try:
        with os.scandir(folder) as entries:
            for _, entry in zip(range(MAX_ENTRIES), entries, strict=False):
                named = _NAME.fullmatch(entry.name)
                if named and _is_socket(entry) and not _lives(int(named[1])) and _is_refused(entry.path):
                    yield entry.path
    except OSError as error:
        _LOG.debug("cannot look for sockets", extra={"folder": folder, "error": str(error)})


def _is_socket(entry: os.DirEntry[str]) -> bool:
    """Return whether a folder entry is a socket, and no link to one."""
    try:
        return stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode)
    except OSError:
        return False


def _lives(pid: int) -> bool:
    """Return whether a process with this id exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # another user's: it lives
        return True
    return True


def _is_refused(path: str) -> bool:
    """Return whether no process holds the socket at a path; False if unknown."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as way:
        way.setblocking(False)
        try:
            way.connect(path)
        except ConnectionRefusedError:
            return True
        except OSError:
            return False
    return False


def _remove(path: str) -> bool:
    """Remove a file and return whether it worked."""
    with contextlib.suppress(OSError):  # another user's, in a folder where only he may
        os.unlink(path)
        return True
    return False
