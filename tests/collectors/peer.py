"""An engine for the agent's tests, and a hook that says what a test wants."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tocsin.pipeline.identity.gate import Gate, PeerSignIn
from tocsin.pipeline.identity.peers import Peer
from tocsin.schemas.records import Record
from tocsin.schemas.wire.codec import decode

LENGTH = struct.Struct("<I")
_BY_UID = {"t": "challenge", "v": 1, "by": "uid", "nonce": "00" * 32}


def wait_until(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait for something that other threads bring about; fail when it does not come."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"did not come within {seconds} s"
        time.sleep(0.005)


class EnginePeer:
    """Takes one agent after the other on a unix socket.

    Attributes:
        frames: the records' bytes as they came, over all connections.
        controls: the control messages as they came.
        acks: whether records are acknowledged.
        offset_ns: how far this engine's clock is behind the host's.
        refuse: gives the refusal of a record's bytes, None = taken.
        gate: asks for secrets, as the engine does; None: the agent is known by its user.
        is_closed: whether it has ended.
    """

    def __init__(
        self,
        path: Path,
        gate: Gate | None = None,
        controls: Callable[[EnginePeer], list[dict[str, Any]]] = lambda _: [],
    ) -> None:
        """Listen at once; ``controls`` makes the list of the control messages, which may watch what is added."""
        self.path = path
        self.gate = gate
        self._sign_in: PeerSignIn | None = None
        self.frames: list[bytes] = []
        self.controls: list[dict[str, Any]] = controls(self)
        self.acks = True
        self.offset_ns = 0
        self.refuse: Callable[[bytes], dict[str, Any] | None] = lambda _: None
        self.connection: socket.socket | None = None
        self._taken = 0
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self.is_closed = False
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def records(self) -> list[Record]:
        """What came, decoded: a record that cannot be is a failure."""
        return [decode(data) for data in list(self.frames)]

    def of(self, kind: type[Any]) -> list[Any]:
        """The records of one kind."""
        return [record for record in self.records if isinstance(record, kind)]

    def events(self, name: str) -> list[Any]:
        """The events of one name."""
        return [r for r in self.records if type(r).__name__ == "Event" and r.name == name]  # type: ignore[union-attr]

    def say(self, message: dict[str, Any]) -> None:
        """Send a control message."""
        data = json.dumps(message).encode()
        data += b"" if self._sign_in is None else self._sign_in.tag(data)
        assert self.connection is not None
        self.connection.sendall(LENGTH.pack(len(data)) + data)

    def say_bytes(self, data: bytes) -> None:
        """Send anything."""
        assert self.connection is not None
        self.connection.sendall(data)

    def hang_up(self) -> None:
        """End the connection."""
        if self.connection is not None:
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End for good."""
        self.is_closed = True
        self.hang_up()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(60)
        self.path.unlink()

    def _run(self) -> None:
        while not self.is_closed:
            try:
                self.connection, _ = self._listener.accept()
            except OSError:
                return
            self._taken = 0
            self._sign_in = None if self.gate is None else self.gate.meet(Peer(is_own_machine=False))
            self.say(_BY_UID if self._sign_in is None else self._sign_in.challenge)
            with contextlib.suppress(OSError):
                self._serve(self.connection)
            self.connection.close()

    def _serve(self, connection: socket.socket) -> None:
        buffer = bytearray()
        while data := connection.recv(1 << 16):
            buffer += data
            before = self._taken
            while len(buffer) >= 4 and len(buffer) >= 4 + LENGTH.unpack_from(buffer)[0]:
                size = LENGTH.unpack_from(buffer)[0]
                self._take(bytes(buffer[4 : 4 + size]))
                del buffer[: 4 + size]
            if self.acks and self._taken > before:
                self.say({"t": "ack", "count": self._taken})

    def _take(self, data: bytes) -> None:
        if self._sign_in is not None and self._sign_in.principal is not None:
            data = self._sign_in.open(data)
        if data[:1] != b"{":
            refusal = self.refuse(data)
            if refusal is not None:
                self.say({"t": "refused", "index": self._taken, **refusal})
            else:
                self.frames.append(data)
            self._taken += 1
            return
        message = json.loads(data)
        self.controls.append(message)
        engine_ns = time.time_ns() - self.offset_ns
        if message["t"] == "hello":
            if self._sign_in is not None:
                self._sign_in.hello(message, time.time_ns())
            self.say({"t": "welcome", "engine_ns": engine_ns})
        elif message["t"] == "clock":
            self.say({"t": "clock", "t0": message["t0"], "engine_ns": engine_ns})


class FakeHook:
    """Sends datagrams as a rank's hook does."""

    def __init__(self, agent: Path, rank: int = 0, job: tuple[str, str, int] = ("c", "j", 0)) -> None:
        self._agent = str(agent)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.rank = rank
        self.job = job

    def send(self, kind: str, **keys: Any) -> None:
        """Send one message."""
        self.send_bytes(datagram(kind, self.rank, self.job, **keys))

    def send_bytes(self, data: bytes) -> None:
        """Send anything."""
        self._socket.sendto(data, self._agent)

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def datagram(kind: str, rank: int = 0, job: tuple[str, str, int] = ("c", "j", 0), **keys: Any) -> bytes:
    """One message of a hook, as bytes."""
    common = {"v": 1, "t": kind, "job": list(job), "rank": rank, "ts": keys.pop("ts", None) or time.time_ns()}
    return json.dumps({**common, **keys}).encode()
