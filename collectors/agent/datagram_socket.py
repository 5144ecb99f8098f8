"""The unix datagram socket on which the agent receives the hooks' datagrams."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
from typing import Final, NamedTuple

from tocsin.collectors.agent.datagrams import DATAGRAM_BYTES
from tocsin.collectors.agent.socket_lock import SocketLock, listens
from tocsin.collectors.clock import Now
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
    """One received datagram and its sender.

    Attributes:
        data: the bytes, empty if it was too large.
        pid: the sender's process id in our pid namespace, from the kernel; 0 if not visible from here.
        uid: the sender's user, -1 if unknown.
        is_too_large: whether it was longer than a datagram may be.
    """

    data: bytes
    pid: int
    uid: int
    is_too_large: bool


class Unread:
    """Queue of received datagrams that are not parsed yet.

    Datagrams are received at once, because the kernel holds only ten for all hooks together. Steps and beats are parsed
    together, a second's worth at a time. That costs a third less than one burst at a time, between which the
    processor's caches lose this program. All other datagrams make the queue urgent.
    """

    def __init__(self) -> None:
        """Create an empty queue."""
        self._waiting: list[tuple[Received, Now]] = []
        self._bytes = 0
        self.is_urgent = False

    def __len__(self) -> int:
        """Return how many datagrams are held."""
        return len(self._waiting)

    def put(self, received: Received, now: Now) -> None:
        """Add a datagram received at ``now``; sets ``is_urgent`` if it must be parsed at once."""
        self._waiting.append((received, now))
        self._bytes += len(received.data)
        if self._bytes > _UNREAD_BYTES or not received.data.startswith(_ROUTINE):
            self.is_urgent = True

    def take(self) -> list[tuple[Received, Now]]:
        """Remove and return all datagrams in the order of arrival, each with its time."""
        waiting, self._waiting, self._bytes, self.is_urgent = self._waiting, [], 0, False
        return waiting


class DatagramSocket:
    """A datagram socket bound to a path; it replaces only a socket that an ended agent left there.

    Attributes:
        path: path to which hooks send.
        trouble: why hooks cannot reach this socket now, "" if they can.
        renewed_count: how often the socket was created again after its file had vanished.
    """

    def __init__(self, path: str) -> None:
        """Bind the socket at a path; its folder is created if missing.

        Raises:
            ConfigError: the path cannot be used, or another agent listens there.
        """
        self.path = path
        self.trouble = ""
        self.renewed_count = 0
        self._buffer = bytearray(DATAGRAM_BYTES + 1)
        self._view = memoryview(self._buffer)
        self._folder = os.path.dirname(path)
        self._lock = SocketLock(path)
        try:
            if self._folder:
                os.makedirs(self._folder, exist_ok=True)
            self._folder_mode = stat.S_IMODE(os.stat(self._folder or ".").st_mode)
            is_socket(path)
            who = self._lock_or_other_listener()
            if who:
                must = f"free, but {who} listens there: end it, or name another path with --socket"
                raise ConfigError("socket", path, must)
            self._socket, self._inode = _bound(path)
        except OSError as error:
            self._lock.release()
            raise ConfigError("socket", path, f"a path that can be bound ({error.strerror or error})") from error

    def _lock_or_other_listener(self) -> str:
        """Lock the path for this agent; return who else listens there, "" for nobody.

        Raises:
            OSError: no lock file can be created next to the path.
        """
        who = self._lock.take()
        if not who and listens(self.path):
            self._lock.release()
            return "another process"
        return who

    def look(self) -> bool:
        """Return whether the file at the path is still this socket's."""
        try:
            found = os.lstat(self.path)
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._inode

    def renew(self) -> None:
        """Create the socket file again after it has vanished; the descriptor stays the same.

        Hooks look for it once a second. If another process listens at the path, or something else is there, it is
        left alone and ``trouble`` says so.
        """
        try:
            if self._folder and not os.path.isdir(self._folder):
                os.makedirs(self._folder, self._folder_mode, exist_ok=True)
                os.chmod(self._folder, self._folder_mode)
            is_socket(self.path)
            who = self._lock_or_other_listener()
            self.trouble = f"{who} listens there" if who else ""
            if not who:
                new, self._inode = _bound(self.path)
                os.dup2(new.fileno(), self._socket.fileno(), inheritable=False)
                new.close()
                self.renewed_count += 1
        except OSError as error:
            self.trouble = str(error.strerror or error)

    def fileno(self) -> int:
        """Return the descriptor to poll."""
        return self._socket.fileno()

    def receive(self) -> Received | None:
        """Return the next datagram, None if there is none."""
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
        """Close the socket and remove its file, unless another process has replaced it."""
        if self.look():
            with contextlib.suppress(OSError):
                os.unlink(self.path)
        self._socket.close()
        self._lock.release()


def _bound(path: str) -> tuple[socket.socket, tuple[int, int]]:
    """Bind a new socket at a path, replacing a socket that is there.

    Returns:
        The socket, and (device, inode) of its file.

    Raises:
        OSError: the path cannot be bound.
    """
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    temporary_path = f"{path}.{os.getpid()}"
    try:
        bound.setblocking(False)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
        # the kernel then tells who sent: pids are translated between pid namespaces
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        if is_socket(temporary_path):  # an earlier agent with our process id was killed here: containers count from 1
            os.unlink(temporary_path)
        bound.bind(temporary_path)
        os.chmod(temporary_path, 0o666)  # noqa: S103  # any user's training may speak to the agent
        os.replace(temporary_path, path)  # hooks never see a moment without a socket
        found = os.stat(path)
    except OSError:
        bound.close()
        with contextlib.suppress(OSError):
            if is_socket(temporary_path):
                os.unlink(temporary_path)
        raise
    return bound, (found.st_dev, found.st_ino)
