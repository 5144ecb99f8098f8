"""C4, who may say what: forged, stolen, replayed, missing, wrong; a model over an agent's connection; other users."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tests.attacks.registry import Outcome, attack
from tests.pipeline.identity.kit import LOOPBACK, NOW, REMOTE, Fleet, hello_of, met
from tests.pipeline.identity.wire import Wire, event
from tocsin.collectors.transport import sign_in as agents
from tocsin.models.documents import PEERS_SECTIONS, STEPS_SECTIONS, write_numbers
from tocsin.models.model_formats import accept
from tocsin.pipeline.identity.gate import Gate, GateConfig, local_credential
from tocsin.pipeline.identity.peers import Peer
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine, EngineConfig
from tocsin.pipeline.runtime.embedded.listener.listener import AgentServer
from tocsin.pipeline.runtime.embedded.listener.listener_config import ServerConfig
from tocsin.schemas.credential_store import CredentialStore, write_credentials
from tocsin.schemas.errors import IdentityError, ModelRefusedError
from tocsin.schemas.model_announcement import ModelAnnouncement, boundary_after, content_hash, withdrawal
from tocsin.schemas.sign_in import TAG_BYTES
from tocsin.schemas.wire.codec import encode


@dataclass
class _Ground:
    fleet: Fleet
    engine: EmbeddedEngine
    server: AgentServer

    def wire(self, host: str = "n0") -> Wire:
        return Wire(self.server.address, self.fleet.agent(host))

    @property
    def taken(self) -> int:
        return self.engine.counters["records_ok"]


@contextlib.contextmanager
def _ground() -> Iterator[_Ground]:
    """An engine on loopback with credentials for two hosts."""
    with tempfile.TemporaryDirectory() as folder:
        fleet, engine = Fleet(Path(folder)), EmbeddedEngine(EngineConfig(history=None))
        gate = GateConfig(CredentialStore(Path(folder) / "engine.json"), local_credential(NOW))
        server = AgentServer(engine, "127.0.0.1:0", lambda: NOW, config=ServerConfig(gate=gate))
        server.start()
        try:
            yield _Ground(fleet, engine, server)
        finally:
            server.close()


@attack("C4", "a record about another host")
def forged_host() -> Outcome:
    """An agent of n1 says that rank 5 of n0 has no number, and other things about others."""
    names = ("n0", "n1 ", "N1", "*", "n10", "n1.cluster", "\u006e\u0031\u200b")
    with _ground() as ground:
        wire = ground.wire("n1")
        for name in (*names, "n1"):
            wire.send(wire.seal(event(name)))
        answers = [wire.hear() for _ in names]
        while wire.hear().get("count") != len(names) + 1:
            pass
        taken = ground.taken
    reasons = {answer.get("reason") for answer in answers if answer["t"] == "refused"}
    return Outcome(len(names), f"{taken} record taken (its own), others {reasons}", held=taken == 1)


@attack("C4", "somebody without a secret")
def no_secret() -> Outcome:
    """Whatever is said without signing in: nothing is taken, each is told why."""
    hellos = (
        hello_of("n0"),
        {**hello_of("n0"), "key_id": "k"},
        {**hello_of("n0"), "key_id": "k", "nonce": "00" * 32, "challenge": "00" * 32, "proof": "00" * 32},
    )
    first = [event(), b"", b"{", b"{}", encode(withdrawal("peers", NOW)), *(json.dumps(one).encode() for one in hellos)]
    with _ground() as ground:
        reasons = []
        for data in first:
            wire = Wire(ground.server.address)
            wire.send(data)
            wire.send(event())
            reasons.append(wire.end())
        taken = ground.taken
    return Outcome(len(first), f"{taken} records taken, reasons {sorted(set(reasons))}", held=taken == 0)


def _wrong(ground: _Ground) -> Wire:
    wrong = replace(ground.fleet.keys["n0"], secret=b"w" * 32)
    write_credentials(ground.fleet.folder / f"{wrong.key_id}.json", (wrong,))
    return _hello_only(ground, ground.fleet.agent("n0", wrong))


def _stolen(ground: _Ground) -> Wire:
    stolen = replace(ground.fleet.keys["n1"], name="n0")
    write_credentials(ground.fleet.folder / f"{stolen.key_id}.json", (stolen,))
    return _hello_only(ground, ground.fleet.agent("n0", stolen))


def _hello_only(ground: _Ground, agent: agents.SignIn) -> Wire:
    wire = Wire(ground.server.address)
    wire.send(json.dumps(agent.answer(wire.challenge, NOW)).encode())
    wire.send(event() + agent.tag(event()))
    return wire


def _played_again(ground: _Ground) -> Wire:
    agent = ground.fleet.agent("n0")
    first = Wire(ground.server.address)
    heard = [json.dumps(agent.answer(first.challenge, NOW)).encode()]
    first.send(heard[0])
    agent.open(first.frame())
    first.socket.close()
    wire = Wire(ground.server.address)
    for data in (*heard, event() + agent.tag(event())):
        wire.send(data)
    return wire


def _spoilt(how: str) -> Callable[[_Ground], Wire]:
    def spoil(ground: _Ground) -> Wire:
        wire = ground.wire()
        sealed = wire.seal(event())
        if how == "order":
            sealed = wire.seal(event())
        wire.send(
            {"missing": event(), "cut": sealed[:-1], "changed": sealed[:40] + b"\xff" + sealed[41:]}.get(how, sealed)
        )
        return wire

    return spoil


@attack("C4", "wrong, stolen, replayed and spoilt secrets")
def wrong_secrets() -> Outcome:
    """Each is refused by its own name, and no record gets in."""
    wanted: dict[str, tuple[Callable[[_Ground], Wire], str]] = {
        "wrong": (_wrong, "proof_wrong"),
        "stolen from another host": (_stolen, "hello_host_mismatch"),
        "replayed": (_played_again, "replayed"),
        "code missing": (_spoilt("missing"), "mac_wrong"),
        "cut": (_spoilt("cut"), "mac_wrong"),
        "changed": (_spoilt("changed"), "mac_wrong"),
        "out of order": (_spoilt("order"), "out_of_order"),
    }
    got, taken = {}, 0
    for name, (make, _) in wanted.items():
        with _ground() as ground:
            got[name] = make(ground).end()
            taken += ground.taken
    bad = {name: reason for name, reason in got.items() if reason != wanted[name][1]}
    return Outcome(len(wanted), f"{taken} records taken, unexpected answers {bad}", held=taken == 0 and not bad)


@attack("C4", "every byte of a sealed message")
def flipped_bytes() -> Outcome:
    """One byte changed, anywhere: the connection ends, the record is not taken."""
    tries = len(event()) + TAG_BYTES
    held = True
    with tempfile.TemporaryDirectory() as folder:
        fleet = Fleet(Path(folder))
        gate = fleet.gate()
        for at in range(tries):
            agent = fleet.agent("n0")
            engine = met(gate, agent)
            sealed = bytearray(event() + agent.tag(event()))
            sealed[at] ^= 1 << (at % 8)
            with contextlib.suppress(IdentityError):
                engine.open(bytes(sealed))
                held = False
    return Outcome(tries, "none was let through" if held else "a changed message was let through", held=held)


@attack("C4", "other users of the engine's machine")
def other_users() -> Outcome:
    """Over loopback and the unix socket: only with a secret, and this machine's own counts from here only."""
    local = local_credential(NOW)
    with tempfile.TemporaryDirectory() as folder:
        write_credentials(Path(folder) / "local.json", (local,))
        search = agents.TokenSearch(str(Path(folder) / "local.json"))
        tries: list[tuple[Gate, agents.SignIn, Peer]] = [
            (Gate(), agents.SignIn(agents.TokenSearch(), hello_of("n0"), agents.UNIX), Peer(True, 4242, (4242,))),
            (Gate(), agents.SignIn(agents.TokenSearch(), hello_of("n0"), agents.TCP), LOOPBACK),
            (Gate(GateConfig(local=local)), agents.SignIn(search, hello_of("n0"), agents.TCP), REMOTE),
        ]
        let_in = 0
        for gate, agent, peer in tries:
            with contextlib.suppress(IdentityError):
                met(gate, agent, peer)
                let_in += 1
    return Outcome(len(tries), f"{let_in} of them were let in", held=let_in == 0)


