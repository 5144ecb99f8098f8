"""HTTP pages ``/metrics`` (Prometheus text), ``/healthz`` (alive?) and ``/readyz`` (ready?), served by one thread.

``http.server`` would cost four megabytes of memory in every agent for three pages.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from tocsin.schemas.errors import ConfigError
from tocsin.schemas.formats.prometheus_text import Family, render
from tocsin.schemas.trouble_log import TroubleLog

log = logging.getLogger(__name__)

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
REQUEST_BYTES: Final = 8192
REQUEST_SECONDS: Final = 3.0
"""Most time for a client to send its request, and again to read the answer."""
MAX_CLIENTS: Final = 64
"""Most clients at a time; when another one connects, the oldest is dropped. Probes send their request at once."""
PAUSE_SECONDS: Final = 1.0
_CHUNK_BYTES: Final = 1 << 16
Health = Callable[[], tuple[bool, str]]


class PageTakenError(ConfigError):
    """The page's address is used by another process."""

    reason = "page_taken"


@dataclass(slots=True, eq=False)
class _Client:
    """One client and its request.

    Attributes:
        peer: socket of the client.
        since_seconds: monotonic time of its connection, or when its answer was ready.
        inbox: bytes received so far.
        outbox: bytes of the answer not sent yet.
        is_answered: whether its answer is in the outbox or being prepared.
    """

    peer: socket.socket
    since_seconds: float
    inbox: bytearray = field(default_factory=bytearray)
    outbox: bytearray = field(default_factory=bytearray)
    is_answered: bool = False


class MetricsPage:
    """HTTP server of the pages at one address, until ``close``.

    No client waits for another. Sockets do not block, and the metrics, which take a moment to collect, are rendered in
    a thread of their own, once for all waiting clients.
    """

    def __init__(
        self,
        address: str,
        families: Callable[[], Iterable[Family]],
        health: Health,
        ready: Health | None = None,
    ) -> None:
        """Bind the address.

        Args:
            address: ``HOST:PORT``; port 0 for any free one.
            families: returns the metrics; called in a thread of the page.
            health: returns whether the process works, and a sentence; called in the page's thread, so it must not
                block.
            ready: like ``health``, for ``/readyz``; None: ``health`` is used.

        Raises:
            ConfigError: the text is no address.
            PageTakenError: the address is in use.
        """
        self._families = families
        self._health = health
        self._ready = ready or health
        self._listener = _bind(address)
        self._wake_in, self._wake_out = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        for end in (self._listener, self._wake_in):
            end.setblocking(False)
            self._selector.register(end, selectors.EVENT_READ)
        self._clients: dict[_Client, None] = {}
        self._rendering: list[_Client] = []
        self._rendered: deque[tuple[list[_Client], bytes]] = deque()
        self._paused_until: float | None = None
        self._troubles = TroubleLog(log)
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._closing = False

    @property
    def port(self) -> int:
        """The port that was bound."""
        return int(self._listener.getsockname()[1])

    def start(self) -> None:
        """Start the thread that answers."""
        self._thread.start()

    def close(self) -> None:
        """Stop answering and free the address."""
        self._closing = True
        self._wake()
        if self._thread.ident is not None:
            self._thread.join(REQUEST_SECONDS)
        self._listener.close()

    def _wake(self) -> None:
        """Wake the page's thread."""
        with contextlib.suppress(OSError):  # closed meanwhile
            self._wake_out.send(b"x")

    def _run(self) -> None:
        """Serve until ``close``, then close all sockets."""
        while not self._closing:
            try:
                self._turn()
            except Exception:  # noqa: BLE001  # supervising: the pages must outlive whatever a client does
                self._troubles.exception("metrics page")
                threading.Event().wait(0.1)
        for client in list(self._clients):
            self._drop(client)
        for end in (self._listener, self._wake_in, self._wake_out):
            end.close()

    def _turn(self) -> None:
        """Wait for sockets once, process what is ready, and drop slow clients."""
        for key, mask in self._selector.select(1.0 if self._clients or self._paused_until else None):
            if key.fileobj is self._listener:
                self._accept()
            elif key.fileobj is self._wake_in:
                self._wake_in.recv(4096)
            elif key.data in self._clients:
                self._supervised(key.data, mask)
        self._send_rendered()
        now = time.monotonic()
        for client in [one for one in self._clients if now - one.since_seconds > REQUEST_SECONDS]:
            if client not in self._rendering:
                self._drop(client)
        if self._paused_until is not None and now >= self._paused_until:
            self._paused_until = None
            self._selector.register(self._listener, selectors.EVENT_READ)

    def _send_rendered(self) -> None:
        """Send rendered metrics to the clients that wait for them."""
        while self._rendered:
            clients, answer = self._rendered.popleft()
            for client in clients:
                if client in self._clients:
                    self._send(client, answer)

    def _accept(self) -> None:
        """Accept a client; after a failure, pause accepting."""
        try:
            peer, _ = self._listener.accept()
        except BlockingIOError:
            return
        except OSError as error:  # out of descriptors: do not spin
            self._troubles.warn("metrics page cannot accept", error=str(error))
            self._selector.unregister(self._listener)
            self._paused_until = time.monotonic() + PAUSE_SECONDS
            return
        peer.setblocking(False)
        client = _Client(peer, time.monotonic())
        self._clients[client] = None
        self._selector.register(peer, selectors.EVENT_READ, client)
        if len(self._clients) > MAX_CLIENTS:
            self._drop(next(iter(self._clients)))

    def _supervised(self, client: _Client, mask: int) -> None:
        """Read from or write to a client; drop it on an error."""
        try:
            if mask & selectors.EVENT_READ and not client.is_answered:
                self._read(client)
            elif mask & selectors.EVENT_WRITE:
                self._flush(client)
            elif client.is_answered and not client.peer.recv(_CHUNK_BYTES):
                self._drop(client)  # it left before its answer was made
        except BlockingIOError:
            return
        except OSError:
            self._drop(client)

    def _read(self, client: _Client) -> None:
        """Read a client's request, and answer it when it is complete."""
        data = client.peer.recv(REQUEST_BYTES)
        client.inbox += data
        if not data or len(client.inbox) > REQUEST_BYTES:
            self._drop(client)
        elif b"\r\n\r\n" in client.inbox or b"\n\n" in client.inbox:
            client.is_answered = True
            answer = self._answer(bytes(client.inbox))
            if answer is None:
                self._render(client)
            else:
                self._send(client, answer)

    def _answer(self, request: bytes) -> bytes | None:
        """Return the answer to a request, None for the metrics, which are rendered separately."""
        method, _, rest = request.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method not in {b"GET", b"HEAD"}:
            return _page("405 Method Not Allowed", "only GET\n")
        if path == b"/metrics":
            return None
        if path in {b"/healthz", b"/readyz"}:
            well, words = self._health() if path == b"/healthz" else self._ready()
            return _page("200 OK" if well else "503 Service Unavailable", words + "\n")
        return _page("404 Not Found", "here are /metrics, /healthz and /readyz\n")

    def _render(self, client: _Client) -> None:
        """Queue a client for the metrics, and start rendering them if nobody waited before."""
        self._rendering.append(client)
        if len(self._rendering) == 1:
            threading.Thread(target=self._collect, name="metrics-text", daemon=True).start()

    def _collect(self) -> None:
        """Render the metrics for all waiting clients; runs in a thread of its own."""
        try:
            answer = _page("200 OK", render(self._families()))
        except Exception:  # noqa: BLE001  # supervising: a metric that fails must not end the pages
            self._troubles.exception("metrics cannot be collected")
            answer = _page("500 Internal Server Error", "the metrics cannot be collected: see the log\n")
        waiting, self._rendering = self._rendering, []
        self._rendered.append((waiting, answer))
        self._wake()

    def _send(self, client: _Client, answer: bytes) -> None:
        """Send an answer to a client, as much as its socket takes now."""
        client.outbox += answer
        client.since_seconds = time.monotonic()
        try:
            self._flush(client)
        except BlockingIOError:
            self._selector.modify(client.peer, selectors.EVENT_WRITE, client)
        except OSError:
            self._drop(client)

    def _flush(self, client: _Client) -> None:
        """Send more of a client's answer; drop the client when all is sent."""
        sent = client.peer.send(client.outbox)
        del client.outbox[:sent]
        if client.outbox:
            self._selector.modify(client.peer, selectors.EVENT_WRITE, client)
        else:
            self._drop(client)

    def _drop(self, client: _Client) -> None:
        """Close a client's connection."""
        if client in self._clients:
            del self._clients[client]
            self._selector.unregister(client.peer)
            client.peer.close()


