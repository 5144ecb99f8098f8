"""Parsing of network addresses ``HOST:PORT``, e.g. ``10.0.0.1:4440``, ``node:4440``, ``[::1]:4440``."""

from __future__ import annotations

import ipaddress

from tocsin.schemas.errors import ConfigError


def split_address(text: str, setting: str) -> tuple[str, int]:
    """Split ``HOST:PORT`` into host and port; no name is resolved.

    Args:
        text: the address; an IPv6 host is in brackets.
        setting: name of the setting that holds the address, for the error.

    Raises:
        ConfigError: the text is no such address.
    """
    host, colon, port = text.rpartition(":")
    is_port = port.isascii() and port.isdigit() and len(port) <= 5 and int(port) < 1 << 16
    is_bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if is_bracketed else host
    if not (colon and host and is_port) or (":" in host) != is_bracketed:
        raise ConfigError(setting, text, "unix:PATH or HOST:PORT ([ADDRESS]:PORT for IPv6)")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Return whether a host is ``localhost`` or an IP address of the loopback interface."""
    if host == "localhost":
        return True
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return address.is_loopback if mapped is None else bool(mapped.is_loopback)
