"""The gate of the engine's listener: whom it asks for what, and one sign-in a connection. No sockets here.

A connection's life: ``Gate.meet(peer)`` -> ``PeerSignIn``; its ``challenge`` is sent; ``hello`` takes the answer;
then ``open`` each message that comes, and ``tag`` each that goes. What raises ``IdentityError`` ends the connection.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tocsin.pipeline.identity.peers import Peer
from tocsin.pipeline.identity.principal import (
    BY_CERTIFICATE,
    BY_NOTHING,
    BY_SECRET,
    BY_UID,
    Principal,
    check_hello_host,
)
from tocsin.schemas.credential_store import CredentialStore
from tocsin.schemas.credentials import ANY_NAME, Credential, Role, check_holder, check_key_id
from tocsin.schemas.errors import FieldError, IdentityError
from tocsin.schemas.reasons import IdentityRefusal
from tocsin.schemas.sign_in import NONCE_BYTES, SIGN_IN_VERSION, Opener, Sealer, Terms, is_same, session_keys

_MAX_VERSION_TEXT: Final = 100


@dataclass(frozen=True, slots=True)
class GateConfig:
    """Whom the listener lets in.

    Attributes:
        store: the credentials of all hosts, None = there are none.
        local: the credential that agents of the engine's own user find by themselves, None = none.
        uids: users whose processes are trusted on the unix socket, besides the engine's own and root.
        gids: groups likewise.
        is_player_allowed: whether a player's credential counts.
        is_open: ask nobody for anything; only where a person asked for it in words.
    """

    store: CredentialStore | None = None
    local: Credential | None = None
    uids: frozenset[int] = frozenset()
    gids: frozenset[int] = frozenset()
    is_player_allowed: bool = False
    is_open: bool = False

    @property
    def socket_mode(self) -> int:
        """Who may connect to a unix socket at all; who gets in is asked afterwards."""
        is_for_others = self.uids or self.gids or self.is_open or (self.store is not None and self.store.all())
        return 0o666 if is_for_others else 0o600


OWN_USER_ONLY: Final = GateConfig()
"""Without any option: processes of the engine's own user and of root, on the unix socket."""


class Gate:
    """Decides who may sign in; one for a listener."""

    def __init__(
        self,
        config: GateConfig = OWN_USER_ONLY,
        make_nonce: Callable[[], bytes] = lambda: secrets.token_bytes(NONCE_BYTES),
    ) -> None:
        """Use these settings; ``make_nonce`` gives bytes that nobody can foresee."""
        self._config = config
        self._make_nonce = make_nonce
        self._uids = config.uids | {os.geteuid(), 0}

    @property
    def trouble(self) -> str:
        """Why the file of credentials, as it is now, is not used; "" = it is."""
        store = self._config.store
        return "" if store is None else store.trouble

    def refresh(self) -> bool:
        """Read the credentials again if their file changed; whether others count now."""
        store = self._config.store
        return store is not None and store.refresh()

    def meet(self, peer: Peer) -> PeerSignIn:
        """Return the sign-in of a new connection.

        Raises:
            IdentityError: whoever that is cannot sign in, whatever it says.
        """
        by = self._way(peer)
        if by == BY_SECRET and self._config.store is None and self._config.local is None:
            if peer.uid >= 0:
                text = f"user {peer.uid} is not among those trusted (serve --trust-uid, --trust-group)"
                raise IdentityError(IdentityRefusal.UID_REFUSED, text)
            raise IdentityError(IdentityRefusal.IDENTITY_MISSING, "this engine has no credentials: nobody can sign in")
        return PeerSignIn(self, peer, by, self._make_nonce())

    def _way(self, peer: Peer) -> str:
        if peer.uid in self._uids or not self._config.gids.isdisjoint(peer.gids):
            return BY_UID
        if peer.certificate_names:
            return BY_CERTIFICATE
        return BY_NOTHING if self._config.is_open else BY_SECRET

    def credential(self, key_id: str, now_ns: int) -> Credential:
        """Return the credential of a key that counts now.

        Raises:
            IdentityError: unknown, revoked, without a secret, or a player's where none is taken.
        """
        local, store = self._config.local, self._config.store
        is_local = local is not None and local.key_id == key_id
        found = local if is_local else None if store is None else store.find(key_id)
        if found is None and store is not None and store.refresh():  # issued a moment ago
            found = store.find(key_id)
        if found is None or not found.secret:
            raise IdentityError(IdentityRefusal.UNKNOWN_KEY, f"key {key_id} is not known to this engine")
        if not found.is_valid(now_ns):
            raise IdentityError(IdentityRefusal.KEY_REVOKED, f"key {key_id} of {found.name[:80]!r} was revoked")
        if found.role is Role.PLAYER and not self._config.is_player_allowed:
            text = f"key {key_id} is a player's: this engine takes no recordings (serve --allow-player)"
            raise IdentityError(IdentityRefusal.PLAYER_REFUSED, text)
        return found

    def check_still(self, principal: Principal, now_ns: int) -> None:
        """Refuse who signed in with a credential that counts no more.

        Raises:
            IdentityError: it was revoked or removed, or is another's now.
        """
        before = principal.credential
        if before is not None:
            now = self.credential(before.key_id, now_ns)
            if (now.secret, now.name, now.role) != (before.secret, before.name, before.role):
                raise IdentityError(IdentityRefusal.KEY_REVOKED, f"key {before.key_id} is another one now")


