"""Read what the kernel or TLS knows about the other end of a connection."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from typing import Any, Final

from tocsin.schemas.address import is_loopback

_UCRED: Final = struct.Struct("=iII")
_SO_PEERGROUPS: Final = 59  # Linux 4.13; the socket module does not name it
"""Socket option that returns the peer's groups (Linux 4.13); the socket module has no name for it."""
_MAX_GROUPS: Final = 1024


@dataclass(frozen=True, slots=True)
class Peer:
    """Facts about the other end of a connection, known before it sends anything.

    Attributes:
        is_own_machine: whether it is a process on the engine's machine.
        uid: user of the process at a unix socket, -1 = not known.
        gids: groups of that process.
        pid: process id, 0 = not known.
        certificate_names: host names in the certificate that TLS verified, () = no certificate.
        address: text for logs.
    """

    is_own_machine: bool
    uid: int = -1
    gids: tuple[int, ...] = ()
    pid: int = 0
    certificate_names: tuple[str, ...] = ()
    address: str = ""


def peer_of(connection: socket.socket, certificate: dict[str, Any] | None = None) -> Peer:
    """Return what is known about a connection's other end.

    Args:
        connection: an accepted connection.
        certificate: result of ``SSLSocket.getpeercert``, if any.

    Raises:
        OSError: the kernel cannot tell.
    """
    if connection.family == socket.AF_UNIX:
        pid, uid, gid = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
        return Peer(True, uid, (gid, *_groups(connection)), pid, address=f"unix, user {uid}, process {pid}")
    host, port = connection.getpeername()[:2]
    return Peer(is_loopback(host), certificate_names=names_of(certificate or {}), address=f"{host}:{port}")


def names_of(certificate: dict[str, Any]) -> tuple[str, ...]:
    """Return the host names of a verified certificate: its DNS names, or its common name if it has none."""
    names = tuple(str(value) for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS")
    if names:
        return names
    parts = (part for group in certificate.get("subject", ()) for part in group)
    return tuple(str(value) for kind, value in parts if kind == "commonName")


def _groups(connection: socket.socket) -> tuple[int, ...]:
    """Return the groups of the process at the other end of a unix socket, () on kernels that cannot tell."""
    try:
        data = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, 4 * _MAX_GROUPS)
    except OSError:
        return ()  # an older kernel: the process's own group counts alone
    return struct.unpack(f"={len(data) // 4}I", data)
