"""maintenance, feedback and incidents close over the network: operators may, and who did it is kept."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipeline.identity.kit import hello_of
from tests.pipeline.identity.wire import Wire, event
from tests.pipeline.runtime.embedded.noted_life import NotedLife
from tocsin.cli.main import main
from tocsin.collectors.transport.sign_in import TCP, SignIn, TokenSearch
from tocsin.pipeline.identity.gate import GateConfig
from tocsin.pipeline.lab.testing import JobShape
from tocsin.pipeline.runtime.embedded.listener.listener import AgentServer
from tocsin.pipeline.runtime.embedded.listener.listener_config import ServerConfig
from tocsin.pipeline.runtime.embedded.note_journal import FILE_NAME, NoteJournal
from tocsin.schemas.credential_store import CredentialStore, write_credentials
from tocsin.schemas.credentials import ANY_NAME, Credential, Role, new_credential
from tocsin.schemas.records import Tick
from tocsin.schemas.wire.codec import encode

ROLES = {name: role for role in Role if role is not Role.ENGINE for name in (f"some-{role.value}",)}
CHANGES = ("maintenance", "maintenance_end", "feedback", "incident_close")
Captured = pytest.CaptureFixture[str]


class Ground(NotedLife):
    """A noted life whose requests are also answered on a TCP address, with a credential of each role.

    Attributes:
        network: the address's server.
        holders: credential of each name.
    """

    def attached(self) -> None:
        super().attached()
        now_ns = time.time_ns()
        self.holders = {name: new_credential(role, name, now_ns) for name, role in ROLES.items()}
        self.holders["any"] = new_credential(Role.OPERATOR, ANY_NAME, now_ns)
        for name, one in self.holders.items():
            write_credentials(self.file(name), (one,))
        write_credentials(self.folder / "engine.json", tuple(self.holders.values()))
        gate = GateConfig(CredentialStore(self.folder / "engine.json"), is_player_allowed=True)
        config = ServerConfig(gate=gate)
        self.network = AgentServer(self.service.engine, "127.0.0.1:0", time.time_ns, config=config)
        ours = self.service.server.readers
        self.network.readers.answerers, self.network.readers.changers = ours.answerers, ours.changers
        self.network.start()

    def end(self) -> None:
        self.network.close()
        super().end()

    def file(self, name: str) -> Path:
        return self.folder / f"{name}.json"

    def ask(self, *words: str, name: str = "some-operator") -> int:
        return main([*words, "--engine", self.network.address, "--token-file", str(self.file(name))])

    def wire(self, credential: Credential) -> Wire:
        """A connection of whoever has a credential."""
        name = credential.name if credential.name != ANY_NAME else "laptop"
        files = [one for one, held in self.holders.items() if held == credential]
        search = TokenSearch(str(self.file(files[0])), roles=(credential.role,))
        return Wire(self.network.address, SignIn(search, hello_of(name), TCP))


@pytest.fixture
def ground(tmp_path: Path) -> Iterator[Ground]:
    made = Ground(tmp_path, JobShape(leaf_hosts_count=4))
    made.run(25)
    yield made
    made.end()


def asked(wire: Wire, cmd: str, **args: object) -> tuple[bool, str]:
    """Whether a request was granted, and the reason if it was not."""
    wire.send(wire.seal(json.dumps({"t": "ask", "cmd": cmd, **args}).encode()))
    while (said := wire.hear())["t"] == "ack":
        pass
    return said["ok"], "" if said["ok"] else said["reason"]


def test_an_operator_plans_judges_and_closes_and_its_name_is_kept(ground: Ground, capsys: Captured) -> None:
    assert ground.ask("maintenance", "n9", "--kind", "host", "--for", "2h", "--reason", "new cable") == 0
    assert "by operator:some-operator: new cable" in capsys.readouterr().out
    assert ground.ask("maintenance", "list", "--json") == 0
    [work] = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert (work["target"], work["actor"]) == ("n9", "operator:some-operator")
    ground.ask("status", name="some-reader")
    assert "work      1 going on, 0 planned for later" in capsys.readouterr().out
    assert ground.ask("maintenance", "end", work["maintenance_id"][:6]) == 0
    assert "over: host n9" in capsys.readouterr().out

    ground.job.kill(3)
    ground.run(10)
    [verdict] = ground.service.engine.live_verdicts()
    note = "\N{FIRE}" * 1000
    assert ground.ask("feedback", verdict.verdict_id[:6], "true", "--note", note) == 0
    assert f"{verdict.verdict_id} is upheld by operator:some-operator" in capsys.readouterr().out
    assert ground.ask("incidents", "close", verdict.verdict_id[:6], "--note", "a new card") == 0
    assert "is closed by operator:some-operator" in capsys.readouterr().out
    ground.run(3)
    assert ground.service.engine.live_verdicts() == []

    kept = NoteJournal(ground.folder / FILE_NAME).read()
    assert {one.actor for one in kept} == {"operator:some-operator"}
    assert len(kept) == 3


@pytest.mark.parametrize("command", ["maintenance", "feedback", "incidents"])
def test_a_readers_token_is_refused_before_anything_is_asked(ground: Ground, capsys: Captured, command: str) -> None:
    words = {
        "maintenance": ("maintenance", "n9", "--kind", "host", "--for", "2h", "--reason", "r"),
        "feedback": ("feedback", "ab", "true", "--note", "n"),
        "incidents": ("incidents", "close", "ab", "--note", "n"),
    }[command]
    for name in ("some-reader", "some-agent"):
        assert ground.ask(*words, name=name) == 2
        assert "a credential of role operator" in capsys.readouterr().err
    assert ground.ask("maintenance", "list", name="some-reader") == 0
    assert NoteJournal(ground.folder / FILE_NAME).read() == []


@pytest.mark.parametrize("name", [name for name, role in ROLES.items() if role is not Role.OPERATOR])
def test_the_engine_refuses_all_other_roles_by_name(ground: Ground, name: str) -> None:
    wire = ground.wire(ground.holders[name])
    for cmd in CHANGES:
        told = {"target": "n9", "kind": "host", "for_seconds": 60, "reason": "r", "actor": "operator:some-operator"}
        assert asked(wire, cmd, **told) == (False, "role_not_allowed")
    assert asked(wire, "maintenance_list")[0] is (ROLES[name] is Role.READER)
    assert ground.works() == []


def test_who_acts_is_told_by_the_credential_and_by_nothing_else(ground: Ground) -> None:
    plan = {"target": "n9", "kind": "host", "for_seconds": 60, "reason": "r", "actor": "uid:0"}
    assert asked(ground.wire(ground.holders["some-operator"]), "maintenance", **plan) == (True, "")
    assert asked(ground.wire(ground.holders["any"]), "maintenance", **plan) == (True, "")
    wanted = {"operator:some-operator", f"operator:{ground.holders['any'].key_id}"}
    assert {one["actor"] for one in ground.works()} == wanted


def test_an_operator_asks_as_a_reader_and_sends_no_records(ground: Ground) -> None:
    wire = ground.wire(ground.holders["some-operator"])
    assert asked(wire, "jobs")[1] != "role_not_allowed"
    assert asked(wire, "sql", query="SELECT 1") == (False, "unknown_command")
    assert asked(wire, "maintenance", target="n9") == (False, "unknown_target")
    before = ground.service.engine.counters["records_ok"]
    for data in (event("some-operator", time.time_ns()), encode(Tick(time.time_ns()))):
        wire.send(wire.seal(data))
        while (said := wire.hear())["t"] == "ack":
            pass
        assert (said["t"], said["reason"]) == ("refused", "role_not_allowed")
    assert ground.service.engine.counters["records_ok"] == before
    assert "some-operator" not in ground.network.connected_hosts


def test_what_the_flags_cannot_mean_is_one_line(ground: Ground, capsys: Captured) -> None:
    for words in (("feedback", "--export", "x"), ("maintenance", "list", "--data", "/x")):
        assert ground.ask(*words) == 2
        told = capsys.readouterr().err
        assert "left out" in told
        assert len(told.splitlines()) == 1
