"""The listener with identity, over real sockets: who is heard, who is turned away with which reason."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.pipeline.identity.kit import NOW, Fleet
from tests.pipeline.identity.wire import Wire, event
from tests.pipeline.waiting import until
from tocsin.pipeline.identity.gate import GateConfig
from tocsin.pipeline.incidents.closing import close_event
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine, EngineConfig
from tocsin.pipeline.runtime.embedded.listener.listener import AgentServer
from tocsin.pipeline.runtime.embedded.listener.listener_config import ServerConfig
from tocsin.schemas.credential_store import CredentialStore, write_credentials
from tocsin.schemas.credentials import Role, new_credential
from tocsin.schemas.model_announcement import withdrawal
from tocsin.schemas.reasons import IdentityRefusal as Why
from tocsin.schemas.records import JobKey
from tocsin.schemas.wire.codec import encode


class Ground:
    """An engine that listens, and its fleet's credentials."""

    def __init__(self, folder: Path, address: str = "127.0.0.1:0", *, is_player_allowed: bool = False) -> None:
        self.player = new_credential(Role.PLAYER, "*", NOW)
        self.fleet = Fleet(folder, self.player)
        self.engine = EmbeddedEngine(EngineConfig())
        gate = GateConfig(CredentialStore(folder / "engine.json"), is_player_allowed=is_player_allowed)
        self.server = AgentServer(self.engine, address, lambda: NOW, config=ServerConfig(gate=gate))
        self.server.start()

    def wire(self, host: str = "n0") -> Wire:
        """A host's own agent, signed in."""
        return Wire(self.server.address, self.fleet.agent(host))

    @property
    def taken(self) -> int:
        """Records that reached the engine."""
        return self.engine.counters["records_ok"]


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    made = Ground(tmp_path)
    yield made
    made.server.close()


def test_an_honest_agent_is_heard(ground: Ground) -> None:
    wire = ground.wire()
    assert wire.welcome == {"t": "welcome", "engine_ns": NOW}
    for number in range(3):
        wire.send(wire.seal(event(ts_ns=NOW + number)))
    while wire.hear() != {"t": "ack", "count": 3}:
        pass
    wire.send(wire.seal(b'{"t":"clock","t0":5}'))
    assert wire.hear() == {"t": "clock", "t0": 5, "engine_ns": NOW}
    assert ground.taken == 3
    assert ground.server.connected_hosts == ("n0",)


def test_a_probe_comes_sealed(ground: Ground) -> None:
    wire = ground.wire()
    ground.server.probe("n0", {"request_id": "r", "probe": "ring", "rank": 1})
    assert wire.hear() == {"t": "probe", "request_id": "r", "probe": "ring", "rank": 1}


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (event(), Why.IDENTITY_MISSING),
        (b'{"t":"clock","t0":1}', Why.IDENTITY_MISSING),
        (b"", Why.IDENTITY_MISSING),
        (b"{", Why.IDENTITY_MISSING),
        (b"[" * 4000, Why.IDENTITY_MISSING),
        (b'{"t":"hello"}', Why.BAD_HELLO),
        (b'{"t":"hello","host":"n0","agent_version":"0.9"}', Why.IDENTITY_MISSING),
        (encode(withdrawal("peers", NOW)), Why.IDENTITY_MISSING),
    ],
)
def test_whoever_does_not_sign_in_is_told_why_and_hung_up_on(ground: Ground, first: bytes, reason: str) -> None:
    """An agent of an older version, too: it logs ``refused``."""
    wire = Wire(ground.server.address)
    wire.send(first)
    assert wire.end() == reason
    assert ground.taken == 0
    assert ground.server.dead_letters[-1].reason == reason
    assert ground.server.dead_letters[-1].data == b""


def test_a_long_message_before_signing_in_is_not_waited_for(ground: Ground) -> None:
    wire = Wire(ground.server.address)
    wire.socket.sendall((1 << 20).to_bytes(4, "little"))
    wire.end()
    assert ground.server.dead_letters[-1].reason == "too_large"


def _spoilt(wire: Wire, how: str) -> bytes:
    """The next message, spoilt."""
    if how == "missing":
        return event()
    if how == "short":
        return b"TC"
    if how == "tampered":
        sealed = bytearray(wire.seal(event()))
        sealed[30] ^= 1
        return bytes(sealed)
    if how == "reordered":
        wire.seal(event())
        return wire.seal(event(ts_ns=NOW + 1))
    first = wire.seal(event())
    wire.send(first)
    return first


@pytest.mark.parametrize(
    ("how", "reason", "taken"),
    [
        ("missing", Why.MAC_WRONG, 0),
        ("short", Why.MAC_MISSING, 0),
        ("tampered", Why.MAC_WRONG, 0),
        ("reordered", Why.OUT_OF_ORDER, 0),
        ("replayed", Why.REPLAYED, 1),
    ],
)
def test_a_message_with_a_wrong_seal_ends_the_connection(ground: Ground, how: str, reason: str, taken: int) -> None:
    wire, other = ground.wire(), ground.wire("n1")
    wire.send(_spoilt(wire, how))
    assert wire.end() == reason
    assert ground.taken == taken
    other.send(other.seal(event("n1")))
    assert other.hear() == {"t": "ack", "count": 1}


