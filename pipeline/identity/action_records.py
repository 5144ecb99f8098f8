"""Signatures of the records that tell a job of changes of its actions.

Agents sign records with a shared secret. The controller has a key pair, of which nobody else holds the private half. So
its records carry its signature in their payload.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from tocsin.pipeline.identity.message_signatures import MessageChecker, MessageSigner
from tocsin.schemas.action_records import SIGNATURE
from tocsin.schemas.credentials import Credential, Role
from tocsin.schemas.records import Event
from tocsin.schemas.wire.codec import encode

_CONTEXT: Final = b"tocsin action record 1\0"


class ActionRecordSigner(MessageSigner):
    """Signs such records with the controller's private key."""

    def __init__(self, credential: Credential) -> None:
        """Use the private key of a credential.

        Raises:
            FieldError: the credential holds no private key of role ``controller``.
        """
        super().__init__(credential, Role.CONTROLLER, _CONTEXT)

    def signed(self, event: Event) -> Event:
        """Return a record with its signature."""
        return replace(event, payload={**event.payload, SIGNATURE: self.header(encode(event)).decode()})


class ActionRecordChecker(MessageChecker):
    """Checks such records against the public keys of controllers."""

    def __init__(self, credentials: Iterable[Credential]) -> None:
        """Keep the public keys of role ``controller``."""
        super().__init__(credentials, (Role.CONTROLLER,), _CONTEXT, "record")

    def check_record(self, event: Event) -> None:
        """Verify a record's signature at the record's own time.

        Raises:
            IdentityError: it is unsigned, or not signed by a controller.
        """
        payload = dict(event.payload)
        header = payload.pop(SIGNATURE, None)
        self.signer_of(
            encode(replace(event, payload=payload)),
            header.encode("utf-8", "replace") if isinstance(header, str) else None,
            event.ts_ns,
        )
