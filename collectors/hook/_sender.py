"""Sockets of the hook: a sender that never blocks or raises, and the socket for dump requests."""

import contextlib
import errno
import os
import socket
import struct
import tempfile
import uuid

from tocsin.collectors.hook._places import may_speak_to

_CREDENTIALS = struct.Struct("3i")  # struct ucred of Linux: pid, uid, gid
MAX_REQUEST_BYTES = 64 * 1024


class Sender:
    """Sends datagrams to the agent; one that is not accepted at once is dropped and counted.

    The socket lives as long as the sender; a reconnect is a second ``connect`` on it. So no thread can close a
    descriptor while another is sending.

    Attributes:
        connected: whether the last send or connect found an agent. Without one, ``send`` costs one test.
        dropped_count: datagrams that were not sent.
    """

    __slots__ = ("_paths", "_socket", "connected", "dropped_count")

    def __init__(self, *paths: str) -> None:
        """Prepare to send to the first of the paths with a listener."""
        self._paths = paths
        self.connected = False
        self.dropped_count = 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)

    def connect(self) -> bool:
        """Look for the agent and return whether it was found; called by the hook's thread only, once a second."""
        for path in self._paths:
            try:
                if may_speak_to(path):
                    self._socket.connect(path)
                    self.connected = True
                    return True
            except OSError:
                continue
        return False

    def send(self, payload: bytes) -> bool:
        """Send one datagram from any thread; return whether the agent's socket accepted it."""
        if self.connected:
            try:
                self._socket.send(payload)
                return True
            except BlockingIOError:
                pass  # the agent is there but behind: the next one may pass
            except OSError as error:
                if error.errno not in (errno.EMSGSIZE, errno.ENOBUFS):
                    self.connected = False
        self.dropped_count += 1
        return False

    def close(self) -> None:
        """Close the socket; later datagrams are dropped."""
        self.connected = False
        self._socket.close()


class ReplySocket:
    """Datagram socket on which the agent requests dumps, in the agent's socket folder, else in the temporary folder.

    A request makes this process write a file, so only root, this user and the owner of the agent's socket are accepted.

    Attributes:
        path: path to announce, "" if none could be bound.
    """

    __slots__ = ("_agent_paths", "_pid", "_socket", "path")

    def __init__(self, *agent_paths: str) -> None:
        self._agent_paths = agent_paths
        self._pid = os.getpid()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        name = f"tocsin-hook-{self._pid}-{uuid.uuid4().hex[:8]}.sock"
        places = [os.path.dirname(os.path.abspath(path)) for path in agent_paths if may_speak_to(path)]
        folders = (*places, tempfile.gettempdir())
        self.path = next((path for folder in folders if self._bind(path := os.path.join(folder, name))), "")

    def _bind(self, path: str) -> bool:
        """Bind the socket to a path; return whether it worked."""
        try:
            self._socket.bind(path)
        except OSError:  # no such folder, not ours to write in, longer than 107 bytes
            return False
        return True

    def fileno(self) -> int:
        """Return the descriptor to select."""
        return self._socket.fileno()

    def receive(self) -> bytes | None:
        """Return the next request of an accepted sender, None if there is none."""
        while True:
            try:
                data, ancillary, _, _ = self._socket.recvmsg(MAX_REQUEST_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size))
            except OSError:
                return None
            for level, kind, value in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
                    _, uid, _ = _CREDENTIALS.unpack(value[: _CREDENTIALS.size])
                    if self._may_ask(uid):
                        return data

    def wake(self) -> None:
        """Make a ``select`` on this socket return."""
        if self.path:
            with contextlib.suppress(OSError):  # full: then select returns anyway
                self._socket.sendto(b"", self.path)

    def close(self) -> None:
        """Close the socket; only the process that created it, not a forked child, removes its file."""
        self._socket.close()
        if self.path and self._pid == os.getpid():
            with contextlib.suppress(OSError):
                os.unlink(self.path)

    def _may_ask(self, uid: int) -> bool:
        """Return whether this user's requests are accepted."""
        if uid in (0, os.getuid()):
            return True
        for path in self._agent_paths:
            try:
                if may_speak_to(path) and uid == os.stat(path).st_uid:
                    return True
            except OSError:
                continue
        return False
