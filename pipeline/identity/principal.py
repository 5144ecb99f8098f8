"""Who is at the other end of a connection, and what they may say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from tocsin.schemas import events
from tocsin.schemas.credentials import ANY_NAME, Credential, Role
from tocsin.schemas.errors import IdentityError
from tocsin.schemas.kinds import EventSource
from tocsin.schemas.model_announcement import ModelAnnouncement
from tocsin.schemas.reasons import IdentityRefusal
from tocsin.schemas.records import Event, JobRecord, Record, Tick

BY_UID: Final = "uid"
BY_SECRET: Final = "secret"  # noqa: S105  # a word of the protocol, not a password
BY_CERTIFICATE: Final = "certificate"
BY_SIGNATURE: Final = "signature"
BY_NOTHING: Final = "nothing"
WAYS: Final = (BY_UID, BY_SECRET, BY_CERTIFICATE, BY_SIGNATURE, BY_NOTHING)
"""How somebody proved who they are; ``nothing``: the engine was told in words not to ask."""
_SILENT: Final = (Role.READER, Role.EXECUTOR)
"""Who sends nothing, not even a tick."""


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody who signed in.

    Attributes:
        host: who they are: the host of their hello, which their credential covers.
        role: what they may say.
        by: how they proved it, one of ``WAYS``.
        credential: the credential behind it, None: uid, certificate or nothing.
    """

    host: str
    role: Role = Role.AGENT
    by: str = BY_NOTHING
    credential: Credential | None = None

    @property
    def label(self) -> str:
        """A short name for logs: role, host and key."""
        key = "" if self.credential is None else f" key {self.credential.key_id}"
        return f"{self.role.value} {self.host} by {self.by}{key}"

    def share_of(self, record: JobRecord) -> str:
        """Return for whom a record counts where the engine's memory is shared out: a player's hosts are many."""
        return f"{self.label} as {record.host}" if self.role is Role.PLAYER else self.label

    def check(self, record: Record) -> None:
        """Refuse a record that they may not send.

        Raises:
            IdentityError: a model, the closing of an incident, another host's record, or not of their role; of some
                roles everything.
        """
        if isinstance(record, ModelAnnouncement):
            if self.role is Role.TRAINER and self.by == BY_SIGNATURE:
                return
            text = f"a model for {record.name} from {self.label}: announce it over the control socket, or signed"
            raise IdentityError(IdentityRefusal.MODEL_REFUSED, text)
        if isinstance(record, Event) and record.name == events.INCIDENT_CLOSE and self.role is not Role.PLAYER:
            text = f"{events.INCIDENT_CLOSE} from {self.label}: close incidents over the control socket"
            raise IdentityError(IdentityRefusal.CLOSE_REFUSED, text)
        if self.role in _SILENT:
            text = f"{type(record).__name__} from {self.label}: this role sends no records"
            raise IdentityError(IdentityRefusal.ROLE_REFUSED, text)
        if isinstance(record, Tick) or self.role is Role.PLAYER:
            return
        is_schedulers = isinstance(record, Event) and record.source is EventSource.SCHEDULER
        wanted = Role.SCHEDULER if is_schedulers else Role.AGENT
        if self.role is not wanted:
            kind = f"{type(record).__name__} of source scheduler" if is_schedulers else type(record).__name__
            raise IdentityError(IdentityRefusal.ROLE_REFUSED, f"{kind} from {self.label}: takes role {wanted.value}")
        if record.host != self.host and self.role is Role.AGENT:
            text = f"record.host = {record.host[:80]!r}: must be {self.host[:80]!r}, whose connection this is"
            raise IdentityError(IdentityRefusal.RECORD_HOST, text)


def check_hello_host(credential: Credential, host: str, *, is_own_machine: bool) -> None:
    """Refuse a hello of a host that the credential does not belong to.

    Raises:
        IdentityError: another host's credential, or one for every host of this machine from another machine.
    """
    if not credential.speaks_for(host):
        text = f"hello.host = {host[:80]!r}: key {credential.key_id} belongs to {credential.name[:80]!r}"
        raise IdentityError(IdentityRefusal.HELLO_HOST, text)
    if credential.name == ANY_NAME and credential.role is Role.AGENT and not is_own_machine:
        text = f"key {credential.key_id} counts on the engine's own machine only: issue one for {host[:80]!r}"
        raise IdentityError(IdentityRefusal.NOT_LOCAL, text)
