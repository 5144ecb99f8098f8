"""TLS on the agents' way: the certificate is the host's credential; the agent's own sink against the listener."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.openssl import make_authority, make_certificate
from tests.pipeline.identity.kit import Fleet
from tests.pipeline.identity.wire import Wire, event
from tocsin.collectors.clock import SteadyClock, SystemClock
from tocsin.collectors.transport.outbox import SinkConfig
from tocsin.collectors.transport.sign_in import TokenSearch
from tocsin.collectors.transport.socket_sink import SocketSink
from tocsin.collectors.transport.spool import MemorySpool
from tocsin.pipeline.identity.gate import GateConfig
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine, EngineConfig
from tocsin.pipeline.runtime.embedded.listener.admission import Admission
from tocsin.pipeline.runtime.embedded.listener.listener import AgentServer
from tocsin.pipeline.runtime.embedded.listener.listener_config import ServerConfig
from tocsin.schemas.credential_store import CredentialStore
from tocsin.schemas.errors import ConfigError
from tocsin.schemas.records import Event, EventSource, JobKey, Severity
from tocsin.schemas.tls import TlsFiles, TlsStream


@pytest.fixture(scope="module")
def pems(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two authorities, ours and a rogue one; certificates of engine and hosts by each."""
    folder = tmp_path_factory.mktemp("tls")
    for authority in ("ca", "rogue"):
        make_authority(folder, authority)
        for name, names in (("engine", "IP:127.0.0.1"), ("n0", "DNS:n0"), ("n1", "DNS:n1")):
            make_certificate(folder, authority, f"{authority}-{name}", name, names)
    return folder


def files(pems: Path, name: str, authority: str = "ca") -> TlsFiles:
    """An agent's, or the engine's, files."""
    return TlsFiles(str(pems / f"{name}.pem"), str(pems / f"{name}.key"), str(pems / f"{authority}.pem"))


class Ground:
    """An engine with TLS."""

    def __init__(self, tls: TlsFiles, store: CredentialStore | None = None) -> None:
        self.engine = EmbeddedEngine(EngineConfig())
        config = ServerConfig(gate=GateConfig(store), tls=tls)
        self.server = AgentServer(self.engine, "127.0.0.1:0", time.time_ns, config=config)
        self.server.start()

    @property
    def taken(self) -> int:
        """Records that reached the engine."""
        return self.engine.counters["records_ok"]


@pytest.fixture
def ground(pems: Path) -> Iterator[Ground]:
    """An engine that asks for certificates."""
    made = Ground(files(pems, "ca-engine"))
    yield made
    made.server.close()


@contextlib.contextmanager
def sink(address: str, host: str, tls: TlsFiles, tokens: TokenSearch | None = None) -> Iterator[SocketSink]:
    """A host's agent."""
    config = SinkConfig(address, host, "1", tokens or TokenSearch(), tls)
    made = SocketSink(config, MemorySpool(1 << 24), SteadyClock(SystemClock()), lambda: None)
    made.start()
    try:
        yield made
    finally:
        made.close(0.1)


def said(host: str, number: int = 0, size: int = 0) -> Event:
    """A record of a host."""
    payload = {"text": "x" * size}
    ts_ns = time.time_ns() + number
    return Event(JobKey("c", "j"), host, ts_ns, 0, EventSource.PROCESS, "hello", Severity.INFO, payload)


