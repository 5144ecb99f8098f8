"""A knock at a listener as an agent would do it: it answers, or nobody can tell the engine anything."""

from __future__ import annotations

import contextlib
import socket
import time
from typing import Final

from tocsin.pipeline.runtime.embedded.listener.addresses import parse_address

KNOCK_SECONDS: Final = 5.0
"""Longest wait for an answer."""


def knock(address: str, *, has_tls: bool, timeout_seconds: float = KNOCK_SECONDS) -> bool:
    """Connect to a listener, wait for its first bytes (the challenge, or its part of the TLS handshake) and hang up.

    No certificate is checked and nothing is proven: any answer shows that the thread that listens does its work.

    Args:
        address: where it listens: ``unix:PATH`` or ``HOST:PORT``.
        has_tls: whether it speaks TLS on TCP.
        timeout_seconds: longest time for all of it.

    Returns:
        Whether it answered.
    """
    kind, where = parse_address(address)
    until = time.monotonic() + timeout_seconds
    try:
        with _connected(kind, where, timeout_seconds) as peer:
            peer.settimeout(max(0.001, until - time.monotonic()))
            return _shakes_hands(peer) if has_tls and kind == "tcp" else bool(peer.recv(1))
    except OSError:
        return False


def _connected(kind: str, where: str | tuple[str, int], timeout_seconds: float) -> socket.socket:
    """Return a socket that is connected.

    Raises:
        OSError: nobody takes the connection in time.
    """
    if kind == "tcp":
        return socket.create_connection((where[0], int(where[1])), timeout_seconds)
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        peer.settimeout(timeout_seconds)
        peer.connect(where)
    except OSError:
        peer.close()
        raise
    return peer


def _shakes_hands(peer: socket.socket) -> bool:
    """Return whether the other end answers a TLS handshake, be it with a refusal."""
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with contextlib.closing(context.wrap_socket(peer, do_handshake_on_connect=False)) as stream:
        try:
            stream.do_handshake()
        except ssl.SSLError as error:
            return not isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError)
    return True
