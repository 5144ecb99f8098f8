"""Checks who signed a person's request that came over Kafka."""

from __future__ import annotations

from tocsin.pipeline.identity.principal import BY_SIGNATURE, Principal
from tocsin.schemas.credential_store import CredentialStore
from tocsin.schemas.credentials import Credential, Role
from tocsin.schemas.errors import IdentityError
from tocsin.schemas.operator_requests import is_request_signed_by, key_id_in
from tocsin.schemas.reasons import IdentityRefusal


class OperatorChecker:
    """Checks the signatures of requests against a credentials file, which it reads again where it changed."""

    def __init__(self, store: CredentialStore) -> None:
        """Use a credential store."""
        self._store = store

    def find(self, key_id: str) -> Credential | None:
        """Return the credential with this key id, None: there is none."""
        return self._store.find(key_id)

    def check(self, value: bytes, header: bytes | None, at_ns: int) -> Credential:
        """Return the operator's credential that signed a request.

        Args:
            value: the request's bytes.
            header: its ``signature`` header, None: it has none.
            at_ns: the broker's time of the request, at which the credential must count.

        Raises:
            IdentityError: the request is unsigned, or signed with an unknown, revoked or wrong key, or by no operator.
        """
        if header is None:
            raise IdentityError(IdentityRefusal.UNSIGNED, "the request has no signature, and this engine asks for one")
        self._store.refresh()
        key_id = key_id_in(header)
        credential = self._store.find(key_id)
        if credential is None or not credential.secret:
            raise IdentityError(IdentityRefusal.UNKNOWN_KEY, f"nobody has the key {key_id[:80]!r}")
        if not is_request_signed_by(value, header, credential):
            text = f"the signature was not made with the key {key_id}, or the request was changed"
            raise IdentityError(IdentityRefusal.BAD_SIGNATURE, text)
        if not credential.is_valid(at_ns):
            raise IdentityError(IdentityRefusal.KEY_REVOKED, f"the key {key_id} was revoked")
        if credential.role is not Role.OPERATOR:
            text = f"a request of {credential.role.value} {credential.name}: takes role {Role.OPERATOR.value}"
            raise IdentityError(IdentityRefusal.ROLE_REFUSED, text)
        return credential


def actor_of(credential: Credential) -> str:
    """Return who acts with a credential, as it is kept with what they say."""
    return Principal(credential.name, credential.role, BY_SIGNATURE, credential).actor