def wait(condition: Callable[[], object], seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "did not come"
        time.sleep(0.01)


def test_a_certificate_is_the_hosts_credential(ground: Ground, pems: Path) -> None:
    """Also records that are many TLS records long, and more than the socket takes at once."""
    with sink(ground.server.address, "n0", files(pems, "ca-n0")) as agent:
        for number in range(40):
            agent.put(said("n0", number, 200_000))
        wait(lambda: ground.taken == 40)
        wait(lambda: agent.status().acked_count == 40)
        assert agent.status().offset.is_known
        assert ground.server.connected_hosts == ("n0",)


@pytest.mark.parametrize(
    ("host", "certificate", "authority", "reason"),
    [
        ("n1", "ca-n0", "ca", "certificate_refused"),
        ("n0", "rogue-n0", "ca", ""),
        ("n0", "", "ca", ""),
    ],
)
def test_who_has_no_certificate_of_that_host_is_not_let_in(
    ground: Ground, pems: Path, host: str, certificate: str, authority: str, reason: str
) -> None:
    own = files(pems, certificate, authority) if certificate else TlsFiles("", "", str(pems / "ca.pem"))
    with sink(ground.server.address, host, own) as agent:
        agent.put(said(host))
        wait(lambda: ground.server.counters["connections"] > 1)
        assert not agent.status().is_connected
    assert ground.taken == 0
    assert not reason or ground.server.counters[f"closed_{reason}"]


def test_an_agent_tells_nothing_to_an_engine_of_another_authority(pems: Path, caplog: pytest.LogCaptureFixture) -> None:
    rogue = Ground(TlsFiles(str(pems / "rogue-engine.pem"), str(pems / "rogue-engine.key")))
    with sink(rogue.server.address, "n0", files(pems, "ca-n0")) as agent:
        agent.put(said("n0"))
        wait(lambda: rogue.server.counters["connections"] > 1)
        wait(lambda: any("CERTIFICATE_VERIFY_FAILED" in str(getattr(one, "error", "")) for one in caplog.records))
    rogue.server.close()
    assert rogue.taken == 0


def test_tls_and_a_secret_go_together(pems: Path, tmp_path: Path) -> None:
    """TLS keeps it private, the secret tells the host; with both, both must name it."""
    fleet = Fleet(tmp_path)
    made = Ground(
        TlsFiles(str(pems / "ca-engine.pem"), str(pems / "ca-engine.key")), CredentialStore(tmp_path / "engine.json")
    )
    tokens = TokenSearch(str(tmp_path / f"{fleet.keys['n0'].key_id}.json"))
    with sink(made.server.address, "n0", TlsFiles("", "", str(pems / "ca.pem")), tokens) as agent:
        agent.put(said("n0"))
        wait(lambda: made.taken == 1)
    with sink(made.server.address, "n0", TlsFiles("", "", str(pems / "ca.pem"))):
        wait(lambda: made.server.counters["connections"] >= 2)
    made.server.close()
    assert made.taken == 1


def test_who_does_not_speak_tls_and_who_stalls_hold_up_nobody(ground: Ground, pems: Path) -> None:
    where = ("127.0.0.1", int(ground.server.address.rpartition(":")[2]))
    stalling = [socket.create_connection(where) for _ in range(20)]
    stalling[0].sendall(b"\x16\x03\x01")
    plain = socket.create_connection(where)
    plain.sendall(b"\x10\x00\x00\x00hello, who is it")
    with sink(ground.server.address, "n0", files(pems, "ca-n0")) as agent:
        agent.put(said("n0"))
        wait(lambda: ground.taken == 1)
    for one in (*stalling, plain):
        one.close()


def test_records_of_another_host_over_a_certificate_are_refused(ground: Ground, pems: Path) -> None:
    context = files(pems, "ca-n0").client_context()
    where = ("127.0.0.1", int(ground.server.address.rpartition(":")[2]))
    stream = context.wrap_socket(socket.create_connection(where), server_hostname="127.0.0.1")
    wire = Wire(ground.server.address, stream=stream)
    wire.send(b'{"t":"hello","host":"n0","agent_version":"1"}')
    assert wire.hear()["t"] == "welcome"
    wire.send(event("n1", time.time_ns()))
    assert wire.hear()["reason"] == "record_host_mismatch"
    assert isinstance(stream, ssl.SSLSocket)

    stream.close()


@pytest.mark.parametrize("broken", ["certificate", "key", "authorities"])
def test_a_file_that_cannot_be_used_is_named(pems: Path, tmp_path: Path, broken: str) -> None:
    (tmp_path / "bad.pem").write_text("no PEM")
    good = files(pems, "ca-engine")
    values = {"certificate": good.certificate, "key": good.key, "authorities": good.authorities}
    tls = TlsFiles(**{**values, broken: str(tmp_path / "bad.pem")})
    with pytest.raises(ConfigError, match="--tls-"):
        tls.server_context()
    with pytest.raises(ConfigError, match="--tls-"):
        tls.client_context()


def test_a_renewed_certificate_is_shown_without_a_restart(pems: Path, tmp_path: Path) -> None:
    """And a broken one changes nothing, and is said."""
    for name in ("pem", "key"):
        (tmp_path / f"engine.{name}").write_bytes((pems / f"rogue-engine.{name}").read_bytes())
    clock = [0.0]
    admission = Admission(GateConfig(), TlsFiles(f"{tmp_path}/engine.pem", f"{tmp_path}/engine.key"), lambda: 0)

    def shown() -> bytes:
        near, far = socket.socketpair()
        stream = admission.wrap(_as_tcp(near))
        assert isinstance(stream, TlsStream)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        found: list[bytes] = []

        def look() -> None:
            with context.wrap_socket(far, server_hostname="x") as client:
                found.append(client.getpeercert(binary_form=True) or b"")

        thread = threading.Thread(target=look)
        thread.start()
        stream.setblocking(True)
        stream.shake_hands()
        thread.join(60)
        stream.close()
        return found[0]

    def later() -> None:
        clock[0] += 6.0
        list(admission.cut_off((), clock[0]))

    first = shown()
    (tmp_path / "engine.pem").write_text("no PEM")
    later()
    assert admission.trouble
    assert shown() == first
    for name in ("pem", "key"):
        (tmp_path / f"engine.{name}").write_bytes((pems / f"ca-engine.{name}").read_bytes())
    later()
    assert admission.trouble == ""
    assert shown() != first


def _as_tcp(connection: socket.socket) -> socket.socket:
    """The same socket, said to be TCP: over a unix socket the engine speaks no TLS."""
    return socket.socket(socket.AF_INET, fileno=connection.detach())
