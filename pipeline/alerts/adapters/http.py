"""HTTP for adapters: one POST, bounded in time and size, without redirects or retries, that raises nothing.

How a request ended is a ``DeliveryReason``. No log line and no sentence holds a path, a header or a body of a request,
because any of them may be a secret.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import logging
import socket
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import unquote_plus, urlsplit

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import HTTPError, NewConnectionError, SSLError
from urllib3.exceptions import TimeoutError as PoolTimeoutError

from tocsin.pipeline.alerts.notice import DeliveryReason
from tocsin.pipeline.stores.rows import one_line
from tocsin.schemas.records import NS_PER_SECOND

MAX_ANSWER_BYTES: Final = 65_536
"""Most that is read of an answer; the rest is left, and the connection closed."""
MAX_RETRY_AFTER_SECONDS: Final = 86_400.0
"""Longest time that a receiver can ask to wait; longer ones count as this."""
_QUOTED_CHARACTERS: Final = 300
_CHUNK_BYTES: Final = 16_384
_WINDOW_CHARACTERS: Final = 6
_LOGGERS: Final = ("connection", "connectionpool", "poolmanager", "response", "util.retry")


@dataclass(frozen=True, slots=True)
class HttpConfig:
    """Settings of an adapter's requests to its receiver.

    Attributes:
        connect_timeout_seconds: time for one connection attempt.
        read_timeout_seconds: time until the head of the answer is complete, and again until all of it is.
        ca_file: PEM file of the authorities to trust instead of the system's, "" for the system's.
        proxy: address of a proxy, ``http://HOST:PORT``, "" for none. Variables of the environment are not looked at.
    """

    connect_timeout_seconds: float = 5.0
    read_timeout_seconds: float = 10.0
    ca_file: str = ""
    proxy: str = ""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """Outcome of one request.

    Attributes:
        reason: ``DELIVERED`` for a status of 200 to 299, else why not.
        status: HTTP status, 0 if there was no answer.
        body: the answer's first ``MAX_ANSWER_BYTES``.
        detail: one sentence for people, without secrets; "" if it was delivered.
        retry_after_seconds: how long the receiver asks to wait, None if it does not say.
        is_cut: whether the answer was longer than what was read of it.
    """

    reason: DeliveryReason
    status: int = 0
    body: bytes = b""
    detail: str = ""
    retry_after_seconds: float | None = None
    is_cut: bool = False

    def json_object(self) -> dict[str, object]:
        """Return the body as a JSON object, {} if it is none."""
        try:
            found = json.loads(self.body)
        except (ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}


class HttpClient:
    """Sends requests, and keeps connections for the next ones. May be used by several threads.

    Args:
        config: timeouts, authorities, proxy.
    """

    def __init__(self, config: HttpConfig) -> None:
        self._config = config
        trust: dict[str, Any] = {"cert_reqs": "CERT_REQUIRED", "ca_certs": config.ca_file or None}
        self._pools = (
            urllib3.ProxyManager(config.proxy, num_pools=4, maxsize=2, **trust)
            if config.proxy
            else urllib3.PoolManager(num_pools=4, maxsize=2, **trust)
        )
        self._pools.pool_classes_by_scheme = {"http": _TimedPool, "https": _TimedTlsPool}

    def post(
        self, url: str, body: bytes, headers: Mapping[str, str], now_ns: int, private: Collection[str] = ()
    ) -> HttpAnswer:
        """Send a body; return how it ended, whatever the network and the receiver do.

        Args:
            url: address of the receiver, ``http`` or ``https``.
            body: what is sent.
            headers: further headers of the request.
            now_ns: the present time, for an answer that asks to wait until a moment.
            private: texts that no sentence may show, even where the receiver sends them back.
        """
        host = host_of(url)
        if not host:
            return HttpAnswer(DeliveryReason.REJECTED, detail="the address is no http or https URL")
        secrets = [*private, *(value for name, value in headers.items() if name.lower() == "authorization")]
        try:
            with _silent():
                return self._post(url, body, headers, now_ns, secrets)
        except (HTTPError, http.client.HTTPException, OSError, ValueError) as error:
            return _failed(error, host)

    def _post(
        self, url: str, body: bytes, headers: Mapping[str, str], now_ns: int, secrets: Collection[str]
    ) -> HttpAnswer:
        """Send a body and return the answer; errors of the network are raised."""
        config = self._config
        response = self._pools.request(
            "POST",
            url,
            body=body,
            headers={"User-Agent": "tocsin", "Accept-Encoding": "identity", **headers},
            retries=False,
            redirect=False,
            preload_content=False,
            decode_content=False,
            timeout=urllib3.Timeout(connect=config.connect_timeout_seconds, read=config.read_timeout_seconds),
        )
        received, is_cut = _received(response, time.monotonic() + config.read_timeout_seconds)
        reason = reason_of_status(response.status)
        return HttpAnswer(
            reason,
            response.status,
            received,
            _sentence(reason, response.status, host_of(url), received, secrets),
            retry_after_seconds(response.headers.get("Retry-After"), now_ns),
            is_cut,
        )

    def close(self) -> None:
        """Close the connections."""
        self._pools.clear()


def host_of(url: str) -> str:
    """Return host and port of an ``http`` or ``https`` URL, "" if it is none.

    >>> host_of("https://hooks.example:8443/services/T0/B0/secret"), host_of("file:///etc/passwd")
    ('hooks.example:8443', '')
    """
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return ""
    if parts.scheme not in {"http", "https"} or not host or not url.isprintable() or " " in url:
        return ""
    name = f"[{host}]" if ":" in host else host
    return name if port is None else f"{name}:{port}"


def reason_of_status(status: int) -> DeliveryReason:
    """Return how a delivery ended whose answer has this HTTP status."""
    match status:
        case _ if 200 <= status < 300:
            return DeliveryReason.DELIVERED
        case _ if 300 <= status < 400:
            return DeliveryReason.REDIRECTED
        case 401 | 403:
            return DeliveryReason.UNAUTHORISED
        case 404 | 410:
            return DeliveryReason.NOT_FOUND
        case 408:
            return DeliveryReason.TIMED_OUT
        case 429:
            return DeliveryReason.RATE_LIMITED
        case _ if 400 <= status < 500:
            return DeliveryReason.REJECTED
        case _ if 500 <= status < 600:
            return DeliveryReason.SERVER_ERROR
    return DeliveryReason.BAD_ANSWER


def retry_after_seconds(value: str | None, now_ns: int) -> float | None:
    """Return how long a ``Retry-After`` header asks to wait, at most ``MAX_RETRY_AFTER_SECONDS``.

    Args:
        value: the header: seconds, or a moment as HTTP writes it; None if there is none.
        now_ns: the present time.

    Returns:
        Seconds, at least 0; None if the header is missing or says neither.

    >>> retry_after_seconds("120", 0), retry_after_seconds("Thu, 01 Jan 1970 00:01:00 GMT", 0)
    (120.0, 60.0)
    """
    text = (value or "").strip()[:64]
    if text.isascii() and text.isdigit():
        return min(float(text), MAX_RETRY_AFTER_SECONDS)
    try:
        moment = parsedate_to_datetime(text)
        aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
        seconds = (aware - datetime.fromtimestamp(now_ns / NS_PER_SECOND, UTC)).total_seconds()
    except (ValueError, OverflowError):
        return None
    return min(max(seconds, 0.0), MAX_RETRY_AFTER_SECONDS)


def without_secrets(text: str, secrets: Collection[str]) -> str:
    """Return a text of a receiver on one line; "" if any part of a secret stands in it, in whatever coding."""
    shown = one_line(text)[:_QUOTED_CHARACTERS]
    forms = (shown, unquote_plus(shown))
    for secret in secrets:
        coded = base64.b64encode(secret.encode()).decode()
        for one in (secret, coded):
            size = min(_WINDOW_CHARACTERS, len(one))
            windows = {one[at : at + size] for at in range(len(one) - size + 1)}
            if any(window in form for form in forms for window in windows):
                return ""
    return shown


def _received(response: urllib3.BaseHTTPResponse, deadline: float) -> tuple[bytes, bool]:
    """Read an answer up to ``MAX_ANSWER_BYTES``; return it and whether it is longer.

    Raises:
        TimeoutError: it is not complete at the deadline (of ``time.monotonic``).
    """
    received = bytearray()
    is_whole = False
    try:
        while len(received) <= MAX_ANSWER_BYTES:
            if time.monotonic() > deadline:
                raise TimeoutError
            part = response.read1(_CHUNK_BYTES, decode_content=False)
            if not part:
                is_whole = True
                break
            received += part
    finally:
        if is_whole:
            response.release_conn()
        else:
            response.close()
    return bytes(received[:MAX_ANSWER_BYTES]), len(received) > MAX_ANSWER_BYTES


def _sentence(reason: DeliveryReason, status: int, host: str, received: bytes, secrets: Collection[str]) -> str:
    """Return what people read about an answer; what a refusing receiver says is quoted if it holds no secret."""
    if reason is DeliveryReason.DELIVERED:
        return ""
    if reason is DeliveryReason.REDIRECTED:
        return f"{host} answers {status}, a redirect; it is not followed: name the new address in the routes file"
    quoted = ""
    if reason in {DeliveryReason.REJECTED, DeliveryReason.NOT_FOUND}:
        quoted = without_secrets(received[: 4 * _QUOTED_CHARACTERS].decode("utf-8", "replace"), secrets)
    return f"{host} answers {status}" + (f": {quoted}" if quoted else "")


def _failed(error: Exception, host: str) -> HttpAnswer:
    """Return how a request without an answer ended."""
    causes = _chain(error)
    if isinstance(error, NewConnectionError):
        system = next((one for one in causes if isinstance(one, OSError) and one.strerror), None)
        why = f" ({one_line(str(system.strerror))})" if isinstance(system, OSError) else ""
        return HttpAnswer(DeliveryReason.UNREACHABLE, detail=f"no connection to {host}{why}")
    if any(isinstance(one, PoolTimeoutError | TimeoutError) for one in causes):
        return HttpAnswer(DeliveryReason.TIMED_OUT, detail=f"{host} did not answer in time")
    if any(isinstance(one, SSLError) for one in causes):
        verify = next((text for one in causes if (text := getattr(one, "verify_message", ""))), "no TLS there")
        return HttpAnswer(DeliveryReason.UNREACHABLE, detail=f"no TLS connection to {host}: {one_line(str(verify))}")
    if any(isinstance(one, http.client.RemoteDisconnected | OSError) for one in causes):
        return HttpAnswer(DeliveryReason.UNREACHABLE, detail=f"{host} closed the connection without an answer")
    if any(isinstance(one, http.client.HTTPException | urllib3.exceptions.ProtocolError) for one in causes):
        return HttpAnswer(DeliveryReason.BAD_ANSWER, detail=f"{host} answers something that is no HTTP")
    return HttpAnswer(DeliveryReason.UNREACHABLE, detail=f"no connection to {host}: the address or its answer is wrong")


def _chain(error: BaseException) -> list[BaseException]:
    """Return an error, the errors that caused it and those among its arguments."""
    found: list[BaseException] = []
    waiting: list[object] = [error]
    while waiting and len(found) < 16:
        one = waiting.pop(0)
        if isinstance(one, BaseException) and not any(one is seen for seen in found):
            found.append(one)
            waiting += [one.__cause__, one.__context__, *one.args]
    return found


class _AnswerTimer:
    """Cuts a connection whose answer's head is not there in time, however slowly it trickles in.

    Args:
        connection: the socket.
        seconds: time until the head must be complete, None for no limit.
    """

    def __init__(self, connection: socket.socket, seconds: float | None) -> None:
        self._socket = connection
        self._is_cut = False
        self._timer = None if seconds is None else threading.Timer(seconds, self._cut)

    def _cut(self) -> None:
        """End the connection in both directions."""
        self._is_cut = True
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run the timer during the block.

        Raises:
            TimeoutError: the connection was cut.
        """
        if self._timer is not None:
            self._timer.daemon = True
            self._timer.start()
        try:
            yield
        except (OSError, http.client.HTTPException):
            if self._is_cut:
                raise TimeoutError from None
            raise
        finally:
            if self._timer is not None:
                self._timer.cancel()
        if self._is_cut:
            raise TimeoutError


