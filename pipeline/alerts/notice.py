"""A notice: what one route tells people about one incident, and what an adapter answers after sending it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from tocsin.schemas.reasons import NamedReason
from tocsin.schemas.verdicts import Verdict


class AlertSeverity(StrEnum):
    """Urgency of a notice, from a person woken at night to a line in a channel."""

    PAGE = "page"
    TICKET = "ticket"
    INFORMATION = "information"


class NoticeKind(StrEnum):
    """Statement of a notice about its incident."""

    FIRING = "firing"
    """The incident is told for the first time, or again after it ended."""
    CHANGED = "changed"
    """An incident that was told before has another fault, cause, suspect, action or severity."""
    RESOLVED = "resolved"
    """The incident ended."""
    TAKEN_BACK = "taken_back"
    """The incident was cancelled: it should not have been told."""
    LAPSED = "lapsed"
    """The incident expired: nobody renewed it, so nothing is known of its end."""
    TEST = "test"
    """``tocsin alerts test`` sent it; nothing is wrong."""
    WATCHDOG = "watchdog"
    """It is sent for as long as tocsin works; its absence is the alarm."""


ENDING = frozenset({NoticeKind.RESOLVED, NoticeKind.TAKEN_BACK, NoticeKind.LAPSED})
"""Kinds of notices after which the incident is no longer firing."""


class DeliveryReason(NamedReason):
    """Reason for the outcome of a delivery."""

    DELIVERED = "delivered", "The receiver took it."
    TIMED_OUT = "timed_out", "The receiver did not answer in time; it is sent again."
    UNREACHABLE = "unreachable", "No connection to the receiver; it is sent again."
    RATE_LIMITED = "rate_limited", "The receiver asks for fewer messages (429); it is sent again later."
    SERVER_ERROR = "server_error", "The receiver failed (5xx); it is sent again."
    REDIRECTED = (
        "redirected",
        "The receiver answers with another address (3xx), which is never followed; it is sent again, seldom.",
    )
    REJECTED = "rejected", "The receiver refuses this message (4xx); it is not sent again."
    UNAUTHORISED = "unauthorised", "The receiver does not accept the secret (401, 403); it is sent again, seldom."
    NOT_FOUND = "not_found", "Nothing is at the receiver's address (404, 410), or no such channel; sent again, seldom."
    BAD_ANSWER = "bad_answer", "The receiver answers what its protocol does not know; it is sent again."
    SECRET_MISSING = "secret_missing", "The file or variable that holds the secret cannot be read; it is tried again."
    GAVE_UP = "gave_up", "It was tried for as long as the route allows."
    REPLACED = "replaced", "A newer notice of the same incident took its place before it was sent."


MISCONFIGURED = frozenset({DeliveryReason.REDIRECTED, DeliveryReason.UNAUTHORISED, DeliveryReason.NOT_FOUND})
"""Reasons that speak of the routes file or its secrets: a person must mend them, and no message is to blame."""
RETRYABLE = MISCONFIGURED | frozenset(
    {
        DeliveryReason.TIMED_OUT,
        DeliveryReason.UNREACHABLE,
        DeliveryReason.RATE_LIMITED,
        DeliveryReason.SERVER_ERROR,
        DeliveryReason.BAD_ANSWER,
        DeliveryReason.SECRET_MISSING,
    }
)
"""Reasons after which a notice is sent again."""


@dataclass(frozen=True, slots=True)
class Notice:
    """Message of one route about one incident.

    Attributes:
        route: name of the route.
        kind: what it says.
        severity: how urgent it is.
        verdict: the update of the verdict that is told.
        told_ns: when the incident was first told on this route; equal to ``made_ns`` for the first notice.
        made_ns: when this notice was made.
        reference: what the adapter returned for the previous notice of this incident, "" for none (Slack: the
            message to edit).
        note: one more sentence for people, e.g. how many incidents a summary stands for; "" for none.
    """

    route: str
    kind: NoticeKind
    severity: AlertSeverity
    verdict: Verdict
    told_ns: int
    made_ns: int
    reference: str = ""
    note: str = ""

    @property
    def is_ending(self) -> bool:
        """Whether the incident is no longer firing after this notice."""
        return self.kind in ENDING


@dataclass(frozen=True, slots=True)
class DeliveryResult:
    """Answer of an adapter.

    Attributes:
        reason: how the delivery ended; ``RETRYABLE`` holds those that are tried again.
        detail: one sentence for people, without secrets.
        retry_after_seconds: how long the receiver asks to wait, None if it does not say.
        references: per notice, in order, what identifies its message at the receiver, "" for nothing.
    """

    reason: DeliveryReason
    detail: str = ""
    retry_after_seconds: float | None = None
    references: tuple[str, ...] = ()

    @property
    def is_delivered(self) -> bool:
        """Whether the receiver took the notices."""
        return self.reason is DeliveryReason.DELIVERED

    @property
    def is_retryable(self) -> bool:
        """Whether the notices should be sent again."""
        return self.reason in RETRYABLE


class Adapter(Protocol):
    """Delivers notices to one receiver. An adapter keeps no state but its connections, and never sleeps.

    Attributes:
        kind: word of the adapter in the routes file: ``alertmanager``, ``pagerduty``, ``webhook``, ``slack``.
        max_batch_count: most notices that one call of ``send`` takes.
        resend_seconds: a firing notice is sent again after this time for as long as its incident stands; None: once.
    """

    kind: str
    max_batch_count: int
    resend_seconds: float | None

    def send(self, notices: Sequence[Notice], now_ns: int) -> DeliveryResult:
        """Send notices of one route to the receiver, within the adapter's own timeout.

        Args:
            notices: one to ``max_batch_count`` notices, oldest first, at most one per incident.
            now_ns: the present time.

        Returns:
            How it ended, for all of them alike. No exception is raised for what a receiver or a network does.
        """
        ...

    def close(self) -> None:
        """Close the connections."""
        ...
