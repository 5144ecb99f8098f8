"""An agent's side and an engine's side of a sign-in, without sockets between them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tocsin.collectors.transport import sign_in as agents
from tocsin.pipeline.identity.gate import Gate, GateConfig, PeerSignIn
from tocsin.pipeline.identity.peers import Peer
from tocsin.schemas.credential_store import CredentialStore, write_credentials
from tocsin.schemas.credentials import Credential, Role, new_credential

NOW = 1_700_000_000 * 10**9
REMOTE = Peer(is_own_machine=False, address="10.0.0.7:5")
LOOPBACK = Peer(is_own_machine=True, address="127.0.0.1:5")
HOSTS = ("n0", "n1")


class Fleet:
    """An engine's file of credentials, and a file for each host.

    Attributes:
        folder: where they lie.
        keys: host -> its credential.
    """

    def __init__(self, folder: Path, *more: Credential) -> None:
        self.folder = folder
        self.keys = {host: new_credential(Role.AGENT, host, NOW) for host in HOSTS}
        self.all = (*self.keys.values(), *more)
        write_credentials(folder / "engine.json", self.all)
        for one in self.all:
            write_credentials(folder / f"{one.key_id}.json", (one,))

    def gate(self, **settings: Any) -> Gate:
        """The engine's gate."""
        return Gate(GateConfig(CredentialStore(self.folder / "engine.json"), **settings))

    def agent(self, host: str, key: Credential | None = None, transport: str = agents.TCP) -> agents.SignIn:
        """The agent of a host, with its own credential or another."""
        file = self.folder / f"{(key or self.keys[host]).key_id}.json"
        return agents.SignIn(agents.TokenSearch(str(file)), hello_of(host), transport)


def hello_of(host: str) -> dict[str, str]:
    """What an agent says of itself."""
    return {"t": "hello", "host": host, "agent_version": "1"}


def met(gate: Gate, agent: agents.SignIn, peer: Peer = REMOTE, now_ns: int = NOW) -> PeerSignIn:
    """The engine's side after the hello."""
    engine = gate.meet(peer)
    engine.hello(agent.answer(engine.challenge, now_ns), now_ns)
    return engine
