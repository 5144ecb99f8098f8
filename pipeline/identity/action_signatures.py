"""Signatures of actions, acks and what else the controller is told: who may say what, and in whose name.

The controller signs actions with its own key. An executor signs its acks and what it read from its system; a person
signs commands with the key of an operator, and the actor is that key's holder. A checker is an executor that checks one
host, whose name its key has: as ``checker:HOST`` it announces that, and nothing else. What is unsigned, forged, or said
in another's name has a named reason for the dead letters, and no effect.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from tocsin.pipeline.identity.message_signatures import MessageChecker, MessageSigner
from tocsin.schemas.action_codec import decode_ack_or_event, decode_action
from tocsin.schemas.action_events import (
    Ack,
    ActionEvent,
    Approval,
    Cancel,
    CheckResult,
    CordonSeen,
    Denial,
    EngineHeartbeat,
    ExecutorHeard,
    HumanChange,
    JobFacts,
    MachineFacts,
    QuietSteps,
)
from tocsin.schemas.actions import Action
from tocsin.schemas.credentials import ANY_NAME, Credential, Role
from tocsin.schemas.errors import IdentityError
from tocsin.schemas.operator_notes import Feedback, Maintenance
from tocsin.schemas.reasons import IdentityRefusal
from tocsin.schemas.verdicts import ActionKind

_ACTION: Final = b"tocsin action 1\0"
_TOLD: Final = b"tocsin ack 1\0"
_SPEAKERS: Final[Mapping[type, frozenset[Role]]] = {
    Ack: frozenset({Role.EXECUTOR, Role.CHECKER}),
    ExecutorHeard: frozenset({Role.EXECUTOR, Role.CHECKER}),
    HumanChange: frozenset({Role.EXECUTOR}),
    CordonSeen: frozenset({Role.EXECUTOR}),
    MachineFacts: frozenset({Role.EXECUTOR, Role.AGENT, Role.ENGINE}),
    JobFacts: frozenset({Role.EXECUTOR, Role.SCHEDULER, Role.ENGINE}),
    CheckResult: frozenset({Role.EXECUTOR, Role.CHECKER, Role.AGENT, Role.OPERATOR}),
    QuietSteps: frozenset({Role.ENGINE}),
    EngineHeartbeat: frozenset({Role.ENGINE}),
    Approval: frozenset({Role.OPERATOR}),
    Denial: frozenset({Role.OPERATOR}),
    Cancel: frozenset({Role.OPERATOR}),
    Feedback: frozenset({Role.OPERATOR}),
    Maintenance: frozenset({Role.OPERATOR}),
}
"""What is told -> roles that may say it."""


class ActionSigner(MessageSigner):
    """Signs actions with the controller's private key."""

    def __init__(self, credential: Credential) -> None:
        """Use the private key of a credential.

        Raises:
            FieldError: the credential holds no private key of role ``controller``.
        """
        super().__init__(credential, Role.CONTROLLER, _ACTION)


class ActionChecker(MessageChecker):
    """Checks actions against the public keys of controllers, before an executor reads them."""

    def __init__(self, credentials: Iterable[Credential]) -> None:
        """Keep the public keys of role ``controller``."""
        super().__init__(credentials, (Role.CONTROLLER,), _ACTION, "action")

    def admit(self, value: bytes, header: bytes | None, now_ns: int) -> Action:
        """Verify and decode an action.

        Raises:
            IdentityError: it is unsigned, or not signed by a controller.
            SchemaError: the bytes are no action.
        """
        self.signer_of(value, header, now_ns)
        return decode_action(value)


class AckSigner(MessageSigner):
    """Signs what an executor, an operator, an agent or an engine tells the controller."""

    def __init__(self, credential: Credential) -> None:
        """Use the private key of a credential, whatever its role.

        Raises:
            FieldError: the credential holds no private key.
        """
        super().__init__(credential, credential.role, _TOLD)


class AckChecker(MessageChecker):
    """Checks who told the controller something, and whether the speaker may say that in that name."""

    def __init__(self, credentials: Iterable[Credential]) -> None:
        """Keep the public keys of all roles that tell the controller something."""
        super().__init__(credentials, frozenset().union(*_SPEAKERS.values()), _TOLD, "message")

    def admit(self, value: bytes, header: bytes | None, now_ns: int) -> Ack | ActionEvent:
        """Verify and decode an ack, a command, a fact or a note.

        That an old one is played again is found by the controller: by numbers of acks, and by times of commands and
        facts.

        Raises:
            IdentityError: it is unsigned, forged, not of the signer's role, or said in another's name.
            SchemaError: the bytes are no such message.
        """
        signer = self.signer_of(value, header, now_ns)
        told = decode_ack_or_event(value)
        kind = type(told)
        if signer.role not in _SPEAKERS[kind] or (signer.role is Role.CHECKER and not _is_check(told)):
            text = f"{signer.role.value} {signer.name} with the key {signer.key_id} says a {kind.__name__}"
            raise IdentityError(IdentityRefusal.ROLE_REFUSED, text)
        wanted = _name_in(told, signer.role)
        is_own = wanted == signer.name if signer.role is Role.CHECKER else wanted is None or signer.speaks_for(wanted)
        if not is_own:
            text = f"{wanted!r}, signed by {signer.role.value} {signer.name} with the key {signer.key_id}"
            raise IdentityError(IdentityRefusal.HELLO_HOST, text)
        return told


def actor_of(credential: Credential) -> str:
    """Return the actor that commands signed by a credential carry: role and holder, e.g. ``operator:ann``."""
    own = credential.key_id if credential.name == ANY_NAME else credential.name
    return f"{credential.role.value}:{own}"


def executor_name(credential: Credential) -> str:
    """Return the name in which a credential of role ``executor`` or ``checker`` says acks."""
    return actor_of(credential) if credential.role is Role.CHECKER else credential.name


def _is_check(told: Ack | ActionEvent) -> bool:
    """Return whether an announcement is one of checks on one host, or a message is none."""
    return not isinstance(told, ExecutorHeard) or (told.kinds == (ActionKind.PROBE,) and len(told.hosts) == 1)


def _checked_host(told: Ack | ActionEvent) -> str:
    """Return the one host in whose name a checker says something, "" if it says it in another name."""
    if not isinstance(told, Ack | ExecutorHeard):
        return str(getattr(told, "host", ""))
    prefix = f"{Role.CHECKER.value}:"
    host = told.executor.removeprefix(prefix) if told.executor.startswith(prefix) else ""
    return host if isinstance(told, Ack) or told.hosts == (host,) else ""


def _name_in(told: Ack | ActionEvent, role: Role) -> str | None:
    """Return the holder in whose name something is said, None if it names none.

    An actor must be the holder of the key, so of an actor of another form the whole text is returned.
    """
    if role is Role.CHECKER:
        return _checked_host(told)
    if isinstance(told, Ack | ExecutorHeard):
        return told.executor
    if role is Role.AGENT:
        return str(getattr(told, "host", ""))
    if isinstance(told, Approval | Denial | Cancel | Feedback | Maintenance):
        actor, prefix = told.actor, f"{Role.OPERATOR.value}:"
        return actor.removeprefix(prefix) if actor.startswith(prefix) else actor
    return None
