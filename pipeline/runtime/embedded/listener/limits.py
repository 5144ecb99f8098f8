"""Limits on connections, bytes and processing time of the listener's peers."""

from __future__ import annotations

import contextlib
import resource
from collections import Counter
from dataclasses import dataclass
from typing import Final

from tocsin.schemas.wire.codec import MAX_RECORD_BYTES

WANTED_DESCRIPTORS: Final = 65_536
"""Open-file limit that ``serve`` requests; the kernel grants at most the hard limit."""
_RESERVED_DESCRIPTORS: Final = 256
"""Open files reserved for the database, the control socket, recordings and web pages."""


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """Limits of the listener.

    Attributes:
        connection_count: open connections in total; fewer if the process may open fewer files.
        address_connection_count: connections of one address (or user, on a unix socket) that have not signed in.
        principal_connection_count: connections of one principal; beyond it the oldest is closed.
        message_bytes: maximum size of a record.
        control_bytes: maximum size of a control message.
        inbox_bytes: received but unprocessed bytes of all connections; beyond it the largest inbox's connection is
            closed.
        outbox_bytes: unread answers of one peer.
        sign_in_seconds: time allowed for signing in.
        message_seconds: time allowed for a message to be complete, and for a peer to read an answer.
        silent_seconds: a signed-in peer that sends nothing for this long is disconnected; agents send every ten
            seconds.
        turn_message_count: messages of one peer processed before the next peer's turn.
        turn_bytes: bytes of one peer processed before the next peer's turn; a longer message uses up later turns.
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
    """Raise the soft limit of open files towards ``wanted``, as far as the hard limit allows.

    Return the new soft limit.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    best = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft == resource.RLIM_INFINITY or soft >= best:
        return WANTED_DESCRIPTORS if soft == resource.RLIM_INFINITY else soft
    with contextlib.suppress(OSError, ValueError):  # a container may forbid it: the limit stays
        resource.setrlimit(resource.RLIMIT_NOFILE, (best, hard))
        return best
    return soft


def connection_room(limits: ServerLimits) -> int:
    """Return how many connections fit below the soft limit of open files, at most ``limits.connection_count``."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return limits.connection_count
    return max(16, min(limits.connection_count, soft - _RESERVED_DESCRIPTORS))


class Quota:
    """Fair shares of the listener's time: a number of messages and bytes per peer and turn.

    A message longer than a turn's share is a debt that later turns pay.
    """

    def __init__(self, limits: ServerLimits) -> None:
        """Start with full shares."""
        self._limits = limits
        self._bytes: Counter[str] = Counter()
        self._messages: Counter[str] = Counter()

    def next_turn(self) -> None:
        """Start a new turn: give every peer its next share."""
        self._messages.clear()
        most = self._limits.turn_bytes
        for group, spent in list(self._bytes.items()):
            if spent <= most:
                del self._bytes[group]
            else:
                self._bytes[group] = spent - most

    def has_left(self, group: str) -> bool:
        """Return whether a peer has share left in this turn."""
        return self._messages[group] < self._limits.turn_message_count and self._bytes[group] < self._limits.turn_bytes

    def spend(self, group: str, size_bytes: int) -> None:
        """Charge one message of this size to a peer."""
        self._messages[group] += 1
        self._bytes[group] += size_bytes
