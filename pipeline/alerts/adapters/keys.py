"""Names by which receivers tell that two messages are about one incident, or are one message sent twice."""

from __future__ import annotations

import hashlib

from tocsin.pipeline.alerts.notice import Notice, NoticeKind


def incident_key(notice: Notice) -> str:
    """Return what names the incident at a receiver: the verdict's id.

    A test and the watchdog are incidents of their own, named by their route; each test is another one.
    """
    match notice.kind:
        case NoticeKind.TEST:
            return f"tocsin-test-{_hash(notice.route, str(notice.made_ns))}"
        case NoticeKind.WATCHDOG:
            return f"tocsin-watchdog-{_hash(notice.route)}"
    return notice.verdict.verdict_id


def delivery_id(notice: Notice) -> str:
    """Return what names a message: equal whenever the same notice is sent again, different for every other notice.

    It depends on route, incident, kind and the verdict's update, and not on when it was made: a sender that was killed
    and decides again after its restart makes the same one.
    """
    moment = str(notice.made_ns) if notice.kind is NoticeKind.WATCHDOG else ""
    return _hash(notice.route, incident_key(notice), notice.kind.value, str(notice.verdict.update), moment)


def _hash(*parts: str) -> str:
    """Return 32 hexadecimal digits for several texts."""
    return hashlib.sha256("\0".join(parts).encode("utf-8", "replace")).hexdigest()[:32]
