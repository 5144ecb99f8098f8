"""Sign messages, and check their signatures, with Ed25519: a checker cannot forge them (docs/adr/0024).

A signature is the header ``signature: KEY_ID HEX`` of a message and covers the message's value. Each purpose has a
context of its own, so that a signature is never valid for another one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Final, Self

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from tocsin.pipeline.identity.key_trouble import KeyFileWatch
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


class SigningKeyFile(KeyFileWatch):
    """The private key of one holder as a file holds it now; it may be used from several threads.

    A file that cannot be used, or holds no key of the holder that counts, leaves the key that was read before.
    """

    def __init__(self, path: str | Path, role: Role) -> None:
        """Read the newest valid key of a role.

        Raises:
            CredentialError: the file cannot be used, or has no such key.
        """
        super().__init__(path)
        self._store = CredentialStore(Path(path))
        self._own = newest_key(self._store, role, time.time_ns())
        self._lock = threading.Lock()

    def now(self) -> Credential:
        """Return the holder's newest key that counts, or the last one that could be read."""
        with self._lock:
            is_changed = self._store.refresh()
            own = self._own.role, self._own.name
            valid = [one for one in self._store.valid(time.time_ns()) if len(one.secret) == _KEY_BYTES]
            found = [one for one in valid if (one.role, one.name) == own]
            self._own = max(found, key=_age, default=self._own)
            self.see(self._store, len(found), is_changed=is_changed)
            return self._own


class MessageSigner:
    """Signs messages of one purpose with one private key, or with the one that a file holds now.

    Attributes:
        credential: the credential that signs.
        key_file: the file that is followed, None: the key stays as it is.
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
        self.key_file: SigningKeyFile | None = None

    def follow(self, key_file: SigningKeyFile | None) -> Self:
        """Sign with the key that a file holds now, from the next message on; None: with the present one for good."""
        self.key_file = key_file
        return self

    def header(self, value: bytes) -> bytes:
        """Return the signature header of a message with this value: key id, space, signature in hex."""
        found = self.credential if self.key_file is None else self.key_file.now()
        if found is not self.credential:
            self.credential, self._key = found, Ed25519PrivateKey.from_private_bytes(found.secret)
        return f"{found.key_id} {self._key.sign(self._context + value).hex()}".encode()


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
    return max(keys, key=_age)


def _age(credential: Credential) -> tuple[int, str]:
    """Return by what the newest of several credentials is found."""
    return credential.created_ns, credential.key_id


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
