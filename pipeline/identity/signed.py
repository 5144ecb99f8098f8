"""Check the signatures of records that arrive over Kafka, and whether the signer may send them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tocsin.pipeline.identity.key_trouble import KeyFileWatch
from tocsin.pipeline.identity.principal import BY_SIGNATURE, Principal
from tocsin.schemas.credential_store import CredentialStore
from tocsin.schemas.credentials import ANY_NAME, Credential, Role
from tocsin.schemas.errors import IdentityError
from tocsin.schemas.events import ACTION_CHANGE
from tocsin.schemas.model_announcement import ModelAnnouncement
from tocsin.schemas.reasons import IdentityRefusal
from tocsin.schemas.records import Event, Record, Tick
from tocsin.schemas.signatures import Signer, signature_of

if TYPE_CHECKING:
    from tocsin.pipeline.identity.action_records import ActionRecordChecker


@dataclass(frozen=True, slots=True)
class SignatureConfig:
    """Settings for checking records and signing verdicts in a job that reads from Kafka.

    Paths are on the worker's machine.

    Attributes:
        credentials: path of the file with all hosts' credentials, "" = records are not checked.
        allow_player: whether credentials of role ``player`` are accepted, and recorded moves of ranks between hosts
            believed.
        signing_key: path of the engine's private key, "" = verdicts are not signed.
    """

    credentials: str = ""
    allow_player: bool = False
    signing_key: str = ""


class _KnownSigner(NamedTuple):
    """A known signer: its credential, the signature checker and the principal."""

    credential: Credential
    signer: Signer
    principal: Principal


class SignedRecords:
    """Checks the signatures of records against a credentials file."""

    def __init__(self, store: CredentialStore, *, allow_player: bool = False) -> None:
        """Use a credential store.

        Args:
            store: the valid credentials; call ``refresh`` regularly so that revocations take effect.
            allow_player: whether a signer of role ``player`` may send records of any host.
        """
        self._store = store
        self._watch = KeyFileWatch(store.path)
        self._allow_player = allow_player
        self._signers: dict[bytes, _KnownSigner] = {}
        self._controllers: ActionRecordChecker | None = None

    @classmethod
    def of_config(cls, config: SignatureConfig) -> SignedRecords | None:
        """Return a checker for these settings, None if they name no credentials file.

        Raises:
            CredentialError: the file cannot be used.
        """
        if not config.credentials:
            return None
        return cls(CredentialStore(Path(config.credentials)), allow_player=config.allow_player)

    def refresh(self) -> None:
        """Reload the credentials file if it changed, and log what became of it."""
        is_changed = self._store.refresh()
        self._watch.see(self._store, len(self._store.all()), is_changed=is_changed)
        if is_changed:
            self._signers.clear()
            self._controllers = None

    def check(self, record: Record, data: bytes) -> int:
        """Check that a record is signed by someone who may send it; ticks need no signature.

        Args:
            record: the decoded record.
            data: its bytes, including the signature.

        Returns:
            Length of the record's bytes without the signature.

        Raises:
            IdentityError: the record is unsigned, signed with an unknown, revoked or wrong key, or not the signer's to
                send.
        """
        if isinstance(record, Tick):
            return len(data)
        found = signature_of(data)
        if found is None and isinstance(record, Event) and record.name == ACTION_CHANGE:
            self._check_action(record)
            return len(data)
        if found is None:
            raise IdentityError(IdentityRefusal.UNSIGNED, "the record has no signature, and this engine asks for one")
        known = self._signers.get(found.key_id) or self._learn(found.key_id)
        if not known.signer.is_mine(data, found):
            key_id = known.credential.key_id
            text = f"the signature was not made with the key {key_id}, or the record was changed"
            raise IdentityError(IdentityRefusal.BAD_SIGNATURE, text)
        # A stamp of before a revocation is late; of a model the time counts from which on it is used, which lies ahead.
        at_ns = record.effective_ns if isinstance(record, ModelAnnouncement) else record.ts_ns
        if not known.credential.is_valid(at_ns):
            raise IdentityError(IdentityRefusal.KEY_REVOKED, f"{known.credential.key_id} was revoked before the record")
        known.principal.check(record)
        return found.start_byte_count

    def _check_action(self, record: Event) -> None:
        """Check that a controller signed what a record tells of an action; raise ``IdentityError`` if not."""
        from tocsin.pipeline.identity.action_records import ActionRecordChecker  # cryptography: only here

        if self._controllers is None:
            self._controllers = ActionRecordChecker(self._store.all())
        self._controllers.check_record(record)

    def _learn(self, raw: bytes) -> _KnownSigner:
        """Look up a key id, remember its signer for later records, and return it.

        Raise ``IdentityError`` if it is refused.
        """
        key_id = raw.decode("ascii", "backslashreplace")
        credential = self._store.find(key_id)
        if credential is None or not credential.secret:
            raise IdentityError(IdentityRefusal.UNKNOWN_KEY, f"nobody has the key {key_id}")
        if credential.role is Role.PLAYER and not self._allow_player:
            raise IdentityError(IdentityRefusal.PLAYER_REFUSED, f"key {key_id} is a player's: this engine takes none")
        if credential.name == ANY_NAME and credential.role is Role.AGENT:
            raise IdentityError(IdentityRefusal.NOT_LOCAL, f"key {key_id} counts on the engine's own machine only")
        principal = Principal(credential.name, credential.role, BY_SIGNATURE, credential)
        found = self._signers[raw] = _KnownSigner(credential, Signer(credential), principal)
        return found
