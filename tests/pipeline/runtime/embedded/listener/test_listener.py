"""The engine's ear: what agents send is taken, answered or refused with a reason; nothing stops it."""

from __future__ import annotations

import json
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.framed_socket import FramedSocket
from tocsin.pipeline.identity.gate import GateConfig
from tocsin.pipeline.runtime.embedded.dead_letters import DeadLetter
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine, EngineConfig
from tocsin.pipeline.runtime.embedded.listener.listener import AgentServer, parse_address
from tocsin.pipeline.runtime.embedded.listener.listener_config import ServerConfig
from tocsin.schemas.errors import ConfigError, EngineError
from tocsin.schemas.records import NS_PER_SECOND, Event, EventSource, JobKey, Severity
from tocsin.schemas.wire.codec import encode

NOW = 1_700_000_000 * NS_PER_SECOND


def _event(ts_ns: int = NOW, host: str = "n0") -> bytes:
    return encode(Event(JobKey("c", "j"), host, ts_ns, 0, EventSource.PROCESS, "hello", Severity.INFO))


class Peer(FramedSocket):
    """An agent's side of the connection."""

    def __init__(self, address: str, host: str = "n0") -> None:
        """Connect, and sign in as a process of the engine's user; as nobody where there is no host."""
        super().__init__(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        self.socket.settimeout(60)
        self.socket.connect(parse_address(address)[1])
        assert self.hear()["t"] == "challenge"
        if host:
            self.say(t="hello", host=host, agent_version="1")
            assert self.hear() == {"t": "welcome", "engine_ns": NOW}

    def say(self, **message: object) -> None:
        self.send(json.dumps(message).encode())

    def hear(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self.frame())
        return answer


@pytest.fixture
def server(tmp_path: Path) -> Iterator[AgentServer]:
    listening = AgentServer(EmbeddedEngine(EngineConfig()), f"unix:{tmp_path}/e.sock", lambda: NOW)
    listening.start()
    yield listening
    listening.close()


def test_records_are_acknowledged_and_reach_the_engine(tmp_path: Path) -> None:
    """An acknowledgement counts records, not control messages."""
    engine = EmbeddedEngine(EngineConfig())
    server = AgentServer(engine, f"unix:{tmp_path}/e.sock", lambda: NOW)
    server.start()
    peer = Peer(server.address)
    for index in range(3):
        peer.send(_event(NOW + index))
    while peer.hear() != {"t": "ack", "count": 3}:
        pass
    assert engine.counters["records_ok"] == 3
    assert server.connected_hosts == ("n0",)
    server.close()


def test_the_clock_is_told(server: AgentServer) -> None:
    """An agent estimates its offset from this answer."""
    peer = Peer(server.address)
    peer.say(t="clock", t0=17)

    assert peer.hear() == {"t": "clock", "t0": 17, "engine_ns": NOW}


def test_a_clock_ahead_is_refused_with_how_far(server: AgentServer) -> None:
    """The index says which record; the connection goes on."""
    peer = Peer(server.address)
    peer.send(_event())
    peer.send(_event(NOW + 600 * NS_PER_SECOND))
    answers = [peer.hear()]
    while answers[-1]["t"] != "refused":
        answers.append(peer.hear())

    refused = answers[-1]
    assert (refused["index"], refused["reason"], refused["ahead_ns"]) == (1, "clock_ahead", 600 * NS_PER_SECOND)
    peer.send(_event(NOW + 5))
    assert any(peer.hear().get("count") == 3 for _ in range(3))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (_event()[:-3], "truncated"),
        (b"TC\x07" + _event()[3:], "wire_version"),
        (b"nonsense", "undecodable"),
        (b"", "truncated"),
        (bytes(byte ^ (1 if at == 40 else 0) for at, byte in enumerate(_event())), "undecodable"),
    ],
)
def test_what_is_no_record_becomes_a_dead_letter_with_a_reason(server: AgentServer, data: bytes, reason: str) -> None:
    """And the next record is taken."""
    peer = Peer(server.address, "bad")
    peer.send(data)
    refused = peer.hear()

    assert (refused["t"], refused["reason"]) == ("refused", reason)
    assert server.dead_letters[-1].reason == reason
    assert server.dead_letters[-1].host == "bad"
    peer.hear()
    peer.send(_event(host="bad"))
    assert peer.hear() == {"t": "ack", "count": 2}


