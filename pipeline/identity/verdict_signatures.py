"""Sign verdicts, and check their signatures, with Ed25519: a checker cannot forge them (docs/adr/0024).

A signature is the header ``signature: KEY_ID HEX`` of the verdict's message and covers the message's value. Consumers
compare and store only the value, which is the same with and without a signature.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from tocsin.schemas.credential_store import CredentialStore
from tocsin.schemas.credentials import Credential, Role, check_key_id, new_credential
from tocsin.schemas.errors import CredentialError, FieldError, IdentityError
from tocsin.schemas.reasons import IdentityRefusal

_CONTEXT: Final = b"tocsin verdict 1\0"
"""Prefix of the signed bytes, so that a verdict's signature is never valid for other data signed with the same key."""
_KEY_BYTES: Final = 32
"""Length of a private or public key."""
_SIGNATURE_BYTES: Final = 64
"""Length of a signature."""


def new_engine_key(name: str, created_ns: int) -> Credential:
    """Return a new engine credential: ``secret`` is the private key, ``public_key`` is for consumers.

    Raises:
        FieldError: the name is not valid.
    """
    fresh = new_credential(Role.ENGINE, name, created_ns)
    public = Ed25519PrivateKey.from_private_bytes(fresh.secret).public_key().public_bytes_raw()
    return Credential(fresh.key_id, Role.ENGINE, name, fresh.secret, public, created_ns)


def public_half(credential: Credential) -> Credential:
    """Return a copy of a credential without its secret."""
    return Credential(
        credential.key_id,
        credential.role,
        credential.name,
        b"",
        credential.public_key,
        credential.created_ns,
        credential.revoked_ns,
    )


class VerdictSigner:
    """Signs verdicts with one engine's private key."""

    def __init__(self, credential: Credential) -> None:
        """Use the private key of a credential.

        Raises:
            FieldError: the credential holds no private key of role ``engine``.
        """
        if credential.role is not Role.ENGINE or len(credential.secret) != _KEY_BYTES:
            raise FieldError("signing-key", credential.key_id, f"of role {Role.ENGINE.value}, with its private half")
        self._key = Ed25519PrivateKey.from_private_bytes(credential.secret)
        self._key_id = credential.key_id

    @classmethod
    def of_file(cls, store: CredentialStore, now_ns: int) -> VerdictSigner:
        """Return a signer with the newest valid engine key in a credential store.

        Raises:
            CredentialError: the store has no such key.
        """
        keys = [one for one in store.valid(now_ns) if one.role is Role.ENGINE and one.secret]
        if not keys:
            raise CredentialError(
                str(store.path), f"a file with a private key of role {Role.ENGINE.value} that counts now"
            )
        return cls(max(keys, key=lambda one: (one.created_ns, one.key_id)))

    def header(self, value: bytes) -> bytes:
        """Return the signature header of a message with this value: key id, space, signature in hex."""
        return f"{self._key_id} {self._key.sign(_CONTEXT + value).hex()}".encode()


class VerdictChecker:
    """Checks verdict signatures against the public keys of engines."""

    def __init__(self, credentials: Iterable[Credential]) -> None:
        """Keep the public keys of role ``engine``; other credentials are ignored."""
        self._keys = {
            one.key_id: (one, Ed25519PublicKey.from_public_bytes(one.public_key))
            for one in credentials
            if one.role is Role.ENGINE and len(one.public_key) == _KEY_BYTES
        }

    @property
    def key_ids(self) -> tuple[str, ...]:
        """Ids of all known keys, including revoked ones, sorted."""
        return tuple(sorted(self._keys))

    def check(self, value: bytes, header: bytes | None, now_ns: int) -> str:
        """Verify a message's signature and return the id of the key that made it.

        Args:
            value: value of the message.
            header: its ``signature`` header, None = it has none.
            now_ns: the reader's current time, at which the key must be valid; the verdict's own time could be forged.

        Raises:
            IdentityError: the verdict is unsigned, or signed with an unknown, revoked or wrong key.
        """
        if header is None:
            raise IdentityError(
                IdentityRefusal.UNSIGNED, "the verdict has no signature, and this consumer asks for one"
            )
        key_id, signature = _parsed(header)
        known = self._keys.get(key_id)
        if known is None:
            raise IdentityError(IdentityRefusal.UNKNOWN_KEY, f"no engine has the key {key_id}")
        credential, public = known
        try:
            public.verify(signature, _CONTEXT + value)
        except InvalidSignature:
            text = f"the signature was not made with the key {key_id}, or the verdict was changed"
            raise IdentityError(IdentityRefusal.BAD_SIGNATURE, text) from None
        if not credential.is_valid(now_ns):
            raise IdentityError(IdentityRefusal.KEY_REVOKED, f"the key {key_id} was revoked")
        return key_id


def _parsed(header: bytes) -> tuple[str, bytes]:
    """Split a signature header into key id and signature bytes; raise ``IdentityError`` if it is malformed."""
    try:
        name, _, digits = header.decode("ascii").partition(" ")
        key_id, signature = check_key_id(name, "signature.key_id"), bytes.fromhex(digits)
    except (ValueError, FieldError):
        key_id, signature = "", b""
    if len(signature) != _SIGNATURE_BYTES:
        text = f"{header[:80]!r}: must be a key id, a space and {2 * _SIGNATURE_BYTES} hex digits"
        raise IdentityError(IdentityRefusal.BAD_SIGNATURE, text)
    return key_id, signature
