"""The agent's way to an engine that asks who it is: what it sends to whom, and what it keeps."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.collectors.peer import EnginePeer, wait_until
from tocsin.collectors.clock import SteadyClock, SystemClock
from tocsin.collectors.transport.outbox import SinkConfig
from tocsin.collectors.transport.sign_in import TokenSearch
from tocsin.collectors.transport.sink import Probe
from tocsin.collectors.transport.socket_sink import SocketSink
from tocsin.collectors.transport.spool import MemorySpool
from tocsin.pipeline.identity.gate import Gate, GateConfig
from tocsin.schemas.credential_store import CredentialStore, write_credentials
from tocsin.schemas.credentials import Credential, Role, new_credential
from tocsin.schemas.records import Event, EventSource, JobKey, Severity


class Bench:
    """An engine that wants a secret, and agents."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.key = new_credential(Role.AGENT, "h", time.time_ns())
        self.issue(self.key)
        self.hold(self.key)
        self.gate = Gate(GateConfig(CredentialStore(folder / "engine.json")))
        self.sinks: list[SocketSink] = []

    def issue(self, *keys: Credential) -> None:
        """What the engine knows."""
        write_credentials(self.folder / "engine.json", keys)

    def hold(self, *keys: Credential) -> None:
        """What the agent holds."""
        write_credentials(self.folder / "token.json", keys)

    def engine(self, gate: Gate | None = None) -> EnginePeer:
        return EnginePeer(self.folder / "engine", gate or self.gate)

    def sink(self, token: str = "token.json") -> SocketSink:
        search = TokenSearch(str(self.folder / token))
        config = SinkConfig(f"unix:{self.folder}/engine", "h", "1", search)
        made = SocketSink(config, MemorySpool(1 << 20), SteadyClock(SystemClock()), lambda: None)
        made.start()
        self.sinks.append(made)
        return made


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    for sink in made.sinks:
        sink.close(0.1)


def _event(number: int = 0) -> Event:
    ts_ns = time.time_ns() + number
    return Event(JobKey("c", "j"), "h", ts_ns, 0, EventSource.PROCESS, "hello", Severity.INFO)


def _heard(sink: SocketSink, said: list[object]) -> bool:
    said.extend(sink.poll())
    return bool(said)


def _errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [str(getattr(record, "error", "")) for record in caplog.records]


def test_everything_goes_sealed_and_comes_back_sealed(bench: Bench) -> None:
    engine, sink = bench.engine(), bench.sink()
    for number in range(50):
        sink.put(_event(number))
    wait_until(lambda: sink.status().acked_count == 50)
    assert len(engine.frames) == 50
    assert sink.status().offset.is_known
    engine.say({"t": "probe", "request_id": "r", "probe": "ring", "rank": 1})
    said: list[object] = []
    wait_until(lambda: _heard(sink, said))
    assert said == [Probe("r", "ring", 1, None)]
    engine.close()


def test_nothing_is_lost_over_a_broken_connection(bench: Bench) -> None:
    engine, sink = bench.engine(), bench.sink()
    engine.acks = False
    sink.put(_event(1))
    wait_until(lambda: engine.frames)
    engine.hang_up()
    engine.acks = True
    sink.put(_event(2))
    wait_until(lambda: sink.status().acked_count == 2)
    assert len(set(engine.frames)) == 2
    engine.close()


def _impostor(bench: Bench) -> Gate:
    """An engine that does not know the secret, and lets everybody in all the same."""
    wrong = replace(bench.key, secret=b"w" * 32)
    path = bench.folder / "impostor.json"
    write_credentials(path, (wrong,))
    return Gate(GateConfig(CredentialStore(path)))


def test_an_impostor_gets_not_one_record(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tocsin.pipeline.identity.gate.is_same", lambda *_: True)
    engine, sink = bench.engine(_impostor(bench)), bench.sink()
    sink.put(_event())
    wait_until(lambda: any("engine_unproven" in error for error in _errors(caplog)))
    assert engine.frames == []
    assert sink.status().acked_count == 0
    engine.close()


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (lambda bench: bench.issue(), "unknown_key"),
        (lambda bench: bench.issue(replace(bench.key, revoked_ns=1)), "key_revoked"),
        (lambda bench: bench.issue(replace(bench.key, name="other")), "hello_host_mismatch"),
        (lambda bench: bench.issue(replace(bench.key, secret=b"w" * 32)), "proof_wrong"),
        (lambda bench: (bench.folder / "token.json").chmod(0o644), "closed to others"),
        (lambda bench: (bench.folder / "token.json").unlink(), "No such file"),
        (lambda bench: bench.hold(replace(bench.key, name="other")), "an agent on 'h'"),
    ],
)
def test_who_is_not_let_in_spools_and_says_why_and_comes_later(
    bench: Bench, caplog: pytest.LogCaptureFixture, spoil: Callable[[Bench], object], reason: str
) -> None:
    caplog.set_level(logging.WARNING)
    spoil(bench)
    server = _Server(bench)
    sink = bench.sink()
    sink.put(_event())
    wait_until(lambda: any(reason in error for error in _errors(caplog)))
    bench.issue(bench.key)
    (bench.folder / "token.json").unlink(missing_ok=True)
    bench.hold(bench.key)
    wait_until(lambda: server.taken == 1, 60)
    server.close()


class _Server:
    """The engine's own listener behind a secret, whoever's process asks."""

    def __init__(self, bench: Bench) -> None:
        from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine, EngineConfig
        from tocsin.pipeline.runtime.embedded.listener.listener import AgentServer
        from tocsin.pipeline.runtime.embedded.listener.listener_config import ServerConfig

        self._engine = EmbeddedEngine(EngineConfig())
        gate = GateConfig(CredentialStore(bench.folder / "engine.json"))
        address = f"unix:{bench.folder}/engine"
        self._server = AgentServer(self._engine, address, time.time_ns, config=ServerConfig(gate=gate))
        self._server.start()

    @property
    def taken(self) -> int:
        return self._engine.counters["records_ok"]

    def close(self) -> None:
        self._server.close()


def test_an_engine_that_proves_nothing_gets_nothing(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """It asks for no secret and bids welcome; the agent has one, and insists."""
    engine = bench.engine()
    sink = bench.sink()
    wait_until(lambda: sink.status().is_connected)
    engine.hang_up()
    engine.gate = None
    sink.put(_event())
    wait_until(lambda: engine.controls)
    wait_until(lambda: any("engine_unproven" in error for error in _errors(caplog)))
    assert engine.frames == []
    assert json.dumps(engine.controls).find(bench.key.secret.hex()) < 0
    engine.close()
