"""The agent's side of signing in to an engine, without sockets: choice of credential, hello, authentication codes.

docs/interfaces.md, section 2. The agent sends no record before the engine has proven that it knows the secret, too.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tocsin.schemas.credential_store import read_credentials
from tocsin.schemas.credentials import Credential, Role
from tocsin.schemas.errors import CredentialError, IdentityError
from tocsin.schemas.reasons import IdentityRefusal
from tocsin.schemas.sign_in import NONCE_BYTES, SIGN_IN_VERSION, Opener, Sealer, Terms, session_keys

_SPEAKERS: Final = (Role.AGENT, Role.PLAYER, Role.SCHEDULER)
UNIX: Final = "unix"
TCP: Final = "tcp"
TLS: Final = "tls"
_BY_TRANSPORT: Final = {"uid": UNIX, "certificate": TLS}
"""Way to identify an agent without a secret -> the transport that makes it possible."""


@dataclass(frozen=True, slots=True)
class TokenSearch:
    """Places to look for this agent's credential.

    Attributes:
        named: file named by option or environment, "" for none.
        places: files to try otherwise, in order.
        is_insecure: whether to accept an engine that neither asks for nor proves an identity, over TCP, too.
        roles: roles whose credentials may be used: those that send records, or readers.
    """

    named: str = ""
    places: tuple[str, ...] = ()
    is_insecure: bool = False
    roles: tuple[Role, ...] = _SPEAKERS

    def credential(self, host: str, now_ns: int) -> Credential | None:
        """Return the newest credential for this host; files are read each time, so that a rotated one is found.

        Returns:
            The credential of the first file that has one for this host; None if there is no file at all.

        Raises:
            CredentialError: no file can be used, or none has a credential for this host; the error is about the first
                file.
        """
        first: CredentialError | None = None
        for path in (self.named,) if self.named else self.places:
            if not self.named and not Path(path).exists():
                continue
            try:
                return _newest(path, host, now_ns, self.roles)
            except CredentialError as error:  # another user's, perhaps: the next place may be ours
                first = first or error
        if first is not None:
            raise first
        return None

    def missing(self) -> str:
        """Return the sentence that no credential was found, and where."""
        places = self.named or ", ".join(self.places) or "nowhere: no place is known for this engine"
        return f"the engine asks for a credential and there is none ({places}): tocsin token issue, --token-file"


def _newest(path: str, host: str, now_ns: int, roles: tuple[Role, ...]) -> Credential:
    """Return the newest valid credential for this host in a file."""
    fitting = [
        one
        for one in read_credentials(Path(path))
        if one.secret and one.is_valid(now_ns) and one.speaks_for(host) and one.role in roles
    ]
    if not fitting:
        raise CredentialError(path, f"one with a secret of an agent on {host!r} that counts now (tocsin token issue)")
    return max(fitting, key=lambda one: one.created_ns)


class SignIn:
    """The sign-in of one connection, and the authentication codes of its messages afterwards."""

    def __init__(
        self,
        search: TokenSearch,
        hello: Mapping[str, str],
        transport: str,
        make_nonce: Callable[[], bytes] = lambda: secrets.token_bytes(NONCE_BYTES),
    ) -> None:
        """Prepare the sign-in of one connection.

        Args:
            search: where to find the credential.
            hello: ``t``, ``host`` and ``agent_version`` of the hello.
            transport: ``UNIX``, ``TCP`` or ``TLS`` (with the engine's certificate checked).
            make_nonce: returns unpredictable bytes.
        """
        self._search, self._hello, self._transport = search, hello, transport
        self._make_nonce = make_nonce
        self._opener: Opener | None = None
        self._sealer: Sealer | None = None

    def answer(self, challenge: Mapping[str, Any], now_ns: int) -> dict[str, str]:
        """Return the hello that answers the engine's challenge.

        Raises:
            IdentityError: the engine asks for a credential that is missing, or offers less security than required.
            CredentialError: our own credential file cannot be used.
        """
        by, nonce = challenge.get("by"), _nonce_of(challenge)
        if challenge.get("v") != SIGN_IN_VERSION:
            text = f"the engine signs in by version {str(challenge.get('v'))[:20]}, this agent by {SIGN_IN_VERSION}"
            raise IdentityError(IdentityRefusal.ENGINE_UNPROVEN, text)
        credential = None
        if by == "secret" or self._search.named or not self._is_known_by(by):
            credential = self._search.credential(self._hello["host"], now_ns)
        if credential is not None:
            return self._with_secret(credential, nonce)
        if by == "secret":
            raise IdentityError(IdentityRefusal.IDENTITY_MISSING, self._search.missing())
        if not (self._is_known_by(by) or self._search.is_insecure):
            text = "the engine proves nothing (no credential, no certificate): --insecure-no-identity accepts that"
            raise IdentityError(IdentityRefusal.ENGINE_UNPROVEN, text)
        return dict(self._hello)

    def open(self, sealed: bytes) -> bytes:
        """Check the code of the engine's next message and return the message without it.

        Without a secret the bytes are returned unchanged and unchecked.

        Raises:
            IdentityError: the message is not the engine's next one of a connection with a secret.
        """
        return sealed if self._opener is None else self._opener.open(sealed)

    def tag(self, data: bytes) -> bytes:
        """Return the authentication code of a message to the engine, b"" without a secret."""
        return b"" if self._sealer is None else self._sealer.tag(data)

    def _is_known_by(self, by: object) -> bool:
        """Return whether the transport itself identifies both ends in this way."""
        return isinstance(by, str) and _BY_TRANSPORT.get(by) == self._transport

    def _with_secret(self, credential: Credential, engine_nonce: bytes) -> dict[str, str]:
        """Return the hello with a proof of the secret, and prepare the codes."""
        nonce, host, version = self._make_nonce(), self._hello["host"], self._hello["agent_version"]
        terms = Terms(engine_nonce, nonce, credential.key_id, credential.role.value, host, version)
        keys = session_keys(credential.secret, terms)
        self._opener, self._sealer = Opener(keys.from_engine), Sealer(keys.from_agent)
        return {
            **self._hello,
            "key_id": credential.key_id,
            "nonce": nonce.hex(),
            "challenge": engine_nonce.hex(),
            "proof": keys.proof.hex(),
        }


def _nonce_of(challenge: Mapping[str, Any]) -> bytes:
    """Return the nonce of a challenge; raise ``IdentityError`` if the message is none."""
    value = challenge.get("nonce")
    try:
        nonce = bytes.fromhex(value) if type(value) is str and len(value) == 2 * NONCE_BYTES else b""
    except ValueError:
        nonce = b""
    if challenge.get("t") != "challenge" or len(nonce) != NONCE_BYTES:
        text = "the engine's first message is no challenge: is it an engine of an older version?"
        raise IdentityError(IdentityRefusal.ENGINE_UNPROVEN, text)
    return nonce