class Pages:
    """The pages of one process at all its addresses; each address has its own listener, thread and limits.

    So a flood of the address that Prometheus reads over the network delays no probe at the loopback one.

    Attributes:
        words: for each address, where its page is, or why there is none.
    """

    def __init__(
        self,
        addresses: str,
        families: Callable[[], Iterable[Family]],
        health: Health,
        ready: Health,
    ) -> None:
        """Bind all free addresses; one that is in use is logged and left out.

        Args:
            addresses: ``HOST:PORT``, several separated by commas or blanks; "" for none.
            families: as for ``MetricsPage``.
            health: as for ``MetricsPage``.
            ready: as for ``MetricsPage``.

        Raises:
            ConfigError: one of the texts is no address.
        """
        self._pages: list[MetricsPage] = []
        self.words: list[str] = []
        for address in addresses_in(addresses):
            try:
                page = MetricsPage(address, families, health, ready)
            except PageTakenError as error:
                log.warning("no metrics page", extra={"address": address, "error": str(error)})
                self.words.append(f"none: {error}")
                continue
            self._pages.append(page)
            self.words.append(f"{address.rpartition(':')[0]}:{page.port}")

    def start(self) -> None:
        """Start answering at all addresses."""
        for page in self._pages:
            page.start()

    def close(self) -> None:
        """Stop answering and free all addresses."""
        for page in self._pages:
            page.close()


def addresses_in(text: str) -> list[str]:
    """Return the addresses of a text that separates them by commas or blanks."""
    return text.replace(",", " ").split()


def split_page_address(address: str) -> tuple[str, int]:
    """Return host and port of a page's address.

    Raises:
        ConfigError: the text is not ``HOST:PORT``.
    """
    host, _, port = address.rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and len(port) <= 5):
        raise ConfigError("metrics-listen", address, "HOST:PORT")
    if int(port) >= 1 << 16:
        raise ConfigError("metrics-listen", address, "HOST:PORT with a port below 65536")
    return host.strip("[]"), int(port)


def _bind(address: str) -> socket.socket:
    """Return a listening socket at an address."""
    host, port = split_page_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        raise PageTakenError("metrics-listen", address, f"an address that is free ({error})") from error


def _page(status: str, body: str) -> bytes:
    """Return an HTTP response with a plain text body."""
    data = body.encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + data
