"""Who gets in, who does not, and what each is told: an agent's side against the engine's, without sockets."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.pipeline.identity.kit import LOOPBACK, NOW, REMOTE, Fleet, hello_of, met
from tocsin.collectors.transport import sign_in as agents
from tocsin.pipeline.identity.gate import Gate, GateConfig, PeerSignIn, local_credential
from tocsin.pipeline.identity.peers import Peer, names_of
from tocsin.schemas.address import is_loopback
from tocsin.schemas.credential_store import CredentialStore, write_credentials
from tocsin.schemas.credentials import Credential, Role, new_credential
from tocsin.schemas.errors import CredentialError, IdentityError
from tocsin.schemas.reasons import IdentityRefusal as Why


@pytest.fixture
def fleet(tmp_path: Path) -> Fleet:
    return Fleet(tmp_path)


def test_both_ends_prove_it_and_then_speak(fleet: Fleet) -> None:
    agent = fleet.agent("n0")
    engine = met(fleet.gate(), agent)
    assert engine.principal is not None
    assert (engine.principal.host, engine.principal.role, engine.principal.by) == ("n0", Role.AGENT, "secret")
    for data in (b"one", b"", b"three" * 1000):
        assert engine.open(data + agent.tag(data)) == data
        assert agent.open(data + engine.tag(data)) == data


def test_neither_the_secret_nor_a_key_travels(fleet: Fleet) -> None:
    engine, agent = fleet.gate().meet(REMOTE), fleet.agent("n0")
    hello = agent.answer(engine.challenge, NOW)
    assert fleet.keys["n0"].secret.hex() not in str((engine.challenge, hello))


def _refused(gate: Gate, hello: dict[str, object], peer: Peer = REMOTE, engine: PeerSignIn | None = None) -> str:
    with pytest.raises(IdentityError) as raised:
        (engine or gate.meet(peer)).hello(hello, NOW)
    return raised.value.reason


def test_a_wrong_secret_is_refused(fleet: Fleet) -> None:
    wrong = replace(fleet.keys["n0"], secret=b"w" * 32)
    write_credentials(fleet.folder / f"{wrong.key_id}.json", (wrong,))
    with pytest.raises(IdentityError) as raised:
        met(fleet.gate(), fleet.agent("n0"))
    assert raised.value.reason == Why.PROOF_WRONG


def test_a_secret_stolen_from_another_host_speaks_for_that_host_only(fleet: Fleet) -> None:
    """The thief proves n1's secret and says it is n0."""
    stolen = replace(fleet.keys["n1"], name="n0")  # the thief's own file may say what it likes
    write_credentials(fleet.folder / f"{stolen.key_id}.json", (stolen,))
    with pytest.raises(IdentityError) as raised:
        met(fleet.gate(), fleet.agent("n0", stolen))
    assert raised.value.reason == Why.HELLO_HOST


def test_a_hello_of_another_connection_is_refused(fleet: Fleet) -> None:
    gate, agent = fleet.gate(), fleet.agent("n0")
    first = gate.meet(REMOTE)
    heard = agent.answer(first.challenge, NOW)
    first.hello(heard, NOW)
    assert _refused(gate, dict(heard)) == Why.REPLAYED
    second = gate.meet(REMOTE)
    adapted = {**heard, "challenge": second.challenge["nonce"]}
    assert _refused(gate, adapted, engine=second) == Why.PROOF_WRONG


def test_messages_of_another_connection_are_refused(fleet: Fleet) -> None:
    gate = fleet.gate()
    agent = fleet.agent("n0")
    met(gate, agent)
    heard = b"record" + agent.tag(b"record")
    later = met(gate, fleet.agent("n0"))
    with pytest.raises(IdentityError) as raised:
        later.open(heard)
    assert raised.value.reason == Why.MAC_WRONG


def test_the_engines_own_words_are_not_the_agents(fleet: Fleet) -> None:
    """A message mirrored back is sealed with the other direction's key."""
    agent = fleet.agent("n0")
    engine = met(fleet.gate(), agent)
    for end, other in ((engine, agent), (agent, engine)):
        with pytest.raises(IdentityError) as raised:
            end.open(b"x" + end.tag(b"x"))
        assert raised.value.reason == Why.MAC_WRONG
        assert other is not end


@pytest.mark.parametrize("peer", [REMOTE, LOOPBACK, Peer(True, 4242, (4242,))])
def test_without_a_key_nobody_gets_in_from_the_network_or_as_another_user(fleet: Fleet, peer: Peer) -> None:
    """Loopback is no exception: other users live there."""
    assert _refused(fleet.gate(), dict(hello_of("n0")), peer) == Why.IDENTITY_MISSING


