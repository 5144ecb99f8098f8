"""Authentication of connections to the engine's listener: which proof a peer must give, and one sign-in per connection.

Life of a connection: ``Gate.meet(peer)`` returns a ``PeerSignIn``. Its ``challenge`` is sent, and ``hello`` checks the
answer. Then ``open`` verifies each incoming message, and ``tag`` returns the seal of each outgoing one. Any
``IdentityError`` ends the connection. No sockets are used here.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tocsin.pipeline.identity.key_trouble import KeyFileWatch
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
"""Maximum length of the agent version in a hello, in characters."""


@dataclass(frozen=True, slots=True)
class GateConfig:
    """Settings that decide which peers may sign in.

    Attributes:
        store: credentials of all hosts, None = there are none.
        local: credential that agents of the engine's own user find on this machine, None = none.
        uids: users whose processes are trusted on the unix socket, besides the engine's own user and root.
        gids: groups whose members are trusted on the unix socket.
        is_player_allowed: whether credentials of role ``player`` (which replay recordings) are accepted.
        is_open: accept every peer without proof; only set where a person asked for it explicitly.
    """

    store: CredentialStore | None = None
    local: Credential | None = None
    uids: frozenset[int] = frozenset()
    gids: frozenset[int] = frozenset()
    is_player_allowed: bool = False
    is_open: bool = False

    @property
    def socket_mode(self) -> int:
        """File mode of the unix socket: 0o666 if other users may sign in, else 0o600."""
        is_for_others = self.uids or self.gids or self.is_open or (self.store is not None and self.store.all())
        return 0o666 if is_for_others else 0o600


OWN_USER_ONLY: Final = GateConfig()
"""Default settings: only processes of the engine's own user and of root, on the unix socket."""


class Gate:
    """Decides which peers may sign in; one instance per listener.

    Attributes:
        key_file: what is wrong with the file of credentials, None: there is no such file.
    """

    def __init__(
        self,
        config: GateConfig = OWN_USER_ONLY,
        make_nonce: Callable[[], bytes] = lambda: secrets.token_bytes(NONCE_BYTES),
    ) -> None:
        """Use these settings; ``make_nonce`` returns unpredictable bytes for a challenge."""
        self._config = config
        self._make_nonce = make_nonce
        self._uids = config.uids | {os.geteuid(), 0}
        self.key_file = None if config.store is None else KeyFileWatch(config.store.path)

    @property
    def trouble(self) -> str:
        """Reason why the current credentials file is not used, "" if it is used."""
        store = self._config.store
        return "" if store is None else store.trouble

    def refresh(self) -> bool:
        """Reload the credentials if their file changed; return whether the valid credentials changed."""
        store = self._config.store
        if store is None or self.key_file is None:
            return False
        is_changed = store.refresh()
        self.key_file.see(store, None, is_changed=is_changed)
        return is_changed

    def meet(self, peer: Peer) -> PeerSignIn:
        """Start the sign-in of a new connection and return it.

        Raises:
            IdentityError: this peer cannot sign in with any proof.
        """
        by = self._way(peer)
        if by == BY_SECRET and self._config.store is None and self._config.local is None:
            if peer.uid >= 0:
                text = f"user {peer.uid} is not among those trusted (serve --trust-uid, --trust-group)"
                raise IdentityError(IdentityRefusal.UID_REFUSED, text)
            raise IdentityError(IdentityRefusal.IDENTITY_MISSING, "this engine has no credentials: nobody can sign in")
        return PeerSignIn(self, peer, by, self._make_nonce())

    def _way(self, peer: Peer) -> str:
        """Return the kind of proof that a peer must give, one of ``WAYS``."""
        if peer.uid in self._uids or not self._config.gids.isdisjoint(peer.gids):
            return BY_UID
        if peer.certificate_names:
            return BY_CERTIFICATE
        return BY_NOTHING if self._config.is_open else BY_SECRET

    def credential(self, key_id: str, now_ns: int) -> Credential:
        """Return the currently valid credential with this key id; the file is reloaded if the key is unknown.

        Raises:
            IdentityError: the key is unknown, revoked, without a secret, or a player's where players are not allowed.
        """
        local, store = self._config.local, self._config.store
        is_local = local is not None and local.key_id == key_id
        found = local if is_local else None if store is None else store.find(key_id)
        if found is None and store is not None and self.refresh():  # issued a moment ago
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
        """Check that a principal's credential is still valid and unchanged.

        Raises:
            IdentityError: the credential was revoked, removed or replaced.
        """
        before = principal.credential
        if before is not None:
            now = self.credential(before.key_id, now_ns)
            if (now.secret, now.name, now.role) != (before.secret, before.name, before.role):
                raise IdentityError(IdentityRefusal.KEY_REVOKED, f"key {before.key_id} is another one now")


