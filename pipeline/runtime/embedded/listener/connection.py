"""One connection to the listener: its buffers, its identity and its timeouts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tocsin.schemas.credentials import Role
from tocsin.schemas.sign_in import TAG_BYTES
from tocsin.schemas.tls import TlsStream

if TYPE_CHECKING:
    import socket

    from tocsin.pipeline.identity.gate import PeerSignIn
    from tocsin.pipeline.runtime.embedded.listener.limits import ServerLimits

LENGTH_BYTES = 4
"""Size of the length that precedes each message."""


@dataclass(slots=True, eq=False)
class Connection:
    """One connection of an agent or another peer.

    Attributes:
        peer: the socket or TLS stream.
        address: IP address, or user on a unix socket; identifies the peer before it signs in.
        opened_seconds: when it was opened, on the listener's monotonic clock.
        heard_seconds: when it last sent something.
        message_seconds: since when the first message in the inbox has been incomplete, None = it is not.
        unread_seconds: since when the peer has not read its waiting answers, None = it reads.
        host: the host in its hello.
        principal: name of the signed-in principal, "" = not signed in; quotas and limits are counted by it.
        sign_in: its sign-in and message seals; None while the TLS handshake runs.
        inbox: received bytes that are not processed yet.
        outbox: bytes waiting to be sent.
        counted_bytes: size of the inbox as last added to the listener's total.
        served_turn: number of the listener's turn in which its last message was processed.
        taken_count: number of accepted records so far.
        acked_count: number of records acknowledged so far.
        is_live: whether the peer has reported that its stored records are all sent.
        answer_bytes: size of the longest answer to a question of this peer, which may exceed the outbox limit.
    """

    peer: socket.socket | TlsStream
    address: str = ""
    opened_seconds: float = 0.0
    heard_seconds: float = 0.0
    message_seconds: float | None = None
    unread_seconds: float | None = None
    host: str = ""
    principal: str = ""
    sign_in: PeerSignIn | None = None
    inbox: bytearray = field(default_factory=bytearray)
    outbox: bytearray = field(default_factory=bytearray)
    counted_bytes: int = 0
    served_turn: int = 0
    taken_count: int = 0
    acked_count: int = 0
    is_live: bool = False
    answer_bytes: int = 0

    def acknowledge(self, commit: Callable[[], bool]) -> bool:
        """Send the number of accepted records if it grew and ``commit`` returns True (they are stored).

        Return whether it was sent.
        """
        is_due = self.taken_count > self.acked_count and commit()
        if is_due:
            self.acked_count = self.taken_count
            self.say({"t": "ack", "count": self.taken_count})
        return is_due

    @property
    def group(self) -> str:
        """Name under which the connection shares the listener's time: its principal, or its address."""
        return self.principal or f"address {self.address}"

    @property
    def has_to_write(self) -> bool:
        """Whether data or a TLS handshake waits to be written."""
        return bool(self.outbox) or (isinstance(self.peer, TlsStream) and self.peer.wants_write)

    @property
    def next_bytes(self) -> int | None:
        """Announced length of the next message, None = not received yet."""
        if len(self.inbox) < LENGTH_BYTES:
            return None
        return int.from_bytes(self.inbox[:LENGTH_BYTES], "little")

    def has_message(self, limits: ServerLimits) -> bool:
        """Return whether a message can be processed: it is complete, or already known to be too long."""
        length = self.next_bytes
        if length is None:
            return False
        return length > self._most(limits) or len(self.inbox) - LENGTH_BYTES >= length

    def is_oversize(self, limits: ServerLimits) -> bool:
        """Return whether the next message is longer than allowed."""
        length = self.next_bytes
        return length is not None and length > self._most(limits)

    def _most(self, limits: ServerLimits) -> int:
        """Return the maximum length of the next message: that of a control message, or of a record."""
        is_control = not self.principal or self.inbox[LENGTH_BYTES : LENGTH_BYTES + 1] == b"{"
        return (limits.control_bytes if is_control else limits.message_bytes) + TAG_BYTES

    def pop_message(self) -> bytes:
        """Remove the next message, which must be complete, from the inbox and return it."""
        end = LENGTH_BYTES + (self.next_bytes or 0)
        data = bytes(self.inbox[LENGTH_BYTES:end])
        del self.inbox[:end]
        return data

    @property
    def is_reader(self) -> bool:
        """Whether the peer signed in with role ``reader`` or ``operator``, which send no records and may ask."""
        principal = None if self.sign_in is None else self.sign_in.principal
        return principal is not None and principal.role in (Role.READER, Role.OPERATOR)

    @property
    def operator(self) -> str:
        """Who acts, as ``operator:NAME``, if the peer signed in with role ``operator``; "" for all others."""
        principal = None if self.sign_in is None else self.sign_in.principal
        return principal.actor if principal is not None and principal.role is Role.OPERATOR else ""

    @property
    def executor(self) -> str:
        """Who asks, as ``executor:NAME`` or ``checker:HOST``, if the peer has one of these roles; "" for all others."""
        principal = None if self.sign_in is None else self.sign_in.principal
        return principal.actor if principal is not None and principal.role in (Role.EXECUTOR, Role.CHECKER) else ""

    def say(self, message: Mapping[str, Any]) -> None:
        """Put a control message into the outbox, sealed if both ends have a key."""
        self.say_encoded(json.dumps(message).encode())

    def say_encoded(self, text: bytes) -> None:
        """Put an already encoded control message into the outbox, sealed if both ends have a key."""
        if self.sign_in is not None:
            text += self.sign_in.tag(text)
        self.outbox += len(text).to_bytes(LENGTH_BYTES, "little") + text

    def overdue(self, limits: ServerLimits, now_seconds: float) -> str:
        """Return the reason to close the connection because of a timeout, "" = none."""
        if not self.principal and now_seconds - self.opened_seconds > limits.sign_in_seconds:
            return "not_signed_in"
        if self.message_seconds is not None and now_seconds - self.message_seconds > limits.message_seconds:
            return "message_unfinished"
        if self.unread_seconds is not None and now_seconds - self.unread_seconds > limits.message_seconds:
            return "answers_unread"
        if now_seconds - self.heard_seconds > limits.silent_seconds:
            return "silent"
        return ""
