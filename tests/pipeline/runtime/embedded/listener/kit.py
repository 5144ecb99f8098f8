"""A listener without a thread and without a clock of its own: its turns are counted, not its seconds."""

from __future__ import annotations

import contextlib
import json
import socket
import tempfile
from pathlib import Path
from typing import Any

from tocsin.pipeline.lab.testing import FakeJob
from tocsin.pipeline.runtime.embedded.dead_letters import DeadLetter
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine, EngineConfig
from tocsin.pipeline.runtime.embedded.listener.listener import AgentServer, ServerConfig, parse_address
from tocsin.schemas.records import NS_PER_SECOND
from tocsin.schemas.verdicts import Verdict
from tocsin.schemas.wire.codec import encode

NOW = 1_700_000_000 * NS_PER_SECOND


def framed(data: bytes) -> bytes:
    return len(data).to_bytes(4, "little") + data


class Visitor:
    """Somebody on the other end, who never waits."""

    def __init__(self, address: str, host: str = "") -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(parse_address(address)[1])
        self.socket.setblocking(False)
        self.unsent = bytearray()
        self.heard = bytearray()
        if host:
            self.send(json.dumps({"t": "hello", "host": host}).encode())

    def send(self, *messages: bytes) -> None:
        """Give messages to the kernel, as much as it takes; the rest goes with the next call."""
        for data in messages:
            self.unsent += framed(data)
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while self.unsent:
                del self.unsent[: self.socket.send(self.unsent)]

    def answers(self) -> list[dict[str, Any]]:
        """What it was told until now."""
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while data := self.socket.recv(1 << 16):
                self.heard += data
        found, at = [], 0
        while len(self.heard) - at >= 4:
            end = at + 4 + int.from_bytes(self.heard[at : at + 4], "little")
            if end > len(self.heard):
                break
            found.append(json.loads(self.heard[at + 4 : end]))
            at = end
        return found

    def drain(self) -> None:
        """Read what it was told, and forget it."""
        with contextlib.suppress(BlockingIOError, ConnectionError):
            while self.socket.recv(1 << 18):
                pass

    @property
    def is_closed(self) -> bool:
        """Whether the listener closed it."""
        try:
            while self.socket.recv(1 << 16):
                pass
        except BlockingIOError:
            return False
        except ConnectionError:
            return True
        return True


class Listener:
    """An engine and its listener; ``seconds`` is the listener's clock, ``now_ns`` the engine's."""

    def __init__(self, config: ServerConfig | None = None, engine: EngineConfig | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.now_ns = NOW
        self.seconds = 1000.0
        self.most_a_turn = 0
        self.dead_letters: list[tuple[str, DeadLetter]] = []
        self.engine = EmbeddedEngine(engine or EngineConfig(history=None))
        path = Path(self._folder.name) / "e.sock"
        self.server = AgentServer(
            self.engine,
            f"unix:{path}",
            lambda: self.now_ns,
            lambda kind, dead_letter: self.dead_letters.append((kind, dead_letter)),
            config,
            lambda: self.seconds,
        )

    def visitor(self, host: str = "") -> Visitor:
        return Visitor(self.server.address, host)

    def turns(self, count: int) -> None:
        for _ in range(count):
            before = self.server.counters["messages"]
            self.server.turn()
            self.most_a_turn = max(self.most_a_turn, self.server.counters["messages"] - before)

    def close(self) -> None:
        self.server.stop_now()
        self._folder.cleanup()


class LiveJob:
    """A small job whose hosts have an agent each, at a listener."""

    def __init__(self, listener: Listener, job: FakeJob) -> None:
        self.listener = listener
        self.job = job
        self.agents: dict[str, Visitor] = {}
        self.verdicts: list[Verdict] = []

    def second(self, turns: int) -> None:
        """One second of the job: its agents send, the listener has so many turns, the engine ticks."""
        for record in self.job.second():
            if record.host not in self.agents:
                self.agents[record.host] = self.listener.visitor(record.host)
            self.agents[record.host].send(encode(record))
        self.listener.now_ns = self.job.now_ns
        self.listener.seconds += 1.0
        self.listener.turns(turns)
        for agent in self.agents.values():
            agent.drain()
        self.verdicts += self.listener.engine.tick(self.job.now_ns).verdicts
