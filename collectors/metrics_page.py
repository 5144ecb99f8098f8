"""``/metrics`` (Prometheus text) and ``/healthz``, served by one small thread.

``http.server`` would cost four megabytes of memory in every agent for two pages.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
from collections.abc import Callable, Iterable
from typing import Final

from tocsin.schemas.errors import ConfigError
from tocsin.schemas.prometheus_text import Family, render

log = logging.getLogger(__name__)

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
REQUEST_BYTES: Final = 8192
REQUEST_SECONDS: Final = 2.0


class MetricsPage:
    """Serves two pages until ``close``.

    A request is answered before the next one is read; a client that says nothing is
    dropped after two seconds.
    """

    def __init__(
        self,
        address: str,
        families: Callable[[], Iterable[Family]],
        health: Callable[[], tuple[bool, str]],
    ) -> None:
        """Bind.

        Args:
            address: ``HOST:PORT``; port 0: any free one.
            families: gives the metrics; called in this thread.
            health: gives whether all is well, and the words for it.

        Raises:
            ConfigError: the address is none, or is taken.
        """
        host, _, port = address.rpartition(":")
        if not host or not (port.isascii() and port.isdigit() and len(port) <= 5):
            raise ConfigError("metrics-listen", address, "HOST:PORT")
        self._families = families
        self._health = health
        host = host.strip("[]")
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._listener = socket.create_server((host, int(port)), family=family)
        except (OSError, OverflowError) as error:
            raise ConfigError("metrics-listen", address, f"an address that is free ({error})") from error
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._closing = False

    @property
    def port(self) -> int:
        """Return the port that was bound."""
        return int(self._listener.getsockname()[1])

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def close(self) -> None:
        """Free the address."""
        self._closing = True
        # close() alone does not wake a thread that waits in accept()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _run(self) -> None:
        while not self._closing:
            try:
                client, _ = self._listener.accept()
            except OSError as error:
                if not self._closing:
                    log.warning("metrics page", extra={"error": str(error)})
                    threading.Event().wait(0.1)  # out of descriptors: do not spin
                continue
            with client, contextlib.suppress(OSError):
                client.settimeout(REQUEST_SECONDS)
                client.sendall(self._answer(client.recv(REQUEST_BYTES)))

    def _answer(self, request: bytes) -> bytes:
        method, _, rest = request.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method not in {b"GET", b"HEAD"}:
            return _page("405 Method Not Allowed", "only GET\n")
        if path == b"/metrics":
            return _page("200 OK", render(self._families()))
        if path == b"/healthz":
            well, words = self._health()
            return _page("200 OK" if well else "503 Service Unavailable", words + "\n")
        return _page("404 Not Found", "here are /metrics and /healthz\n")


def _page(status: str, body: str) -> bytes:
    data = body.encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + data
