"""One connection of an agent: what it sent, what it is to be told, whose it is."""

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


@dataclass(slots=True, eq=False)
class Connection:
    """One agent, or somebody else.

    Attributes:
        peer: the socket.
        address: its IP address, or its user on a unix socket: who it is before it signs in.
        opened_seconds: when it came, on the listener's steady clock.
        heard_seconds: when it last sent something.
        message_seconds: since when the message at the head of the inbox is incomplete, None: it is not.
        unread_seconds: since when the peer reads none of what waits for it, None: it does.
        host: the host that its hello named.
        principal: who it is since it signed in, "" = it has not. Quotas and limits hang on it.
        sign_in: how it signs in, and its seals; None: it cannot be asked yet (TLS begins).
        inbox: bytes that are not worked off.
        outbox: bytes that wait for the peer to read.
        counted_bytes: of the inbox, as it was last counted among all.
        served_turn: the listener's turn in which it last had a message worked off.
        taken_count: records so far.
        acked_count: records that it was told of.
        is_live: it has said that what it had kept while nobody listened is sent.
        answer_bytes: length of the longest answer to a question of its own: more may wait for it to be read.
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
        """Tell how many records were taken, where that is news and they are kept; whether it was told."""
        is_due = self.taken_count > self.acked_count and commit()
        if is_due:
            self.acked_count = self.taken_count
            self.say({"t": "ack", "count": self.taken_count})
        return is_due

    @property
    def group(self) -> str:
        """Whose share of the listener's time it uses."""
        return self.principal or f"address {self.address}"

    @property
    def has_to_write(self) -> bool:
        """Whether something waits until the peer reads: answers, or its TLS handshake."""
        return bool(self.outbox) or (isinstance(self.peer, TlsStream) and self.peer.wants_write)

    @property
    def next_bytes(self) -> int | None:
        """Length that the next message announces, None: not yet known."""
        if len(self.inbox) < LENGTH_BYTES:
            return None
        return int.from_bytes(self.inbox[:LENGTH_BYTES], "little")

    def has_message(self, limits: ServerLimits) -> bool:
        """Whether there is something to work off: a whole message, or one that is refused before it is whole."""
        length = self.next_bytes
        if length is None:
            return False
        return length > self._most(limits) or len(self.inbox) - LENGTH_BYTES >= length

    def is_oversize(self, limits: ServerLimits) -> bool:
        """Whether the next message is longer than any of ours."""
        length = self.next_bytes
        return length is not None and length > self._most(limits)

    def _most(self, limits: ServerLimits) -> int:
        is_control = not self.principal or self.inbox[LENGTH_BYTES : LENGTH_BYTES + 1] == b"{"
        return (limits.control_bytes if is_control else limits.message_bytes) + TAG_BYTES

    def pop_message(self) -> bytes:
        """Take the next message, which is whole, out of the inbox."""
        end = LENGTH_BYTES + (self.next_bytes or 0)
        data = bytes(self.inbox[LENGTH_BYTES:end])
        del self.inbox[:end]
        return data

    @property
    def is_reader(self) -> bool:
        """Whether it signed in as one who only asks: it is no host's agent."""
        principal = None if self.sign_in is None else self.sign_in.principal
        return principal is not None and principal.role is Role.READER

    def say(self, message: Mapping[str, Any]) -> None:
        """Put a control message into the outbox, sealed where both ends have a key."""
        self.say_encoded(json.dumps(message).encode())

    def say_encoded(self, text: bytes) -> None:
        """As ``say``, for a message that is encoded already."""
        if self.sign_in is not None:
            text += self.sign_in.tag(text)
        self.outbox += len(text).to_bytes(LENGTH_BYTES, "little") + text

    def overdue(self, limits: ServerLimits, now_seconds: float) -> str:
        """Why it has to go by now, "" = it may stay."""
        if not self.principal and now_seconds - self.opened_seconds > limits.sign_in_seconds:
            return "not_signed_in"
        if self.message_seconds is not None and now_seconds - self.message_seconds > limits.message_seconds:
            return "message_unfinished"
        if self.unread_seconds is not None and now_seconds - self.unread_seconds > limits.message_seconds:
            return "answers_unread"
        if now_seconds - self.heard_seconds > limits.silent_seconds:
            return "silent"
        return ""
