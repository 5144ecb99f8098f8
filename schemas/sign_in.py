"""Mutual proof of a shared secret between the two ends of a connection: the computations, without sockets.

The engine sends a nonce; the agent answers with its own nonce and a proof; both derive keys for this connection.
From then on each message ends with an authentication code over its direction (which has a key of its own), its
number and its bytes. So a secret never travels. A message from another connection, a repeated, changed or
reordered one is refused.

docs/interfaces.md, section 2; docs/adr/0020.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from dataclasses import dataclass
from typing import Final

from tocsin.schemas.errors import IdentityError
from tocsin.schemas.reasons import IdentityRefusal

SIGN_IN_VERSION: Final = 1
NONCE_BYTES: Final = 32
TAG_BYTES: Final = 16
"""Length of an authentication code, 128 bits; one guess a connection, because a wrong code ends it."""
MAX_SIGN_IN_BYTES: Final = 8 * 1024
"""Longest message before the peer has signed in."""
_NUMBER: Final = struct.Struct("<Q")
_NAMED_BACK: Final = 256
_NAMED_BYTES: Final = 16 * 1024


@dataclass(frozen=True, slots=True)
class Terms:
    """The facts that both ends agree on when a connection begins; the connection's keys depend on all of them.

    Attributes:
        engine_nonce: nonce of the challenge.
        agent_nonce: nonce of the hello.
        key_id: id of the credential.
        role: role of the credential, as each end's own file has it.
        host: host name that the agent states.
        agent_version: version that the hello states.
    """

    engine_nonce: bytes
    agent_nonce: bytes
    key_id: str
    role: str
    host: str
    agent_version: str


@dataclass(frozen=True, slots=True)
class SessionKeys:
    """The derived keys of one connection.

    Attributes:
        proof: the agent's proof, sent in its hello.
        from_agent: key of the agent's messages.
        from_engine: key of the engine's messages; the first one, the welcome, is the engine's proof.
    """

    proof: bytes
    from_agent: bytes
    from_engine: bytes


def session_keys(secret: bytes, terms: Terms) -> SessionKeys:
    """Derive a connection's keys from the shared secret and the agreed facts."""
    parts = (
        terms.engine_nonce,
        terms.agent_nonce,
        *(text.encode() for text in (terms.key_id, terms.role, terms.host, terms.agent_version)),
    )
    # each part with its length: no two terms have the same bytes
    context = b"tocsin sign-in 1" + b"".join(_NUMBER.pack(len(part)) + part for part in parts)
    root = _mac(secret, context)
    return SessionKeys(_mac(root, b"proof of the agent"), _mac(root, b"from the agent"), _mac(root, b"from the engine"))


def is_same(one: bytes, other: bytes) -> bool:
    """Return whether two codes are equal, in a time that does not depend on where they differ."""
    return hmac.compare_digest(one, other)


class Sealer:
    """Computes the authentication codes of the messages of one direction."""

    __slots__ = ("_base", "_number")

    def __init__(self, key: bytes) -> None:
        """Start with message number 0."""
        self._base = hashlib.blake2b(key=key, digest_size=TAG_BYTES)
        self._number = 0

    def tag(self, data: bytes) -> bytes:
        """Return the authentication code to append to the next message, and count the message."""
        code = self._base.copy()
        code.update(_NUMBER.pack(self._number))
        code.update(data)
        self._number += 1
        return code.digest()


class Opener:
    """Checks the authentication codes of the messages of one direction."""

    __slots__ = ("_base", "_number")

    def __init__(self, key: bytes) -> None:
        """Expect message number 0 first."""
        self._base = hashlib.blake2b(key=key, digest_size=TAG_BYTES)
        self._number = 0

    def open(self, sealed: bytes) -> bytes:
        """Check the next message and return its bytes without the code.

        Args:
            sealed: the message with its code at the end.

        Raises:
            IdentityError: the code is missing or wrong; the connection must end.
        """
        if len(sealed) < TAG_BYTES:
            text = f"a message of {len(sealed)} bytes has no code of {TAG_BYTES}"
            raise IdentityError(IdentityRefusal.MAC_MISSING, text)
        data, tag = sealed[:-TAG_BYTES], sealed[-TAG_BYTES:]
        if not is_same(self._code(self._number, data), tag):
            raise self._refusal(data, tag)
        self._number += 1
        return data

    def _code(self, number: int, data: bytes) -> bytes:
        """Return the authentication code of a message with this number."""
        code = self._base.copy()
        code.update(_NUMBER.pack(number))
        code.update(data)
        return code.digest()

    def _refusal(self, data: bytes, tag: bytes) -> IdentityError:
        """Return the error for a wrong code: a replayed, an out-of-order or a forged message.

        Codes of neighbouring numbers are tried, which is affordable because the connection ends.
        """
        if len(data) <= _NAMED_BYTES:
            for number in range(max(0, self._number - _NAMED_BACK), self._number + _NAMED_BACK):
                if is_same(self._code(number, data), tag):
                    what, reason = f"message {number} where {self._number} is due", IdentityRefusal.OUT_OF_ORDER
                    return IdentityError(IdentityRefusal.REPLAYED if number < self._number else reason, what)
        text = f"message {self._number} is not what its sender sealed for this connection"
        return IdentityError(IdentityRefusal.MAC_WRONG, text)


def _mac(key: bytes, data: bytes) -> bytes:
    """Return the HMAC-SHA256 of the data."""
    return hmac.new(key, data, hashlib.sha256).digest()
