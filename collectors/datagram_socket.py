"""The unix datagram socket that hooks send to."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from dataclasses import dataclass
from typing import Final

from tocsin.collectors.datagrams import DATAGRAM_BYTES
from tocsin.schemas.errors import ConfigError

_CREDENTIALS: Final = struct.Struct("3i")
_SCM_CREDENTIALS: Final = 2  # linux/socket.h; Python's socket module names it on few builds
_TRUNCATED: Final = int(socket.MSG_TRUNC)  # as a plain number: the enum costs ten times the test
_RECEIVE_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Received:
    """One datagram.

    Attributes:
        data: its bytes; empty where it was too large.
        pid: the sender in our pid namespace, as the kernel says, 0 = not visible from here.
        uid: the sender's user, -1 = unknown.
        is_too_large: it was longer than a datagram may be.
    """

    data: bytes
    pid: int
    uid: int
    is_too_large: bool


class DatagramSocket:
    """Bound to a path; a file that an earlier agent left there is replaced."""

    def __init__(self, path: str) -> None:
        """Bind.

        Raises:
            ConfigError: the path cannot be used.
        """
        self.path = path
        self._buffer = bytearray(DATAGRAM_BYTES + 1)
        self._view = memoryview(self._buffer)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
        # the kernel then tells who sent: pids are translated between pid namespaces
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        beside = f"{path}.{os.getpid()}"
        try:
            if os.path.dirname(path):
                os.makedirs(os.path.dirname(path), exist_ok=True)
            self._socket.bind(beside)
            os.chmod(beside, 0o666)  # noqa: S103  # any user's training may speak to the agent
            os.replace(beside, path)  # hooks never see a moment without a socket
            self._inode = os.stat(path).st_ino
        except OSError as error:
            self._socket.close()
            with contextlib.suppress(OSError):
                os.unlink(beside)
            raise ConfigError("socket", path, f"a path that can be bound ({error.strerror or error})") from error

    def fileno(self) -> int:
        """Return the descriptor, for a selector."""
        return self._socket.fileno()

    def receive(self) -> Received | None:
        """Return the next datagram, None where there is none."""
        try:
            size, ancillary, flags, _ = self._socket.recvmsg_into([self._buffer], 64)
        except BlockingIOError:
            return None
        pid, uid = 0, -1
        for level, kind, data in ancillary:
            if level == socket.SOL_SOCKET and kind == _SCM_CREDENTIALS and len(data) >= _CREDENTIALS.size:
                pid, uid, _ = _CREDENTIALS.unpack_from(data)
        too_large = bool(flags & _TRUNCATED) or size > DATAGRAM_BYTES
        return Received(b"" if too_large else bytes(self._view[:size]), max(0, pid), uid, too_large)

    def close(self) -> None:
        """Close, and remove the file unless another agent has replaced it."""
        self._socket.close()
        with contextlib.suppress(OSError):
            if os.stat(self.path).st_ino == self._inode:
                os.unlink(self.path)
