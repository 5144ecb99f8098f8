"""Signatures of webhook messages: how tocsin makes them, and how a receiver checks them.

A message is signed with HMAC-SHA256 over its time stamp, a point and its body. A receiver refuses what is old, what
another key signed, and what it has seen before. Standard library only: a receiver needs no more than ``tocsin`` itself.

>>> body = b'{"delivery": "d1"}'
>>> headers = signed_headers("0123456789abcdef", body, "d1", 1_764_000_000)
>>> headers["Tocsin-Signature"][:9], headers["Tocsin-Delivery"]
('v1=d475b6', 'd1')
>>> WebhookVerifier(["0123456789abcdef"]).verify(headers, body, 1_764_000_010)
'd1'
"""

from __future__ import annotations

import hashlib
import hmac
import json
import threading
from collections.abc import Mapping, Sequence
from typing import Final

from tocsin.schemas.errors import ConfigError, IdentityError
from tocsin.schemas.reasons import NamedReason

TIMESTAMP_HEADER: Final = "Tocsin-Timestamp"
"""Unix seconds at which the message was signed."""
SIGNATURE_HEADER: Final = "Tocsin-Signature"
"""``v1=`` and 64 hexadecimal digits; several are separated by commas."""
DELIVERY_HEADER: Final = "Tocsin-Delivery"
"""Name of the message, equal when it is sent again. A receiver that has done its work for it answers 2xx at once."""
TOLERANCE_SECONDS: Final = 300
"""Greatest age of a message, and how far it may lie in the future."""
MIN_KEY_CHARACTERS: Final = 16
"""Shortest key."""
_SCHEME: Final = "v1="


class WebhookRefusal(NamedReason):
    """Why a receiver refuses a webhook message."""

    HEADER_MISSING = "header_missing", "A header is missing, comes twice or has another form."
    TOO_OLD = "too_old", "It was signed more than five minutes ago."
    FROM_THE_FUTURE = "from_the_future", "It was signed more than five minutes ahead of the receiver's clock."
    WRONG_SIGNATURE = "wrong_signature", "No known key makes this signature of this body at this time."
    OTHER_DELIVERY = "other_delivery", "The body is no JSON object with the ``delivery`` that the header names."
    SEEN_BEFORE = "seen_before", "The same signed message came before."


def signed_headers(key: str, body: bytes, delivery: str, now_seconds: int) -> dict[str, str]:
    """Return the headers of a signed message.

    Args:
        key: the key that sender and receiver share.
        body: the message.
        delivery: its name.
        now_seconds: the present time, Unix seconds.
    """
    stamp = str(now_seconds)
    return {
        TIMESTAMP_HEADER: stamp,
        SIGNATURE_HEADER: f"{_SCHEME}{_digest(key, stamp, body)}",
        DELIVERY_HEADER: delivery,
    }


class WebhookVerifier:
    """Checks messages for a receiver. It keeps the signatures of the last minutes; may be used by several threads.

    Args:
        keys: the keys that count; two while a key is renewed.
        tolerance_seconds: greatest age of a message, and how far it may lie in the future.

    Raises:
        ConfigError: no key, or one that is shorter than ``MIN_KEY_CHARACTERS``.
    """

    def __init__(self, keys: Sequence[str], tolerance_seconds: int = TOLERANCE_SECONDS) -> None:
        if not keys or any(len(key) < MIN_KEY_CHARACTERS for key in keys):
            raise ConfigError(
                "keys", "(not shown)", f"one key or more, each of at least {MIN_KEY_CHARACTERS} characters"
            )
        self._keys = tuple(keys)
        self._tolerance_seconds = tolerance_seconds
        self._seen: dict[str, int] = {}
        self._lock = threading.Lock()

    def verify(self, headers: Mapping[str, str], body: bytes, now_seconds: int) -> str:
        """Return the name of a message that is genuine, recent and new.

        The same name comes again, newly signed, where an answer was lost: do the work once, and answer 2xx each time.

        Args:
            headers: the message's headers; upper and lower case do not matter.
            body: the bytes of the body as they came.
            now_seconds: the present time, Unix seconds.

        Raises:
            IdentityError: it is refused; ``reason`` is a ``WebhookRefusal``. Answer 400.
        """
        found = {name.lower(): value for name, value in headers.items()}
        stamp, delivery = found.get(TIMESTAMP_HEADER.lower(), ""), found.get(DELIVERY_HEADER.lower(), "")
        signatures = [one.strip() for one in found.get(SIGNATURE_HEADER.lower(), "").split(",")]
        candidates = [one.removeprefix(_SCHEME) for one in signatures if one.startswith(_SCHEME) and one.isascii()]
        if not (
            stamp.isascii() and stamp.isdigit() and len(stamp) <= 12 and delivery.isascii() and delivery and candidates
        ):
            raise _refused(WebhookRefusal.HEADER_MISSING)
        age_seconds = now_seconds - int(stamp)
        if age_seconds > self._tolerance_seconds:
            raise _refused(WebhookRefusal.TOO_OLD)
        if age_seconds < -self._tolerance_seconds:
            raise _refused(WebhookRefusal.FROM_THE_FUTURE)
        digests = [_digest(key, stamp, body) for key in self._keys]
        match = next((one for one in digests for other in candidates[:8] if hmac.compare_digest(one, other)), None)
        if match is None:
            raise _refused(WebhookRefusal.WRONG_SIGNATURE)
        if _delivery_in(body) != delivery:
            raise _refused(WebhookRefusal.OTHER_DELIVERY)
        with self._lock:
            self._forget(now_seconds)
            if match in self._seen:
                raise _refused(WebhookRefusal.SEEN_BEFORE)
            self._seen[match] = int(stamp) + self._tolerance_seconds
        return delivery

    def _forget(self, now_seconds: int) -> None:
        """Forget the signatures of messages that would be too old by now."""
        for one in [one for one, until_seconds in self._seen.items() if until_seconds < now_seconds]:
            del self._seen[one]


def _digest(key: str, stamp: str, body: bytes) -> str:
    """Return the signature of a message in hexadecimal digits."""
    return hmac.new(key.encode(), b".".join((stamp.encode(), body)), hashlib.sha256).hexdigest()


def _delivery_in(body: bytes) -> str:
    """Return the name of the message that its body holds, "" if it holds none."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return ""
    return str(found.get("delivery", "")) if isinstance(found, dict) else ""


def _refused(reason: WebhookRefusal) -> IdentityError:
    """Return the error of a refused message."""
    return IdentityError(reason.value, reason.meaning)
