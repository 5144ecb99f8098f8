"""Routes one rank's gloo traffic through a relay, without gloo noticing.

gloo's ranks tell each other their addresses through the rendezvous store, as a length and a host name, then a length
and a raw sockaddr. Of two ranks, the one with the higher address connects to the other. So the rank with the injected
fault sees a changed store:

- the address that it publishes is replaced by the highest possible one, so that nobody connects to it,
- the addresses that it reads are replaced by the lowest possible one with the relay's port, so that it connects to all
  others, through the relay.
"""

from __future__ import annotations

import datetime as dt
import socket
import struct
from pathlib import Path
from typing import cast

from torch._C._distributed_c10d import Store  # where torch's own type stubs know it

from tocsin.cli.drill import relay

_ABOVE_ALL = socket.inet_aton("127.255.255.254")
_BELOW_ALL = socket.inet_aton("0.0.0.0")  # noqa: S104 - to connect to it is to connect to this machine
_LENGTH = struct.Struct("<q")
_ADDRESS_KEY = "//cpu//"
_PORT_AT, _HOST_AT, _HOST_END = 2, 4, 8


class DetourStore(Store):
    """The rendezvous store as the rank with the injected fault sees it."""

    def __init__(self, inner: Store, relay_socket: Path) -> None:
        """Wrap a store.

        Args:
            inner: the store that all ranks share.
            relay_socket: control socket of the relay.
        """
        super().__init__()
        self._inner = inner
        self._own: set[str] = set()
        self._relay_socket = str(relay_socket)

    def set(self, key: str, value: str) -> None:
        """Store a value; the rank's own address is replaced (gloo passes bytes, although torch's stub says str)."""
        if _ADDRESS_KEY in key:
            self._own.add(key)
            replaced = replace_address(cast("bytes", value), _ABOVE_ALL, None)
            self._inner.set(key, cast("str", replaced))
        else:
            self._inner.set(key, value)

    def get(self, key: str) -> bytes:
        """Return a value; a peer's address is replaced by one that leads through the relay."""
        value = self._inner.get(key)
        if _ADDRESS_KEY not in key or key in self._own:
            return value
        port = int(relay.ask(self._relay_socket, f"open {port_of(value)}"))
        return replace_address(value, _BELOW_ALL, port)

    def add(self, key: str, amount: int) -> int:
        """Call the shared store's ``add``."""
        return self._inner.add(key, amount)

    def check(self, keys: list[str]) -> bool:
        """Call the shared store's ``check``."""
        return self._inner.check(keys)

    def wait(self, keys: list[str], *timeout: dt.timedelta) -> None:
        """Call the shared store's ``wait``."""
        self._inner.wait(keys, *timeout)

    def delete_key(self, key: str) -> bool:
        """Call the shared store's ``delete_key``."""
        return self._inner.delete_key(key)

    def set_timeout(self, timeout: dt.timedelta) -> None:
        """Call the shared store's ``set_timeout``."""
        self._inner.set_timeout(timeout)


def _sockaddr_at(blob: bytes) -> int:
    """Return the offset of the sockaddr in a published address."""
    (name_length,) = _LENGTH.unpack_from(blob, 0)
    return _LENGTH.size + int(name_length) + _LENGTH.size


def port_of(blob: bytes) -> int:
    """Return the port in a published address."""
    at = _sockaddr_at(blob) + _PORT_AT
    return int.from_bytes(blob[at : at + 2], "big")


def replace_address(blob: bytes, host: bytes, port: int | None) -> bytes:
    """Return the published address with another host, and with another port unless it is None."""
    at = _sockaddr_at(blob)
    changed = bytearray(blob)
    changed[at + _HOST_AT : at + _HOST_END] = host
    if port is not None:
        changed[at + _PORT_AT : at + _HOST_AT] = port.to_bytes(2, "big")
    return bytes(changed)
