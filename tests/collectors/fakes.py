"""Stand-ins for what the hook talks to."""

import json
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Agent:
    """A fake agent: a datagram socket and what came."""

    def __init__(self, path: Path, buffer_bytes: int | None = None) -> None:
        self.path = str(path)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        if buffer_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        self.socket.bind(self.path)
        self.socket.setblocking(False)
        self.seen: list[dict[str, Any]] = []

    def drain(self) -> list[dict[str, Any]]:
        while True:
            try:
                self.seen.append(json.loads(self.socket.recv(1 << 20)))
            except BlockingIOError:
                return self.seen

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [message for message in self.drain() if message["t"] == kind]

    def wait_for(self, wanted: Callable[[dict[str, Any]], bool], seconds: float = 60.0) -> dict[str, Any]:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for message in self.drain():
                if wanted(message):
                    return message
            time.sleep(0.02)
        raise AssertionError(f"not seen among {[message['t'] for message in self.seen]}")

    def close(self) -> None:
        self.socket.close()
        Path(self.path).unlink()


class FakeGroup:
    def __init__(self, first: int = 0) -> None:
        self.seq = first

    def rank(self) -> int:
        return 0

    def _get_sequence_number_for_group(self) -> int:
        return self.seq
