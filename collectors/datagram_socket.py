"""The unix datagram socket that hooks send to."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from typing import Final, NamedTuple

from tocsin.collectors.clock import Now
from tocsin.collectors.datagrams import DATAGRAM_BYTES
from tocsin.schemas.errors import ConfigError
from tocsin.schemas.private_files import is_socket

_CREDENTIALS: Final = struct.Struct("3i")
_SCM_CREDENTIALS: Final = 2  # linux/socket.h; Python's socket module names it on few builds
_TRUNCATED: Final = int(socket.MSG_TRUNC)  # as a plain number: the enum costs ten times the test
_RECEIVE_BYTES: Final = 4 * 1024 * 1024
_UNREAD_BYTES: Final = 1024 * 1024
# What the hook's own begin with; one that writes its keys in another order is looked into at once.
_ROUTINE: Final = (b'{"v":1,"t":"step"', b'{"v":1,"t":"beat"', b'{"v": 1, "t": "step"', b'{"v": 1, "t": "beat"')


class Received(NamedTuple):
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


class Unread:
    """Datagrams that were received and not looked into yet.

    They are received at once: the kernel holds ten for all hooks together. Steps and beats are looked into together, a
    second's at a time: that costs a third less than one burst at a time, between which the processor's caches forget
    this program. Everything else is for now.
    """

    def __init__(self) -> None:
        """Hold nothing."""
        self._waiting: list[tuple[Received, Now]] = []
        self._bytes = 0
        self.is_urgent = False

    def put(self, received: Received, now: Now) -> None:
        """Take a datagram that came at ``now``."""
        self._waiting.append((received, now))
        self._bytes += len(received.data)
        if self._bytes > _UNREAD_BYTES or not received.data.startswith(_ROUTINE):
            self.is_urgent = True

    def take(self) -> list[tuple[Received, Now]]:
        """Return all of them, in the order in which they came."""
        waiting, self._waiting, self._bytes, self.is_urgent = self._waiting, [], 0, False
        return waiting


class DatagramSocket:
    """Bound to a path; a socket that an earlier agent left there is replaced, and nothing else."""

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
            is_socket(path)
            if is_socket(beside):  # an earlier agent with our process id was killed here: containers count from 1
                os.unlink(beside)
            self._socket.bind(beside)
            os.chmod(beside, 0o666)  # noqa: S103  # any user's training may speak to the agent
            os.replace(beside, path)  # hooks never see a moment without a socket
            self._inode = os.stat(path).st_ino
        except OSError as error:
            self._socket.close()
            with contextlib.suppress(OSError):
                if is_socket(beside):
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
            if is_socket(self.path) and os.lstat(self.path).st_ino == self._inode:
                os.unlink(self.path)
