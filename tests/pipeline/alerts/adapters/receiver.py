"""A small HTTP server that answers as a test says, and keeps what it was asked."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.serving import serving


@dataclass(frozen=True)
class Request:
    """One request as it came."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Reply:
    """What is answered. ``raw``: these bytes instead of HTTP. ``silent``: nothing until the test ends."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    raw: bytes | None = None
    silent: bool = False
    head_only: bool = False


class Receiver(ThreadingHTTPServer):
    """Answers each request with ``reply_to`` and keeps the requests in ``asked``."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, reply_to: Callable[[Request], Reply]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.reply_to = reply_to
        self.asked: list[Request] = []
        self.over = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients that close early are what tests are about."""


class _Handler(BaseHTTPRequestHandler):
    server: Receiver
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        request = Request(self.path, dict(self.headers.items()), body)
        self.server.asked.append(request)
        self._answer(self.server.reply_to(request))

    def do_GET(self) -> None:
        self.do_POST()

    def _answer(self, reply: Reply) -> None:
        if reply.silent:
            self.server.over.wait()
            self.close_connection = True
            return
        if reply.raw is not None:
            self.wfile.write(reply.raw)
            self.close_connection = True
            return
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        if "Transfer-Encoding" not in reply.headers:
            self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        if reply.head_only:
            self.wfile.flush()
            self.server.over.wait()
            self.close_connection = True
            return
        self.wfile.write(reply.body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # the name of the standard library
        """Say nothing."""


@contextmanager
def receiving(reply_to: Callable[[Request], Reply]) -> Iterator[Receiver]:
    """A receiver during the block; those that wait in silence end with it."""
    with serving(Receiver(reply_to)) as server:
        try:
            yield server
        finally:
            server.over.set()


def refused_port() -> int:
    """Return a port on which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port
