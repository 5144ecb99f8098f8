"""status and incidents over the network: who may ask, and that whoever may ask can do nothing else."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.identity.kit import hello_of
from tests.pipeline.identity.wire import Wire, event
from tests.pipeline.waiting import until
from tocsin.cli.incident_text import as_json
from tocsin.cli.main import main
from tocsin.collectors.transport.sign_in import TCP, SignIn, TokenSearch
from tocsin.pipeline.identity.gate import GateConfig
from tocsin.pipeline.runtime.embedded.engine import EmbeddedEngine, EngineConfig
from tocsin.pipeline.runtime.embedded.listener.listener import AgentServer
from tocsin.pipeline.runtime.embedded.listener.listener_config import ServerConfig
from tocsin.pipeline.runtime.embedded.listener.readers import incidents_answerer, jobs_answerer
from tocsin.schemas.credential_store import CredentialStore, read_credentials, write_credentials
from tocsin.schemas.credentials import Credential, Role, new_credential
from tocsin.schemas.records import Tick
from tocsin.schemas.wire.codec import encode

ROW = {
    "verdict_id": "0123456789abcdef",
    "what": "hangs",
    "state": "confirmed",
    "machine": "n3",
    "ranks": "3",
    "since": "2026-01-01 00:00:00.000",
    "detected": "2026-01-01 00:00:05",
    "expires": "2199-01-01 00:00:00",
    "why": "process_frozen: …",
    "action": "restart n3 (proposed, dry run)",
    "reason": "r",
    "cause": "process_frozen",
    "job": "job-1",
    "attempt": 0,
    "cluster": "c",
    "update_number": 1,
    "summary": "frozen",
    "confidence": 0.9,
    "evidence_list": ["7 peers wait"],
}


class Ground:
    """An engine that listens on the network, and credentials of a reader and an agent.

    Attributes:
        asked: SQL that reached the database.
    """

    def __init__(self, folder: Path) -> None:
        now_ns = time.time_ns()
        self.folder = folder
        self.store = folder / "engine.json"
        self.reader, self.agent = (
            self.with_file(new_credential(role, name, now_ns))
            for role, name in ((Role.READER, "ops"), (Role.AGENT, "n0"))
        )
        write_credentials(self.store, (self.reader, self.agent))
        self.engine = EmbeddedEngine(EngineConfig())
        gate = GateConfig(CredentialStore(self.store))
        self.server = AgentServer(self.engine, "127.0.0.1:0", time.time_ns, config=ServerConfig(gate=gate))
        self.asked: list[str] = []
        self.tick_age_seconds = 0.5
        self.server.readers.answerers = {
            "status": lambda _: self.status(),
            "health": lambda _: {"tick_age_seconds": self.tick_age_seconds, "live": "ok"},
            "incidents": incidents_answerer(self.query),
            "jobs": jobs_answerer(self.query, lambda: {"quiet"}),
            "huge": lambda _: {"text": "x" * (4 << 20)},
        }
        self.server.start()

    def with_file(self, credential: Credential) -> Credential:
        write_credentials(self.folder / f"{credential.name}.json", (credential,))
        return credential

    def query(self, sql: str, _fmt: str) -> bytes:
        self.asked.append(sql)
        return b"" if "host_health" in sql or "unhex('7175696574')" in sql else json.dumps(ROW).encode() + b"\n"

    def status(self) -> dict[str, Any]:
        facts = {"tick_age_seconds": self.tick_age_seconds, "live": "ok", "is_ready": True, "pages": [], "events": []}
        hosts = list(self.server.connected_hosts)
        return {**facts, "now_ns": 0, "letters_dropped": 0, "jobs": [], "connected_hosts": hosts, "dead_letters": []}

    def ask(self, *words: str, token: str = "ops") -> int:
        file = self.folder / f"{token}.json"
        return main([*words, "--engine", self.server.address, "--token-file", str(file)])

    def wire(self, credential: Credential) -> Wire:
        """A connection of whoever has a credential."""
        search = TokenSearch(str(self.folder / f"{credential.name}.json"), roles=(credential.role,))
        return Wire(self.server.address, SignIn(search, hello_of(credential.name), TCP))


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    made = Ground(tmp_path)
    yield made
    made.server.close()


Captured = pytest.CaptureFixture[str]


def test_a_reader_sees_incidents_and_status(ground: Ground, capsys: Captured) -> None:
    assert ground.ask("incidents") == 0
    assert "restart process of rank 3 of job job-1" in capsys.readouterr().out
    assert ground.ask("incidents", "show", "0123") == 0
    assert "7 peers wait" in capsys.readouterr().out
    assert ground.ask("incidents", "--json") == 0
    reported = json.loads(capsys.readouterr().out)
    assert reported == as_json(ROW)
    assert reported["since"].endswith("Z")
    assert ground.ask("status") == 0
    assert "Connected agents: none." in capsys.readouterr().out, "a reader is no agent"
    assert ground.engine.counters["records_ok"] == 0


def test_a_job_is_known_or_refused_as_on_the_engines_machine(ground: Ground, capsys: Captured) -> None:
    assert ground.ask("incidents", "--job", "quiet") == 0
    assert capsys.readouterr().out == "nothing is wrong now in job quiet\n"


def test_an_engine_that_judges_nothing_is_an_error(ground: Ground, capsys: Captured) -> None:
    ground.tick_age_seconds = 60.0
    for command in ("status", "incidents"):
        assert ground.ask(command) == 2
        assert "it judges nothing now" in capsys.readouterr().err


def _wrong_secret(ground: Ground) -> None:
    ground.with_file(replace(ground.reader, secret=bytes(32)))


def _unknown_key(ground: Ground) -> None:
    ground.with_file(new_credential(Role.READER, "ops", time.time_ns()))


def _revoked(ground: Ground) -> None:
    wire = ground.wire(ground.reader)
    write_credentials(ground.store, (replace(ground.reader, revoked_ns=time.time_ns()), ground.agent))
    assert wire.end() == "key_revoked", "who is connected is cut off"


def _missing(ground: Ground) -> None:
    (ground.folder / "ops.json").unlink()


def _agents(ground: Ground) -> None:
    write_credentials(ground.folder / "ops.json", (ground.agent,))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_wrong_secret, "proof_wrong"),
        (_unknown_key, "unknown_key"),
        (_revoked, "key_revoked"),
        (_missing, "ops.json"),
        (_agents, "a credential of role reader"),
    ],
)
@pytest.mark.parametrize("command", ["status", "incidents"])
def test_who_may_not_ask_is_told_why_and_sees_nothing(
    ground: Ground, capsys: Captured, change: Callable[[Ground], None], said: str, command: str
) -> None:
    change(ground)
    assert ground.ask(command) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert len(captured.err.splitlines()) == 1
    assert said in captured.err
    assert not ground.asked


def test_an_impostor_is_asked_nothing(ground: Ground, capsys: Captured) -> None:
    """Who listens there and does not know the secret gets the hello, and no question."""
    heard = bytearray()
    listener = socket.create_server(("127.0.0.1", 0))

    def pose() -> None:
        with listener.accept()[0] as peer:
            for message in ({"t": "challenge", "v": 1, "by": "secret", "nonce": "00" * 32}, {"t": "welcome"}):
                text = json.dumps(message).encode()
                peer.sendall(len(text).to_bytes(4, "little") + text)
            while part := peer.recv(4096):
                heard.extend(part)

    thread = threading.Thread(target=pose)
    thread.start()
    address = f"127.0.0.1:{listener.getsockname()[1]}"
    assert main(["incidents", "--engine", address, "--token-file", str(ground.folder / "ops.json")]) == 2
    thread.join(60)
    listener.close()
    assert "does not know the secret" in capsys.readouterr().err
    assert b'"ask"' not in heard
    assert ground.reader.secret.hex().encode() not in heard


def test_without_a_token_nothing_is_asked(ground: Ground, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOCSIN_TOKEN_FILE", raising=False)
    assert main(["incidents", "--engine", ground.server.address]) == 2
    assert "--role reader" in capsys.readouterr().err
    assert main(["incidents", "--engine", ground.server.address, "--data", "/nowhere"]) == 2
    assert "--data" in capsys.readouterr().err


def test_a_reader_sends_no_records(ground: Ground) -> None:
    wire = ground.wire(ground.reader)
    tick = encode(Tick(time.time_ns()))
    for data in (event("ops", time.time_ns()), event("n0", time.time_ns()), tick):
        wire.send(wire.seal(data))
        while (said := wire.hear())["t"] == "ack":
            pass
        assert (said["t"], said["reason"]) == ("refused", "role_not_allowed")
    wire.send(wire.seal(b'{"t":"ask","cmd":"health"}'))
    while (said := wire.hear())["t"] == "ack":
        pass
    assert said["t"] == "answer", "it may go on to ask"
    assert ground.engine.counters["records_ok"] == 0
    assert not ground.engine.jobs()


def test_only_readers_ask_and_only_what_may_be_asked(ground: Ground) -> None:
    wire = ground.wire(ground.agent)
    wire.send(wire.seal(b'{"t":"ask","cmd":"status"}'))
    said = wire.hear()
    assert (said["ok"], said["reason"]) == (False, "role_not_allowed")
    wire = ground.wire(ground.reader)
    for cmd in ("sql", "model", "record", None, ["status"]):
        wire.send(wire.seal(json.dumps({"t": "ask", "cmd": cmd, "query": "SELECT 1"}).encode()))
        said = wire.hear()
        assert (said["ok"], said["reason"]) == (False, "unknown_command")
    assert not ground.asked


def test_an_answer_longer_than_an_agents_outbox_arrives(ground: Ground) -> None:
    wire = ground.wire(ground.reader)
    wire.send(wire.seal(b'{"t":"ask","cmd":"huge"}'))
    assert len(wire.hear()["text"]) == 4 << 20


def test_a_reader_that_leaves_before_its_answer_harms_nobody(ground: Ground, capsys: Captured) -> None:
    wire = ground.wire(ground.reader)
    wire.send(wire.seal(b'{"t":"ask","cmd":"huge"}'))
    wire.socket.close()
    until(lambda: ground.server.counters["closed_closed_by_agent"] + ground.server.counters["closed_broken"] > 0)
    assert ground.ask("status") == 0


def test_the_token_that_is_issued_lets_in(ground: Ground, capsys: Captured) -> None:
    issued = ground.folder / "issued.json"
    arguments = ["token", "issue", "night-shift", "--role", "reader", "--out", str(issued)]
    assert main([*arguments, "--credentials", str(ground.store)]) == 0
    assert read_credentials(issued)[0].role is Role.READER
    assert ground.ask("incidents", token="issued") == 0
