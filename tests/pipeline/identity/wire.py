"""Somebody at the other end of the listener's socket, honest or not."""

from __future__ import annotations

import json
import socket
from typing import Any

from tests.framed_socket import FramedSocket
from tests.pipeline.identity.kit import NOW
from tocsin.collectors.transport.sign_in import SignIn
from tocsin.pipeline.runtime.embedded.listener.listener import parse_address
from tocsin.schemas.records import Event, EventSource, JobKey, Severity
from tocsin.schemas.sign_in import TAG_BYTES
from tocsin.schemas.wire.codec import encode


class Wire(FramedSocket):
    """One connection.

    Attributes:
        challenge: the engine's first message.
        agent: the sign-in whose seals are used, None: nothing is sealed.
    """

    def __init__(self, address: str, agent: SignIn | None = None, stream: socket.socket | None = None) -> None:
        _, where = parse_address(address)
        super().__init__(stream or socket.socket(socket.AF_INET6 if ":" in str(where[0]) else socket.AF_INET))
        self.socket.settimeout(60)
        if stream is None:
            self.socket.connect(where)
        self.agent = agent
        self.challenge = json.loads(self.frame())
        if agent is not None:
            self.send(json.dumps(agent.answer(self.challenge, NOW)).encode())
            self.welcome = self.hear()

    def seal(self, data: bytes) -> bytes:
        """Return a message with the seal that is due."""
        assert self.agent is not None
        return data + self.agent.tag(data)

    def hear(self) -> dict[str, Any]:
        """The engine's next message, its seal checked."""
        found: dict[str, Any] = json.loads(self.frame() if self.agent is None else self.agent.open(self.frame()))
        return found

    def end(self) -> str:
        """The reason that the engine gives before it closes; every acknowledgement before it is left out."""
        reason = ""
        try:
            while True:
                frame = self.frame()
                message = json.loads(frame if self.agent is None else frame[:-TAG_BYTES])
                reason = message["reason"] if message["t"] == "refused" else reason
        except (EOFError, ConnectionError):
            return reason


def event(host: str = "n0", ts_ns: int = NOW, name: str = "nan", rank: int = 0) -> bytes:
    """A record of a host."""
    return encode(Event(JobKey("c", "j"), host, ts_ns, rank, EventSource.PROCESS, name, Severity.INFO))
