"""Signatures of verdicts: Ed25519, so that whoever checks them cannot make them (docs/adr/0024).

A signature stands in a header of the verdict's message, ``signature: KEY_ID HEX``, and covers the message's value. What
consumers compare and store is the value alone, which is the same signed and unsigned.
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
"""A signature of a verdict is none of anything else that the same key may sign."""
_KEY_BYTES: Final = 32
_SIGNATURE_BYTES: Final = 64


def new_engine_key(name: str, created_ns: int) -> Credential:
    """Return a fresh pair: ``secret`` is the private half, ``public_key`` what consumers get.

    Raises:
        FieldError: the name cannot be one.
    """
    fresh = new_credential(Role.ENGINE, name, created_ns)
    public = Ed25519PrivateKey.from_private_bytes(fresh.secret).public_key().public_bytes_raw()
    return Credential(fresh.key_id, Role.ENGINE, name, fresh.secret, public, created_ns)


def public_half(credential: Credential) -> Credential:
    """Return a credential without its secret."""
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
    """Signs with one engine's private key."""

    def __init__(self, credential: Credential) -> None:
        """Take the key.

        Raises:
            FieldError: no private key of an engine.
        """
        if credential.role is not Role.ENGINE or len(credential.secret) != _KEY_BYTES:
            raise FieldError("signing-key", credential.key_id, f"of role {Role.ENGINE.value}, with its private half")
        self._key = Ed25519PrivateKey.from_private_bytes(credential.secret)
        self._key_id = credential.key_id

    @classmethod
    def of_file(cls, store: CredentialStore, now_ns: int) -> VerdictSigner:
        """Take the newest key of a file that counts now.

        Raises:
            CredentialError: it holds none.
        """
        keys = [one for one in store.valid(now_ns) if one.role is Role.ENGINE and one.secret]
        if not keys:
            raise CredentialError(
                str(store.path), f"a file with a private key of role {Role.ENGINE.value} that counts now"
            )
        return cls(max(keys, key=lambda one: (one.created_ns, one.key_id)))

    def header(self, value: bytes) -> bytes:
        """Return the header's value for a message's value."""
        return f"{self._key_id} {self._key.sign(_CONTEXT + value).hex()}".encode()


class VerdictChecker:
    """Checks verdicts against the public keys of engines."""

    def __init__(self, credentials: Iterable[Credential]) -> None:
        """Keep the public keys of role ``engine``; other credentials are passed over."""
        self._keys = {
            one.key_id: (one, Ed25519PublicKey.from_public_bytes(one.public_key))
            for one in credentials
            if one.role is Role.ENGINE and len(one.public_key) == _KEY_BYTES
        }

    @property
    def key_ids(self) -> tuple[str, ...]:
        """The keys that count, revoked ones too."""
        return tuple(sorted(self._keys))

    def check(self, value: bytes, header: bytes | None, now_ns: int) -> str:
        """Return the key id of a message's signature.

        Args:
            value: the message's value.
            header: its header ``signature``, None: it has none.
            now_ns: the time at which its key must count: the reader's, for the verdict's own is its writer's word.

        Raises:
            IdentityError: unsigned, or signed with an unknown, revoked or wrong key.
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
    try:
        name, _, digits = header.decode("ascii").partition(" ")
        key_id, signature = check_key_id(name, "signature.key_id"), bytes.fromhex(digits)
    except (ValueError, FieldError):
        key_id, signature = "", b""
    if len(signature) != _SIGNATURE_BYTES:
        text = f"{header[:80]!r}: must be a key id, a space and {2 * _SIGNATURE_BYTES} hex digits"
        raise IdentityError(IdentityRefusal.BAD_SIGNATURE, text)
    return key_id, signature
