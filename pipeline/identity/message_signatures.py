"""Sign messages, and check their signatures, with Ed25519: a checker cannot forge them (docs/adr/0024).

A signature is the header ``signature: KEY_ID HEX`` of a message and covers the message's value. Each purpose has a
context of its own, so that a signature is never valid for another one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from tocsin.schemas.credential_store import CredentialStore
from tocsin.schemas.credentials import Credential, Role, check_key_id, new_credential
from tocsin.schemas.errors import CredentialError, FieldError, IdentityError
from tocsin.schemas.reasons import IdentityRefusal

_KEY_BYTES: Final = 32
"""Length of a private or public key."""
_SIGNATURE_BYTES: Final = 64
"""Length of a signature."""


def new_signing_key(role: Role, name: str, created_ns: int) -> Credential:
    """Return a new credential that signs: ``secret`` is the private key, ``public_key`` is for checkers.

    Raises:
        FieldError: the name is not valid.
    """
    fresh = new_credential(role, name, created_ns)
    public = Ed25519PrivateKey.from_private_bytes(fresh.secret).public_key().public_bytes_raw()
    return replace(fresh, public_key=public)


def public_half(credential: Credential) -> Credential:
    """Return a copy of a credential without its secret."""
    return replace(credential, secret=b"")


class MessageSigner:
    """Signs messages of one purpose with one private key.

    Attributes:
        credential: the credential that signs.
    """

    def __init__(self, credential: Credential, role: Role, context: bytes) -> None:
        """Use the private key of a credential.

        Args:
            credential: holds the key.
            role: role that it must have.
            context: what the signed bytes begin with, for this purpose only.

        Raises:
            FieldError: the credential holds no private key of that role.
        """
        if credential.role is not role or len(credential.secret) != _KEY_BYTES:
            raise FieldError("signing-key", credential.key_id, f"of role {role.value}, with its private half")
        self._key = Ed25519PrivateKey.from_private_bytes(credential.secret)
        self._context = context
        self.credential = credential

    def header(self, value: bytes) -> bytes:
        """Return the signature header of a message with this value: key id, space, signature in hex."""
        return f"{self.credential.key_id} {self._key.sign(self._context + value).hex()}".encode()


class MessageChecker:
    """Checks signatures of one purpose against public keys."""

    def __init__(self, credentials: Iterable[Credential], roles: Collection[Role], context: bytes, what: str) -> None:
        """Keep the public keys of some roles; other credentials are ignored.

        Args:
            credentials: all credentials.
            roles: roles whose holders sign such messages.
            context: what the signed bytes begin with.
            what: what is signed, for messages of errors, e.g. ``verdict``.
        """
        self._context, self._what = context, what
        self._holders = "/".join(sorted(role.value for role in roles))
        self._keys = {
            one.key_id: (one, Ed25519PublicKey.from_public_bytes(one.public_key))
            for one in credentials
            if one.role in roles and len(one.public_key) == _KEY_BYTES
        }

    @property
    def key_ids(self) -> tuple[str, ...]:
        """Ids of all known keys, including revoked ones, sorted."""
        return tuple(sorted(self._keys))

    def signer_of(self, value: bytes, header: bytes | None, now_ns: int) -> Credential:
        """Verify a message's signature and return the credential that made it.

        Args:
            value: value of the message.
            header: its ``signature`` header, None = it has none.
            now_ns: the reader's current time, at which the key must be valid; the message's own time could be forged.

        Raises:
            IdentityError: the message is unsigned, or signed with an unknown, revoked or wrong key.
        """
        if header is None:
            text = f"the {self._what} has no signature, and this consumer asks for one"
            raise IdentityError(IdentityRefusal.UNSIGNED, text)
        key_id, signature = _parsed(header)
        known = self._keys.get(key_id)
        if known is None:
            raise IdentityError(IdentityRefusal.UNKNOWN_KEY, f"no {self._holders} has the key {key_id}")
        credential, public = known
        try:
            public.verify(signature, self._context + value)
        except InvalidSignature:
            text = f"the signature was not made with the key {key_id}, or the {self._what} was changed"
            raise IdentityError(IdentityRefusal.BAD_SIGNATURE, text) from None
        if not credential.is_valid(now_ns):
            raise IdentityError(IdentityRefusal.KEY_REVOKED, f"the key {key_id} was revoked")
        return credential

    def check(self, value: bytes, header: bytes | None, now_ns: int) -> str:
        """Verify a message's signature like ``signer_of``, and return the id of the key that made it."""
        return self.signer_of(value, header, now_ns).key_id


def newest_key(store: CredentialStore, role: Role, now_ns: int) -> Credential:
    """Return the newest valid private key of a role in a credential store.

    Raises:
        CredentialError: the store has no such key.
    """
    keys = [one for one in store.valid(now_ns) if one.role is role and one.secret]
    if not keys:
        raise CredentialError(str(store.path), f"a file with a private key of role {role.value} that counts now")
    return max(keys, key=lambda one: (one.created_ns, one.key_id))


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