def test_before_the_hello_nothing_is_heard(fleet: Fleet) -> None:
    with pytest.raises(IdentityError) as raised:
        fleet.gate().meet(REMOTE).open(b"TC...")
    assert raised.value.reason == Why.IDENTITY_MISSING


def test_a_second_hello_is_refused(fleet: Fleet) -> None:
    engine = met(fleet.gate(), fleet.agent("n0"))
    with pytest.raises(IdentityError) as raised:
        engine.hello(hello_of("n1"), NOW)
    assert raised.value.reason == Why.BAD_HELLO
    assert engine.principal is not None
    assert engine.principal.host == "n0"


def test_an_unknown_key_is_refused(fleet: Fleet) -> None:
    foreign = new_credential(Role.AGENT, "n0", NOW)
    write_credentials(fleet.folder / f"{foreign.key_id}.json", (foreign,))
    with pytest.raises(IdentityError) as raised:
        met(fleet.gate(), fleet.agent("n0", foreign))
    assert raised.value.reason == Why.UNKNOWN_KEY


def test_a_key_that_was_issued_a_moment_ago_counts(fleet: Fleet) -> None:
    gate, fresh = fleet.gate(), new_credential(Role.AGENT, "n7", NOW)
    write_credentials(fleet.folder / f"{fresh.key_id}.json", (fresh,))
    write_credentials(fleet.folder / "engine.json", (*fleet.all, fresh))
    assert met(gate, fleet.agent("n7", fresh)).principal is not None


def test_a_revoked_key_is_refused_and_ends_a_connection_without_a_restart(fleet: Fleet) -> None:
    gate = fleet.gate()
    engine = met(gate, fleet.agent("n0"))
    assert engine.principal is not None
    gate.check_still(engine.principal, NOW)
    revoked = tuple(replace(one, revoked_ns=NOW) for one in fleet.all)
    write_credentials(fleet.folder / "engine.json", revoked)
    gate.check_still(engine.principal, NOW)
    assert gate.refresh()
    with pytest.raises(IdentityError) as raised:
        gate.check_still(engine.principal, NOW)
    assert raised.value.reason == Why.KEY_REVOKED
    with pytest.raises(IdentityError) as raised:
        met(gate, fleet.agent("n0"))
    assert raised.value.reason == Why.KEY_REVOKED


def test_a_key_that_became_another_ends_a_connection(fleet: Fleet) -> None:
    gate = fleet.gate()
    engine = met(gate, fleet.agent("n0"))
    write_credentials(fleet.folder / "engine.json", tuple(replace(one, secret=b"n" * 32) for one in fleet.all))
    gate.refresh()
    assert engine.principal is not None
    with pytest.raises(IdentityError):
        gate.check_still(engine.principal, NOW)


@pytest.mark.parametrize(
    "change",
    [
        {"host": 7},
        {"host": ""},
        {"host": "a\nb"},
        {"host": "h" * 2000},
        {"key_id": "\x1b[31m"},
        {"key_id": None},
        {"nonce": "zz"},
        {"nonce": "00" * 31},
        {"challenge": []},
        {"proof": "x" * 64},
        {"proof": 5},
        {"agent_version": "v" * 1000},
        {"agent_version": {}},
    ],
)
def test_a_hello_that_is_not_as_agreed_is_refused(fleet: Fleet, change: dict[str, object]) -> None:
    gate = fleet.gate()
    engine = gate.meet(REMOTE)
    hello = {**fleet.agent("n0").answer(engine.challenge, NOW), **change}
    assert _refused(gate, hello, engine=engine) == Why.BAD_HELLO
    assert engine.principal is None


@given(st.dictionaries(st.sampled_from(["host", "key_id", "nonce", "challenge", "proof", "agent_version"]), st.text()))
def test_no_hello_gets_in_by_chance(tmp_path_factory: pytest.TempPathFactory, values: dict[str, object]) -> None:
    gate = Gate(GateConfig(local=local_credential(NOW)))
    with pytest.raises(IdentityError):
        gate.meet(REMOTE).hello({"t": "hello", **values}, NOW)


# -- users of this machine -----------------------------------------------------------------------------


