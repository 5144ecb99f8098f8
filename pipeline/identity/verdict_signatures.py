"""Signatures of verdicts: the engine's key signs them, and consumers hold only its public half (docs/adr/0024).

Consumers compare and store only the message's value, which is the same with and without a signature.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from tocsin.pipeline.identity.message_signatures import (
    MessageChecker,
    MessageSigner,
    SigningKeyFile,
    new_signing_key,
    newest_key,
)
from tocsin.schemas.credential_store import CredentialStore
from tocsin.schemas.credentials import Credential, Role

_CONTEXT: Final = b"tocsin verdict 1\0"


def new_engine_key(name: str, created_ns: int) -> Credential:
    """Return a new engine credential: ``secret`` is the private key, ``public_key`` is for consumers.

    Raises:
        FieldError: the name is not valid.
    """
    return new_signing_key(Role.ENGINE, name, created_ns)


class VerdictSigner(MessageSigner):
    """Signs verdicts with one engine's private key."""

    def __init__(self, credential: Credential) -> None:
        """Use the private key of a credential.

        Raises:
            FieldError: the credential holds no private key of role ``engine``.
        """
        super().__init__(credential, Role.ENGINE, _CONTEXT)

    @classmethod
    def of_file(cls, store: CredentialStore, now_ns: int) -> VerdictSigner:
        """Return a signer with the newest valid engine key in a credential store, whose file it follows from then on.

        Raises:
            CredentialError: the store has no such key.
        """
        return cls(newest_key(store, Role.ENGINE, now_ns)).follow(SigningKeyFile(store.path, Role.ENGINE))


class VerdictChecker(MessageChecker):
    """Checks verdict signatures against the public keys of engines."""

    def __init__(self, credentials: Iterable[Credential]) -> None:
        """Keep the public keys of role ``engine``; other credentials are ignored."""
        super().__init__(credentials, (Role.ENGINE,), _CONTEXT, "verdict")
