"""Parse the listener's addresses, bind its sockets, and describe connected peers."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from pathlib import Path
from typing import Any

from tocsin.schemas.address import split_address
from tocsin.schemas.errors import EngineError
from tocsin.schemas.private_files import is_socket

_PEER = struct.Struct("3i")
_KEEPALIVE_SECONDS, _KEEPALIVE_EVERY_SECONDS, _KEEPALIVE_COUNT = 30, 10, 3
_UNANSWERED_MILLISECONDS = 60_000


def parse_address(text: str) -> tuple[str, Any]:
    """Parse ``unix:PATH`` into ("unix", path), or ``HOST:PORT`` into ("tcp", (host, port)).

    Raises:
        ConfigError: the text is neither.
    """
    if text.startswith("unix:") and len(text) > len("unix:"):
        return "unix", text.removeprefix("unix:")
    return "tcp", split_address(text, "listen")


def listen(address: str, mode: int = 0o600) -> tuple[socket.socket, str]:
    """Bind a listening socket; return it and the bound address, with port 0 replaced by the actual port.

    Args:
        address: ``unix:PATH`` or ``HOST:PORT``.
        mode: file mode of a unix socket; the socket is never more open than this.

    Raises:
        ConfigError: the address is invalid.
        EngineError: the address is in use, or cannot be bound.
    """
    kind, where = parse_address(address)
    family = socket.AF_UNIX if kind == "unix" else _family(where[0])
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if kind == "unix":
            _clear_stale(where)
            Path(where).parent.mkdir(parents=True, exist_ok=True)
        else:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if kind == "unix":
            os.fchmod(listener.fileno(), 0o600)
        listener.bind(where)
        if kind == "unix":
            Path(where).chmod(mode)
    except OSError as error:
        listener.close()
        raise EngineError(f"cannot listen on {address}: {error}") from error
    listener.listen(1024)
    listener.setblocking(False)
    if kind == "unix":
        return listener, f"unix:{where}"
    host, port = listener.getsockname()[:2]
    return listener, f"[{host}]:{port}" if family == socket.AF_INET6 else f"{host}:{port}"


def _family(host: str) -> socket.AddressFamily:
    """Return IPv6 if the host is an IPv6 address (``::`` accepts IPv4 too, by the kernel's settings), else IPv4."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def remove_socket(address: str) -> None:
    """Remove the file of a unix socket after listening on it; do nothing for TCP addresses."""
    kind, where = parse_address(address)
    if kind == "unix":
        with contextlib.suppress(FileExistsError):  # somebody put something else there
            if is_socket(where):
                Path(where).unlink(missing_ok=True)


def _clear_stale(path: str) -> None:
    """Remove a unix socket on which nobody listens any more; other files are left alone.

    Raises:
        EngineError: another engine listens on it.
        OSError: something that is not a socket has this path.
    """
    if not is_socket(path):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as trial:
        try:
            trial.connect(path)
        except OSError:
            Path(path).unlink(missing_ok=True)
            return
    raise EngineError(f"cannot listen on unix:{path}: another engine listens there")


def peer_of(peer: socket.socket) -> str:
    """Return a text for the other end of a connection: ``uid 1000`` on a unix socket, else the IP address."""
    try:
        if peer.family == socket.AF_UNIX:
            found = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
            return f"uid {_PEER.unpack(found)[1]}"
        return str(peer.getpeername()[0])
    except OSError:  # gone already
        return "unknown"


def keep_alive(peer: socket.socket) -> None:
    """Set TCP keepalive, so that the kernel closes connections of vanished hosts within a minute or two."""
    if peer.family == socket.AF_UNIX:
        return
    with contextlib.suppress(OSError):  # gone already
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_SECONDS)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_EVERY_SECONDS)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _KEEPALIVE_COUNT)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNANSWERED_MILLISECONDS)
