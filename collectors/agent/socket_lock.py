"""Exclusive use of the agent's socket path: a lock file ``PATH.lock`` with the listener's process id.

The kernel releases the lock when its process ends, in whatever way. Only the owner may open the file, so that nobody
else can hold the lock and keep an agent from starting.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
from typing import Final

from tocsin.schemas.private_files import open_private

_TRIES: Final = 8
"""Attempts to take the lock; its holder may remove the file between opening and locking."""


class SocketLock:
    """The exclusive right to listen at a path."""

    def __init__(self, path: str) -> None:
        """Prepare without taking the lock."""
        self._path = f"{path}.lock"
        self._socket_path = path
        self._descriptor = -1

    def take(self) -> str:
        """Take the lock, or verify that it is still held.

        Returns:
            Who else holds it, "" if this object does.

        Raises:
            OSError: no lock file can be created.
        """
        for _ in range(_TRIES):
            if self._descriptor >= 0 and self._is_there():
                return ""
            self._drop()
            try:
                self._descriptor = open_private(self._path, os.O_RDWR | os.O_CREAT)
            except PermissionError:
                if listens(self._socket_path):
                    return f"a process of user {os.lstat(self._socket_path).st_uid}"
                if not os.path.lexists(self._path):
                    raise
                os.unlink(self._path)  # left by an agent of another user that was killed
                continue
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                who = _holder(self._descriptor)
                self._drop()
                return who
            if self._is_there():
                os.ftruncate(self._descriptor, 0)
                os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)
        return "" if self._descriptor >= 0 and self._is_there() else "another agent"

    def release(self) -> None:
        """Release the lock and remove its file if it is still this lock's."""
        if self._descriptor >= 0 and self._is_there():
            with contextlib.suppress(OSError):
                os.unlink(self._path)
        self._drop()

    def _is_there(self) -> bool:
        """Return whether the file at the path is the one that is held."""
        try:
            found = os.lstat(self._path)
        except OSError:
            return False
        held = os.fstat(self._descriptor)
        return (found.st_dev, found.st_ino) == (held.st_dev, held.st_ino)

    def _drop(self) -> None:
        """Close the lock file's descriptor, which releases the lock."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _holder(descriptor: int) -> str:
    """Return the process that a lock file names, as text."""
    text = os.pread(descriptor, 32, 0).strip()
    return f"process {text.decode()}" if text.isdigit() else "another agent"


def listens(path: str) -> bool:
    """Return whether a process listens at the path of a unix socket of any type."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asking:
        asking.setblocking(False)
        try:
            asking.connect(path)
        except OSError as error:
            return error.errno == errno.EPROTOTYPE
    return True