def test_processes_of_the_engines_user_and_of_root_need_no_key() -> None:
    gate = Gate()
    for uid in (os.geteuid(), 0):
        engine = gate.meet(Peer(True, uid))
        principal = engine.hello(hello_of("any-host"), NOW)
        assert (principal.host, principal.by) == ("any-host", "uid")
        assert engine.open(b"x") == b"x"
        assert engine.tag(b"x") == b""


def test_another_user_is_refused_unless_named() -> None:
    stranger = Peer(True, 4242, (100, 4242))
    with pytest.raises(IdentityError) as raised:
        Gate().meet(stranger)
    assert raised.value.reason == Why.UID_REFUSED
    for config in (GateConfig(uids=frozenset({4242})), GateConfig(gids=frozenset({100}))):
        assert Gate(config).meet(stranger).challenge["by"] == "uid"


def test_the_local_credential_counts_on_this_machine_only(tmp_path: Path) -> None:
    local = local_credential(NOW)
    write_credentials(tmp_path / "local.json", (local,))
    gate = Gate(GateConfig(local=local))
    agent = agents.SignIn(agents.TokenSearch("", (str(tmp_path / "local.json"),)), hello_of("x"), agents.TCP)
    assert met(gate, agent, LOOPBACK).principal is not None
    with pytest.raises(IdentityError) as raised:
        met(gate, agent, REMOTE)
    assert raised.value.reason == Why.NOT_LOCAL


def test_an_engine_without_credentials_lets_nobody_in_from_the_network() -> None:
    with pytest.raises(IdentityError) as raised:
        Gate().meet(LOOPBACK)
    assert raised.value.reason == Why.IDENTITY_MISSING


def test_only_words_open_the_gate_to_everybody() -> None:
    principal = Gate(GateConfig(is_open=True)).meet(REMOTE).hello(hello_of("n7"), NOW)
    assert (principal.host, principal.by) == ("n7", "nothing")


# -- roles and certificates ----------------------------------------------------------------------------


def _with_role(tmp_path: Path, role: Role) -> tuple[Fleet, Credential]:
    one = new_credential(role, "*", NOW)
    return Fleet(tmp_path, one), one


def test_a_player_gets_in_only_where_the_engine_was_told_so(tmp_path: Path) -> None:
    fleet, player = _with_role(tmp_path, Role.PLAYER)
    with pytest.raises(IdentityError) as raised:
        met(fleet.gate(), fleet.agent("desk", player))
    assert raised.value.reason == Why.PLAYER_REFUSED
    engine = met(fleet.gate(is_player_allowed=True), fleet.agent("desk", player))
    assert engine.principal is not None
    assert engine.principal.role is Role.PLAYER


def test_a_role_is_the_engines_to_say(tmp_path: Path) -> None:
    """An agent that writes another role into its own file only breaks its proof."""
    fleet = Fleet(tmp_path)
    forged = replace(fleet.keys["n0"], role=Role.PLAYER)
    write_credentials(fleet.folder / f"{forged.key_id}.json", (forged,))
    with pytest.raises(IdentityError) as raised:
        met(fleet.gate(is_player_allowed=True), fleet.agent("n0", forged))
    assert raised.value.reason == Why.PROOF_WRONG


def test_a_certificate_speaks_for_the_hosts_that_it_names(fleet: Fleet) -> None:
    gate = fleet.gate()
    peer = Peer(is_own_machine=False, certificate_names=("n0", "n0.cluster"))
    search = agents.TokenSearch()
    for host in peer.certificate_names:
        engine = met(gate, agents.SignIn(search, hello_of(host), agents.TLS), peer)
        assert engine.principal is not None
        assert engine.principal.by == "certificate"
    assert _refused(gate, dict(hello_of("n1")), peer) == Why.CERTIFICATE_REFUSED
    with pytest.raises(IdentityError) as raised:
        met(gate, fleet.agent("n1", transport=agents.TLS), peer)
    assert raised.value.reason == Why.CERTIFICATE_REFUSED
    assert met(gate, fleet.agent("n0", transport=agents.TLS), peer).principal is not None


def test_the_names_of_a_certificate() -> None:
    subject = ((("organizationName", "x"),), (("commonName", "n1"),))
    assert names_of({"subject": subject}) == ("n1",)
    assert names_of({"subject": subject, "subjectAltName": (("DNS", "n2"), ("IP Address", "1.2.3.4"))}) == ("n2",)
    assert names_of({}) == ()