@dataclass(slots=True)
class PeerSignIn:
    """One connection's sign-in, and its seals afterwards.

    Attributes:
        principal: who it is, None: not yet known.
    """

    _gate: Gate
    _peer: Peer
    _by: str
    _nonce: bytes
    principal: Principal | None = None
    _opener: Opener | None = field(default=None, repr=False)
    _sealer: Sealer | None = field(default=None, repr=False)

    @property
    def challenge(self) -> dict[str, Any]:
        """The engine's first message."""
        return {"t": "challenge", "v": SIGN_IN_VERSION, "by": self._by, "nonce": self._nonce.hex()}

    def hello(self, message: Mapping[str, Any], now_ns: int) -> Principal:
        """Take the answer to the challenge; what is sealed from now on, both ways, is sealed for this connection.

        Raises:
            IdentityError: it does not prove who it is.
        """
        if self.principal is not None:
            raise IdentityError(IdentityRefusal.BAD_HELLO, "a second hello on one connection")
        host = _checked(message, "host", check_holder)
        if "key_id" in message:
            self.principal = self._by_secret(message, host, now_ns)
        elif self._by == BY_SECRET:
            text = (
                "this engine wants to know who you are, and the hello names no key (an older agent? docs/identity.md)"
            )
            raise IdentityError(IdentityRefusal.IDENTITY_MISSING, text)
        else:
            self._check_certificate(host)
            self.principal = Principal(host, Role.AGENT, self._by)
        return self.principal

    def open(self, sealed: bytes) -> bytes:
        """Return what the peer sealed; who signed in without a secret seals nothing.

        Raises:
            IdentityError: nobody has signed in, or the seal is not right.
        """
        if self._opener is not None:
            return self._opener.open(sealed)
        if self.principal is None:
            raise IdentityError(IdentityRefusal.IDENTITY_MISSING, "something was said before the hello")
        return sealed

    def tag(self, data: bytes) -> bytes:
        """Return what must follow a message to the peer: its seal, or nothing."""
        return b"" if self._sealer is None else self._sealer.tag(data)

    def _by_secret(self, message: Mapping[str, Any], host: str, now_ns: int) -> Principal:
        credential = self._gate.credential(_checked(message, "key_id", check_key_id), now_ns)
        if _hex(message, "challenge") != self._nonce:
            raise IdentityError(IdentityRefusal.REPLAYED, "the hello answers another challenge than this connection's")
        version = message.get("agent_version", "")
        if type(version) is not str or len(version) > _MAX_VERSION_TEXT:
            raise IdentityError(
                IdentityRefusal.BAD_HELLO, f"agent_version: must be a text of at most {_MAX_VERSION_TEXT}"
            )
        nonce = _hex(message, "nonce")
        terms = Terms(self._nonce, nonce, credential.key_id, credential.role.value, host, version)
        keys = session_keys(credential.secret, terms)
        if not is_same(keys.proof, _hex(message, "proof")):
            text = f"whoever says it is {host[:80]!r} does not know the secret of key {credential.key_id}"
            raise IdentityError(IdentityRefusal.PROOF_WRONG, text)
        check_hello_host(credential, host, is_own_machine=self._peer.is_own_machine)
        if credential.role is Role.AGENT:
            self._check_certificate(host)
        self._opener, self._sealer = Opener(keys.from_agent), Sealer(keys.from_engine)
        return Principal(host, credential.role, BY_SECRET, credential)

    def _check_certificate(self, host: str) -> None:
        names = self._peer.certificate_names
        if names and host not in names:
            text = f"hello.host = {host[:80]!r}: the certificate is of {', '.join(names)[:200]}"
            raise IdentityError(IdentityRefusal.CERTIFICATE_REFUSED, text)


def local_credential(now_ns: int) -> Credential:
    """Return a fresh credential for agents of the engine's own user: any host's name, on this machine only."""
    secret = secrets.token_bytes(NONCE_BYTES)
    return Credential(f"local-{secrets.token_hex(8)}", Role.AGENT, ANY_NAME, secret, b"", now_ns)


def _checked(message: Mapping[str, Any], name: str, check: Callable[[object, str], str]) -> str:
    try:
        return check(message.get(name), f"hello.{name}")
    except FieldError as error:
        raise IdentityError(IdentityRefusal.BAD_HELLO, str(error)) from None


def _hex(message: Mapping[str, Any], name: str) -> bytes:
    value = message.get(name)
    try:
        data = bytes.fromhex(value) if type(value) is str and len(value) == 2 * NONCE_BYTES else b""
    except ValueError:
        data = b""
    if len(data) != NONCE_BYTES:
        raise IdentityError(IdentityRefusal.BAD_HELLO, f"hello.{name}: must be {2 * NONCE_BYTES} hex digits")
    return data