class _TimedConnection(HTTPConnection):
    """A connection that waits for the whole head of an answer no longer than its timeout."""

    def getresponse(self) -> urllib3.HTTPResponse:  # type: ignore[override]  # urllib3's own differs from http.client's
        with _AnswerTimer(self.sock, self.timeout).running():
            return super().getresponse()


class _TimedTlsConnection(HTTPSConnection):
    """As ``_TimedConnection``, over TLS."""

    def getresponse(self) -> urllib3.HTTPResponse:  # type: ignore[override]  # as above
        with _AnswerTimer(self.sock, self.timeout).running():
            return super().getresponse()


class _TimedPool(HTTPConnectionPool):
    """Connections of ``_TimedConnection``."""

    ConnectionCls = _TimedConnection


class _TimedTlsPool(HTTPSConnectionPool):
    """Connections of ``_TimedTlsConnection``."""

    ConnectionCls = _TimedTlsConnection


_QUIET = threading.local()


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Keep urllib3 from logging in this thread: its lines hold paths of URLs, which are secrets of some receivers."""
    _QUIET.is_on = True
    try:
        yield
    finally:
        _QUIET.is_on = False


def _is_allowed(_record: logging.LogRecord) -> bool:
    """Return whether a line of urllib3 may be logged: not while this module sends something in the same thread."""
    return not getattr(_QUIET, "is_on", False)


for _name in _LOGGERS:
    logging.getLogger(f"urllib3.{_name}").addFilter(_is_allowed)