@pytest.mark.parametrize(
    ("host", "is_own"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("::1", True), ("::ffff:127.0.0.1", True), ("localhost", True),
     ("0.0.0.0", False), ("::", False), ("10.0.0.1", False), ("::ffff:10.0.0.1", False), ("example.org", False),
     ("fe80::1%eth0", False)],
)  # fmt: skip
def test_what_is_loopback(host: str, *, is_own: bool) -> None:
    assert is_loopback(host) is is_own


# -- the agent looks at the engine, too ----------------------------------------------------------------


def _challenge(**change: object) -> dict[str, object]:
    return {"t": "challenge", "v": 1, "by": "secret", "nonce": "00" * 32, **change}


@pytest.mark.parametrize(
    ("challenge", "transport", "reason"),
    [
        (_challenge(by="uid"), agents.TCP, Why.ENGINE_UNPROVEN),
        (_challenge(by="certificate"), agents.TCP, Why.ENGINE_UNPROVEN),
        (_challenge(by="nothing"), agents.TCP, Why.ENGINE_UNPROVEN),
        (_challenge(by="nothing"), agents.UNIX, Why.ENGINE_UNPROVEN),
        (_challenge(by=["uid"]), agents.UNIX, Why.ENGINE_UNPROVEN),
        (_challenge(v=2), agents.UNIX, Why.ENGINE_UNPROVEN),
        (_challenge(nonce="0"), agents.TCP, Why.ENGINE_UNPROVEN),
        ({"t": "welcome", "engine_ns": 1}, agents.TCP, Why.ENGINE_UNPROVEN),
        (_challenge(), agents.TCP, Why.IDENTITY_MISSING),
    ],
)
def test_an_agent_without_credential_is_not_talked_down(
    challenge: dict[str, object], transport: str, reason: str
) -> None:
    with pytest.raises(IdentityError) as raised:
        agents.SignIn(agents.TokenSearch(), hello_of("n0"), transport).answer(challenge, NOW)
    assert raised.value.reason == reason


@pytest.mark.parametrize("by", ["uid", "certificate", "nothing"])
def test_an_agent_with_a_credential_insists_on_proof(fleet: Fleet, by: str) -> None:
    """An engine in the middle that asks for nothing gets a proof that it cannot answer."""
    agent = fleet.agent("n0")
    assert "proof" in agent.answer(_challenge(by=by), NOW)
    with pytest.raises(IdentityError):
        agent.open(b'{"t":"welcome","engine_ns":1}')


def test_words_let_an_agent_speak_to_anybody() -> None:
    search = agents.TokenSearch(is_insecure=True)
    assert "key_id" not in agents.SignIn(search, hello_of("n0"), agents.TCP).answer(_challenge(by="nothing"), NOW)


def test_the_newest_fitting_credential_is_taken(fleet: Fleet) -> None:
    old, new = fleet.keys["n0"], new_credential(Role.AGENT, "n0", NOW + 5)
    revoked = replace(new_credential(Role.AGENT, "n0", NOW + 9), revoked_ns=NOW)
    path = fleet.folder / "mine.json"
    write_credentials(path, (old, new, revoked, fleet.keys["n1"]))
    assert agents.TokenSearch(str(path)).credential("n0", NOW + 10) == new
    with pytest.raises(CredentialError, match="agent on 'n7'"):
        agents.TokenSearch(str(path)).credential("n7", NOW)
    assert agents.TokenSearch("", (str(fleet.folder / "none"), str(path))).credential("n0", NOW + 10) == new
    assert agents.TokenSearch("", (str(fleet.folder / "none"),)).credential("n0", NOW) is None


def test_a_file_of_somebody_else_does_not_hide_ones_own(fleet: Fleet) -> None:
    other, mine = fleet.folder / "other.json", fleet.folder / "mine.json"
    write_credentials(other, (fleet.keys["n1"],))
    write_credentials(mine, (fleet.keys["n0"],))
    search = agents.TokenSearch("", (str(other), str(mine)))
    assert search.credential("n0", NOW) == fleet.keys["n0"]
    other.write_text("{")
    assert search.credential("n0", NOW) == fleet.keys["n0"]
    mine.unlink()
    with pytest.raises(CredentialError, match=r"other\.json"):
        search.credential("n0", NOW)


def test_a_unix_socket_is_open_to_others_only_where_others_may_get_in(tmp_path: Path) -> None:
    nobody = CredentialStore(tmp_path / "none.json", may_come_later=True)
    assert GateConfig().socket_mode == GateConfig(nobody).socket_mode == 0o600
    for config in (GateConfig(uids=frozenset({7})), GateConfig(gids=frozenset({7})), GateConfig(is_open=True)):
        assert config.socket_mode == 0o666