def test_a_whole_session_played_again_is_refused(ground: Ground) -> None:
    """Somebody on the network heard hello and records of n0 and sends them to a new connection."""
    agent = ground.fleet.agent("n0")
    wire = Wire(ground.server.address)
    heard = [json.dumps(agent.answer(wire.challenge, NOW)).encode()]
    wire.send(heard[0])
    agent.open(wire.frame())
    heard.append(event() + agent.tag(event()))
    wire.send(heard[1])
    wire.frame()
    assert ground.taken == 1
    thief = Wire(ground.server.address)
    for frame in heard:
        thief.send(frame)
    assert thief.end() == Why.REPLAYED
    assert ground.taken == 1


def test_a_stolen_secret_does_not_speak_for_another_host(ground: Ground) -> None:
    stolen = replace(ground.fleet.keys["n1"], name="n0")
    write_credentials(ground.fleet.folder / f"{stolen.key_id}.json", (stolen,))
    wire = Wire(ground.server.address)
    wire.send(json.dumps(ground.fleet.agent("n0", stolen).answer(wire.challenge, NOW)).encode())
    assert wire.end() == Why.HELLO_HOST


def test_a_record_about_another_host_is_a_dead_letter_and_the_connection_goes_on(ground: Ground) -> None:
    wire = ground.wire()
    wire.send(wire.seal(event("n1")))
    assert (wire.hear()["reason"], wire.hear()) == (Why.RECORD_HOST, {"t": "ack", "count": 1})
    wire.send(wire.seal(event("n0")))
    assert wire.hear() == {"t": "ack", "count": 2}
    assert ground.taken == 1
    assert ground.server.dead_letters[-1].data == event("n1")


def test_a_model_is_refused_by_name(ground: Ground) -> None:
    wire = ground.wire()
    wire.send(wire.seal(encode(withdrawal("peers", NOW))))
    assert wire.hear()["reason"] == Why.MODEL_REFUSED
    assert ground.engine.models.status(NOW) == []


def test_an_agent_that_closes_an_incident_sends_a_dead_letter(ground: Ground) -> None:
    wire, reported = ground.wire(), encode(close_event(JobKey("c", "j"), "v1", "seen", "uid:0", NOW))
    wire.send(wire.seal(reported))
    assert wire.hear()["reason"] == Why.CLOSE_REFUSED
    assert ground.server.dead_letters[-1].data == reported
    assert ground.taken == 0


def test_whoever_is_revoked_while_connected_is_cut_off(ground: Ground) -> None:
    revoked, other = ground.wire("n0"), ground.wire("n1")
    kept = tuple(replace(one, revoked_ns=NOW if one.name == "n0" else 0) for one in ground.fleet.all)
    write_credentials(ground.fleet.folder / "engine.json", kept)
    assert revoked.end() == Why.KEY_REVOKED
    other.send(other.seal(event("n1")))
    assert other.hear() == {"t": "ack", "count": 1}


def test_a_player_speaks_for_all_hosts_where_it_is_allowed(tmp_path: Path, ground: Ground) -> None:
    refused = Wire(ground.server.address)
    hello = ground.fleet.agent("desk", ground.player).answer(refused.challenge, NOW)
    refused.send(json.dumps(hello).encode())
    assert refused.end() == Why.PLAYER_REFUSED
    (tmp_path / "open").mkdir()
    allowing = Ground(tmp_path / "open", is_player_allowed=True)
    wire = Wire(allowing.server.address, allowing.fleet.agent("desk", allowing.player))
    for number in range(100):
        wire.send(wire.seal(event(f"host-{number}")))
    while wire.hear() != {"t": "ack", "count": 100}:
        pass
    assert allowing.taken == 100
    assert allowing.server.connected_hosts == ("player:desk",)
    allowing.server.close()


def test_ipv6(tmp_path: Path) -> None:
    made = Ground(tmp_path, "[::1]:0")
    assert made.server.address.startswith("[::1]:")
    wire = Wire(made.server.address, made.fleet.agent("n0"))
    assert wire.welcome["t"] == "welcome"
    made.server.close()


def test_a_credentials_file_that_broke_cuts_nobody_off(ground: Ground, caplog: pytest.LogCaptureFixture) -> None:
    wire = ground.wire()
    (ground.fleet.folder / "engine.json").write_text("{")
    until(lambda: "credentials not read" in caplog.messages)
    wire.send(wire.seal(event()))
    assert wire.hear() == {"t": "ack", "count": 1}
    assert ground.wire("n1").welcome["t"] == "welcome"