def test_a_message_that_is_too_large_closes_only_its_connection(server: AgentServer) -> None:
    """Nothing is allocated for it."""
    bad, good = Peer(server.address), Peer(server.address)
    bad.socket.sendall((1 << 31).to_bytes(4, "little"))

    with pytest.raises((EOFError, ConnectionError)):
        bad.hear()
    good.send(_event())
    assert good.hear() == {"t": "ack", "count": 1}
    assert server.dead_letters[-1].reason == "too_large"


def test_bad_control_messages_are_dead_letters(server: AgentServer) -> None:
    """No JSON, no type."""
    peer = Peer(server.address)
    peer.send(b"{nonsense")
    peer.send(b"{}")
    peer.send(_event())

    assert peer.hear() == {"t": "ack", "count": 1}
    assert [dead_letter.reason for dead_letter in server.dead_letters] == ["bad_control", "bad_control"]


def test_a_probe_reaches_the_agent_of_its_host(server: AgentServer) -> None:
    """And nobody else."""
    peers = {host: Peer(server.address, host) for host in ("a", "b")}
    server.probe("b", {"request_id": "r1", "probe": "ring", "rank": 3})

    assert peers["b"].hear() == {"t": "probe", "request_id": "r1", "probe": "ring", "rank": 3}
    peers["a"].socket.settimeout(0.2)
    with pytest.raises(TimeoutError):
        peers["a"].hear()


def test_an_address_in_use_is_a_clear_error(server: AgentServer) -> None:
    """Two engines on one socket."""
    with pytest.raises(EngineError, match="another engine listens there"):
        AgentServer(EmbeddedEngine(EngineConfig()), server.address, time.time_ns)


@pytest.mark.parametrize("text", ["", "unix:", "nowhere", "host:", ":99", "host:123456"])
def test_what_is_no_address(text: str) -> None:
    """The setting and the value are named."""
    with pytest.raises(ConfigError, match="listen"):
        parse_address(text)


def test_late_and_dead_records_are_handed_on(tmp_path: Path) -> None:
    """Whoever runs the engine keeps them: nothing is lost in silence."""
    engine = EmbeddedEngine(EngineConfig())
    dead_letters: list[tuple[str, DeadLetter]] = []
    server = AgentServer(
        engine, f"unix:{tmp_path}/e.sock", lambda: NOW, lambda *dead_letter: dead_letters.append(dead_letter)
    )
    server.start()
    engine.tick(NOW)
    peer = Peer(server.address)
    peer.send(_event(NOW - 30 * NS_PER_SECOND))
    peer.send(b"nonsense")
    while peer.hear().get("count") != 2:
        pass
    server.close()

    assert [(kind, dead_letter.reason) for kind, dead_letter in dead_letters] == [
        ("late", "late"),
        ("dead-letters", "undecodable"),
    ]
    assert dead_letters[0][1].data == _event(NOW - 30 * NS_PER_SECOND)


def test_it_may_be_closed_twice_and_after_its_thread_has_ended(tmp_path: Path) -> None:
    """The thread may see that it is to end before it is woken, and then it has closed the bell."""
    listening = AgentServer(EmbeddedEngine(EngineConfig()), f"unix:{tmp_path}/e.sock", lambda: NOW)
    listening.start()
    listening.close()
    listening.close()

    assert not listening.is_alive
    assert not (tmp_path / "e.sock").exists()


@pytest.mark.parametrize(("gate", "mode"), [(GateConfig(), 0o600), (GateConfig(uids=frozenset({4242})), 0o666)])
def test_the_socket_is_closed_to_others_unless_some_are_trusted(tmp_path: Path, gate: GateConfig, mode: int) -> None:
    """Whatever the umask; who may connect is asked who it is all the same."""
    path = tmp_path / "e.sock"
    engine = EmbeddedEngine(EngineConfig())
    listening = AgentServer(engine, f"unix:{path}", lambda: NOW, config=ServerConfig(gate=gate))
    assert stat.S_IMODE(path.stat().st_mode) == mode
    listening.start()
    listening.close()
