"""What peers of the engine may use: connections, bytes, time, turns."""

from __future__ import annotations

import contextlib
import resource
from collections import Counter
from dataclasses import dataclass
from typing import Final

from tocsin.schemas.wire.codec import MAX_RECORD_BYTES

WANTED_DESCRIPTORS: Final = 65_536
"""Open files that ``serve`` asks the kernel for; it gets at most the hard limit."""
_RESERVED_DESCRIPTORS: Final = 256
"""Left for the database, the control socket, recordings and pages."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Bounds of the agents' listener.

    Attributes:
        connection_count: open at a time, in all; fewer where the process may open fewer files.
        address_connection_count: of one address (a user, on a unix socket), before they have signed in.
        principal_connection_count: of one signed-in peer; the oldest goes when another comes.
        message_bytes: longest record.
        control_bytes: longest control message.
        inbox_bytes: received and not worked off, of all connections together; the largest goes first.
        outbox_bytes: answers that one peer has not read.
        sign_in_seconds: a connection that has not signed in by then is closed.
        message_seconds: time for a message to be complete, and for a peer to read what it was answered.
        silent_seconds: a signed-in peer that says nothing for so long is closed; agents ask the time every ten.
        turn_message_count: messages of one peer that are worked off before it is another's turn.
        turn_bytes: bytes likewise; a longer message is paid for with the next turns.
    """

    connection_count: int = 20_000
    address_connection_count: int = 256
    principal_connection_count: int = 4
    message_bytes: int = MAX_RECORD_BYTES
    control_bytes: int = 8_192
    inbox_bytes: int = 256 << 20
    outbox_bytes: int = 1 << 20
    sign_in_seconds: float = 30.0
    message_seconds: float = 30.0
    silent_seconds: float = 300.0
    turn_message_count: int = 64
    turn_bytes: int = 1 << 18


def raise_descriptor_limit(wanted: int = WANTED_DESCRIPTORS) -> int:
    """Raise the soft limit of open files as far as the hard limit allows; return what it is now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    best = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft == resource.RLIM_INFINITY or soft >= best:
        return WANTED_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
    with contextlib.suppress(OSError, ValueError):  # a container may forbid it: the limit stays
        resource.setrlimit(resource.RLIMIT_NOFILE, (best, hard))
        return best
    return soft


def connection_room(limits: ServerLimits) -> int:
    """How many connections fit below the soft limit of open files, at most ``limits.connection_count``."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return limits.connection_count
    return max(16, min(limits.connection_count, soft - _RESERVED_DESCRIPTORS))


class Quota:
    """Shares of the listener's time: so many messages and bytes a peer and turn.

    A message longer than a turn's bytes makes a debt that the next turns pay.
    """

    def __init__(self, limits: ServerLimits) -> None:
        """Begin with whole shares."""
        self._limits = limits
        self._bytes: Counter[str] = Counter()
        self._messages: Counter[str] = Counter()

    def next_turn(self) -> None:
        """Give everybody the next share."""
        self._messages.clear()
        most = self._limits.turn_bytes
        for group, spent in list(self._bytes.items()):
            if spent <= most:
                del self._bytes[group]
            else:
                self._bytes[group] = spent - most

    def has_left(self, group: str) -> bool:
        """Whether a peer may go on in this turn."""
        return self._messages[group] < self._limits.turn_message_count and self._bytes[group] < self._limits.turn_bytes

    def spend(self, group: str, size_bytes: int) -> None:
        """Count one message."""
        self._messages[group] += 1
        self._bytes[group] += size_bytes
