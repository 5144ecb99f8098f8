"""Authenticated peers (principals), and the rules for which records each role may send."""

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
"""Kinds of proof of identity; ``nothing`` means that the engine was explicitly started without authentication."""
_SILENT: Final = (Role.READER, Role.OPERATOR, Role.EXECUTOR, Role.CHECKER, Role.CONTROLLER)
"""Roles that may send no records, not even ticks."""


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated peer.

    Attributes:
        host: host name of its hello, covered by its credential.
        role: role that decides which records it may send.
        by: how it proved its identity, one of ``WAYS``.
        credential: its credential; None if it was trusted by uid, certificate or without proof.
    """

    host: str
    role: Role = Role.AGENT
    by: str = BY_NOTHING
    credential: Credential | None = None

    @property
    def actor(self) -> str:
        """Who acts, for what is kept of their requests: role and the credential's name, or its id if it has any name.

        It is "" without a credential.
        """
        if self.credential is None:
            return ""
        own = self.credential.key_id if self.credential.name == ANY_NAME else self.credential.name
        return f"{self.role.value}:{own}"

    @property
    def label(self) -> str:
        """Short name for logs: role, host, kind of proof and key id."""
        key = "" if self.credential is None else f" key {self.credential.key_id}"
        return f"{self.role.value} {self.host} by {self.by}{key}"

    def share_of(self, record: JobRecord) -> str:
        """Return the name under which a record counts against memory limits.

        A player sends records of many hosts, so each of its hosts gets a name of its own.
        """
        return f"{self.label} as {record.host}" if self.role is Role.PLAYER else self.label

    def check(self, record: Record) -> None:
        """Raise an error if this principal may not send a record.

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
            if self.role is Role.OPERATOR and self.by == BY_SIGNATURE and record.payload.get("actor") == self.actor:
                return
            text = f"{events.INCIDENT_CLOSE} from {self.label}: close incidents over the control socket"
            raise IdentityError(IdentityRefusal.CLOSE_REFUSED, text)
        if isinstance(record, Event) and record.name == events.ACTION_CHANGE and self.role is not Role.PLAYER:
            text = f"{events.ACTION_CHANGE} from {self.label}: only the controller tells of actions, with its own key"
            raise IdentityError(IdentityRefusal.ROLE_REFUSED, text)
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
    """Raise an error if a credential does not cover the host named in a hello.

    Raises:
        IdentityError: the credential belongs to another host, or it is valid on the engine's machine only and the peer
            is elsewhere.
    """
    if not credential.speaks_for(host):
        text = f"hello.host = {host[:80]!r}: key {credential.key_id} belongs to {credential.name[:80]!r}"
        raise IdentityError(IdentityRefusal.HELLO_HOST, text)
    if credential.name == ANY_NAME and credential.role is Role.AGENT and not is_own_machine:
        text = f"key {credential.key_id} counts on the engine's own machine only: issue one for {host[:80]!r}"
        raise IdentityError(IdentityRefusal.NOT_LOCAL, text)
