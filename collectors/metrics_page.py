"""``/metrics`` and ``/healthz`` over HTTP, in a thread of the standard library."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tocsin.schemas.errors import ConfigError
from tocsin.schemas.prometheus_text import Family, render

_LOG = logging.getLogger("tocsin.metrics")
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class MetricsPage:
    """Serves what two callables say at the time of the request."""

    def __init__(
        self, listen: str, families: Callable[[], Sequence[Family]], health: Callable[[], tuple[bool, str]]
    ) -> None:
        """Bind.

        Args:
            listen: ``HOST:PORT``, port 0: any.
            families: the metrics.
            health: whether all is well, and a sentence.

        Raises:
            ConfigError: no such address, or it is taken.
        """
        host, _, port = listen.rpartition(":")
        if not host or not port.isdigit():
            raise ConfigError("metrics-listen", listen, "HOST:PORT")
        handler = type("Handler", (_Handler,), {"families": staticmethod(families), "health": staticmethod(health)})
        try:
            self._server = ThreadingHTTPServer((host, int(port)), handler)
        except OSError as error:
            raise ConfigError("metrics-listen", listen, f"an address that is free ({error})") from error
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.2,), name="metrics", daemon=True)

    @property
    def address(self) -> str:
        """``HOST:PORT`` as bound."""
        host, port = self._server.server_address[:2]
        return f"{host!s}:{port}"

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def close(self) -> None:
        """Stop and free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5.0)


class _Handler(BaseHTTPRequestHandler):
    families: Callable[[], Sequence[Family]]
    health: Callable[[], tuple[bool, str]]

    def do_GET(self) -> None:
        """Answer ``/metrics`` and ``/healthz``."""
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._answer(200, CONTENT_TYPE, render(type(self).families()))
        elif path == "/healthz":
            well, text = type(self).health()
            self._answer(200 if well else 503, "text/plain; charset=utf-8", text + "\n")
        else:
            self._answer(404, "text/plain; charset=utf-8", "there are /metrics and /healthz\n")

    def _answer(self, status: int, content_type: str, text: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the base class's name
        """Requests are worth a debug line at most."""
        _LOG.debug("request", extra={"line": format % args})
