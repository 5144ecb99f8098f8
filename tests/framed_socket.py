"""A client's side of a connection whose messages are framed by their length, as between agents and an engine."""

from __future__ import annotations

import socket


class FramedSocket:
    """Sends and receives whole frames.

    Attributes:
        socket: the connection.
    """

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection

    def send(self, data: bytes) -> None:
        """Send one frame as it is."""
        self.socket.sendall(len(data).to_bytes(4, "little") + data)

    def frame(self) -> bytes:
        """Return the next frame as it is.

        Raises:
            EOFError: the connection ended.
        """
        return self._exactly(int.from_bytes(self._exactly(4), "little"))

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = self.socket.recv(count - len(data))
            if not part:
                raise EOFError
            data += part
        return data