@dataclass(slots=True)
class PeerSignIn:
    """Sign-in of one connection, and the seals of its messages afterwards.

    Attributes:
        principal: the authenticated peer, None before its hello.
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
        """First message that the engine sends: the protocol version, the kind of proof asked for, and a nonce."""
        return {"t": "challenge", "v": SIGN_IN_VERSION, "by": self._by, "nonce": self._nonce.hex()}

    def hello(self, message: Mapping[str, Any], now_ns: int) -> Principal:
        """Check the peer's answer to the challenge and return who it is.

        With a secret, all later messages in both directions are sealed with keys of this connection.

        Raises:
            IdentityError: the hello is malformed or does not prove the peer's identity.
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
        """Verify a received message's seal and return its content; peers without a secret do not seal.

        Raises:
            IdentityError: the peer has not signed in, or the seal is wrong.
        """
        if self._opener is not None:
            return self._opener.open(sealed)
        if self.principal is None:
            raise IdentityError(IdentityRefusal.IDENTITY_MISSING, "something was said before the hello")
        return sealed

    def tag(self, data: bytes) -> bytes:
        """Return the seal to append to a message for the peer, b"" if it signed in without a secret."""
        return b"" if self._sealer is None else self._sealer.tag(data)

    def _by_secret(self, message: Mapping[str, Any], host: str, now_ns: int) -> Principal:
        """Check a hello that proves knowledge of a secret, set up the seals, and return the principal."""
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
        """Raise ``IdentityError`` if the peer's TLS certificate does not name this host.

        Without a certificate do nothing.
        """
        names = self._peer.certificate_names
        if names and host not in names:
            text = f"hello.host = {host[:80]!r}: the certificate is of {', '.join(names)[:200]}"
            raise IdentityError(IdentityRefusal.CERTIFICATE_REFUSED, text)


def local_credential(now_ns: int) -> Credential:
    """Return a new credential for agents of the engine's own user: valid for any host name, on this machine only."""
    secret = secrets.token_bytes(NONCE_BYTES)
    return Credential(f"local-{secrets.token_hex(8)}", Role.AGENT, ANY_NAME, secret, b"", now_ns)


def _checked(message: Mapping[str, Any], name: str, check: Callable[[object, str], str]) -> str:
    """Return a text field of a hello, validated by ``check``; raise ``IdentityError`` if it is invalid."""
    try:
        return check(message.get(name), f"hello.{name}")
    except FieldError as error:
        raise IdentityError(IdentityRefusal.BAD_HELLO, str(error)) from None


def _hex(message: Mapping[str, Any], name: str) -> bytes:
    """Return a hello's field of ``NONCE_BYTES`` bytes, decoded from hex; raise ``IdentityError`` if it is malformed."""
    value = message.get(name)
    try:
        data = bytes.fromhex(value) if type(value) is str and len(value) == 2 * NONCE_BYTES else b""
    except ValueError:
        data = b""
    if len(data) != NONCE_BYTES:
        raise IdentityError(IdentityRefusal.BAD_HELLO, f"hello.{name}: must be {2 * NONCE_BYTES} hex digits")
    return data