@attack("C4", "a model over an agent's connection")
def model_from_agent() -> Outcome:
    """Refused by name, with a right secret."""
    with _ground() as ground:
        wire = ground.wire()
        wire.send(wire.seal(encode(withdrawal("peers", NOW))))
        reason = wire.hear()["reason"]
        known = ground.engine.models.status(NOW)
    return Outcome(1, f"refused: {reason}, {len(known)} models known", held=reason == "model_not_allowed" and not known)


@attack("C4", "a model that blinds")
def blinding_model() -> Outcome:
    """Numbers far from the program's own are out of range, whatever is announced."""
    tries = held = 0
    for name, sections in (("peers", PEERS_SECTIONS), ("steps", STEPS_SECTIONS)):
        for section, fields in sections.items():
            for field, bounds in fields.items():
                for value in (bounds.high * 1.01, bounds.low * 0.99, 1e12, 1e-12, -1.0):
                    payload = write_numbers({section: {field: value}})
                    since_ns = boundary_after(NOW)
                    digest = content_hash(payload)
                    tries += 1
                    try:
                        accept(ModelAnnouncement(NOW, name, "x", f"{name}/1", digest, payload, since_ns))
                    except ModelRefusedError:
                        held += 1
    return Outcome(tries, f"{held} of {tries} refused", held=held == tries)
