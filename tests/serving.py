"""A server of the standard library in a thread, ended when the test ends."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from socketserver import TCPServer
from typing import TypeVar

Server = TypeVar("Server", bound=TCPServer)


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    """Serve until the block ends; the port is free, and the thread over, behind it."""
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
