"""Sockets that killed training processes left behind: a process that ends in order removes its own."""

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
"""How often they are looked for."""
MAX_ENTRIES: Final = 20_000
"""Of a folder with more entries the first are looked at: a full temporary folder must not hold the agent."""

_NAME: Final = re.compile(r"tocsin-hook-([1-9][0-9]{0,9})-[0-9a-f]{8}\.sock")
_LOG = logging.getLogger(__name__)


class HookSockets:
    """Removes what is a hook's socket by its name, whose process is gone, and that nobody listens on.

    A process id alone proves nothing: another container counts its own. The kernel refuses a connection to a socket
    file only where no process holds that socket, in whatever container. So both are asked.
    """

    def __init__(self, agent_socket: str) -> None:
        """Look at nothing yet.

        Args:
            agent_socket: the agent's own socket: hooks make theirs beside it, else in the temporary folder.
        """
        beside = os.path.dirname(os.path.abspath(agent_socket))
        self._folders = tuple(dict.fromkeys((beside, tempfile.gettempdir())))
        self._looked_ns = -LOOK_NS

    def on_time(self, mono_ns: int) -> None:
        """Look, at the first call and once a minute."""
        if mono_ns - self._looked_ns < LOOK_NS:
            return
        self._looked_ns = mono_ns
        removed = sum(_remove(path) for folder in self._folders for path in _abandoned(folder))
        if removed:
            _LOG.info("sockets of killed processes removed", extra={"count": removed})


def _abandoned(folder: str) -> Iterator[str]:
    try:
        with os.scandir(folder) as entries:
            for _, entry in zip(range(MAX_ENTRIES), entries, strict=False):
                named = _NAME.fullmatch(entry.name)
                if named and _is_socket(entry) and not _lives(int(named[1])) and _is_refused(entry.path):
                    yield entry.path
    except OSError as error:
        _LOG.debug("cannot look for sockets", extra={"folder": folder, "error": str(error)})


def _is_socket(entry: os.DirEntry[str]) -> bool:
    try:
        return stat.S_ISSOCK(entry.stat(follow_symlinks=False).st_mode)
    except OSError:
        return False


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # another user's: it lives
        return True
    return True


def _is_refused(path: str) -> bool:
    """Whether no process holds the socket; False where that cannot be told."""
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
    with contextlib.suppress(OSError):  # another user's, in a folder where only he may
        os.unlink(path)
        return True
    return False
