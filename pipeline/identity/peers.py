"""What the kernel (or TLS) says about the other end of a connection."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from typing import Any, Final

from tocsin.schemas.address import is_loopback

_UCRED: Final = struct.Struct("=iII")
_SO_PEERGROUPS: Final = 59  # Linux 4.13; the socket module does not name it
_MAX_GROUPS: Final = 1024


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end of a connection, before it has said anything.

    Attributes:
        is_own_machine: whether it is a process of the engine's own machine.
        uid: of the process at a unix socket, -1 = not known.
        gids: its groups.
        pid: of the process, 0 = not known.
        certificate_names: host names of the certificate that TLS verified, () = none was shown.
        address: for logs.
    """

    is_own_machine: bool
    uid: int = -1
    gids: tuple[int, ...] = ()
    pid: int = 0
    certificate_names: tuple[str, ...] = ()
    address: str = ""


def peer_of(connection: socket.socket, certificate: dict[str, Any] | None = None) -> Peer:
    """Return what is known of a connection's other end.

    Args:
        connection: an accepted connection.
        certificate: what ``SSLSocket.getpeercert`` gave, where there is one.

    Raises:
        OSError: the kernel does not say.
    """
    if connection.family == socket.AF_UNIX:
        pid, uid, gid = _UCRED.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
        return Peer(True, uid, (gid, *_groups(connection)), pid, address=f"unix, user {uid}, process {pid}")
    host, port = connection.getpeername()[:2]
    return Peer(is_loopback(host), certificate_names=names_of(certificate or {}), address=f"{host}:{port}")


def names_of(certificate: dict[str, Any]) -> tuple[str, ...]:
    """Return the host names of a verified certificate: its DNS names; without any, its common name."""
    names = tuple(str(value) for kind, value in certificate.get("subjectAltName", ()) if kind == "DNS")
    if names:
        return names
    parts = (part for group in certificate.get("subject", ()) for part in group)
    return tuple(str(value) for kind, value in parts if kind == "commonName")


def _groups(connection: socket.socket) -> tuple[int, ...]:
    try:
        data = connection.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, 4 * _MAX_GROUPS)
    except OSError:
        return ()  # an older kernel: the process's own group counts alone
    return struct.unpack(f"={len(data) // 4}I", data)
