"""TLS on a stream socket that does not block, as both ends of the agents' way use it.

``ssl`` is imported where TLS is asked for: an agent without it does without its memory.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from tocsin.schemas.errors import ConfigError

if TYPE_CHECKING:
    import ssl
    from types import TracebackType

_RECORD_BYTES = 16 * 1024


class Stream(Protocol):
    """What a session needs of a socket; ``recv`` and ``send`` raise ``BlockingIOError`` where they would wait."""

    def __enter__(self) -> Self:
        """Return itself."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """Close it."""

    def recv(self, size: int, /) -> bytes:
        """Return what came, b"" = the peer is gone."""

    def send(self, data: bytes | bytearray | memoryview, /) -> int:
        """Send some of it; return how many bytes."""

    def fileno(self) -> int:
        """Return the descriptor."""

    def setblocking(self, flag: bool, /) -> None:  # noqa: FBT001  # as sockets have it
        """Wait, or raise."""

    def close(self) -> None:
        """Close it."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files of one end.

    Attributes:
        certificate: our certificate and what it hangs on, "" = none.
        key: its key, "" = in the certificate's file.
        authorities: whose certificates the other end may show, "" = the system's (agent), or none is asked for
            (engine).
    """

    certificate: str = ""
    key: str = ""
    authorities: str = ""

    def connect(self, connection: socket.socket, server_name: str) -> TlsStream:
        """Return an agent's connection, with TLS and the engine's certificate checked; blocks as the socket does.

        Raises:
            ConfigError: a file cannot be used.
            OSError: the other end's certificate is not good, or it does not speak TLS.
        """
        stream = TlsStream(self.client_context().wrap_socket(connection, server_hostname=server_name))
        stream.setblocking(False)
        return stream

    def client_context(self) -> ssl.SSLContext:
        """Return an agent's settings.

        Raises:
            ConfigError: a file cannot be used.
        """
        import ssl  # an agent without TLS does without its memory

        try:
            context = ssl.create_default_context(cafile=self.authorities or None)
        except OSError as error:
            raise _bad("--tls-ca", self.authorities, error) from error
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._load(context)
        return context

    def server_context(self) -> ssl.SSLContext:
        """Return an engine's settings; with ``authorities`` every peer must show a certificate.

        Raises:
            ConfigError: a file cannot be used.
        """
        import ssl  # as above

        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._load(context)
        if self.authorities:
            try:
                context.load_verify_locations(self.authorities)
            except OSError as error:
                raise _bad("--tls-client-ca", self.authorities, error) from error
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def stamp(self) -> tuple[tuple[int, int, int], ...]:
        """Return what changes when one of the files is renewed.

        Raises:
            OSError: a file is away.
        """
        found = (Path(path).stat() for path in (self.certificate, self.key, self.authorities) if path)
        return tuple((one.st_ino, one.st_size, one.st_mtime_ns) for one in found)

    def _load(self, context: ssl.SSLContext) -> None:
        if not self.certificate:
            return
        try:
            # always a text: without one OpenSSL asks at the terminal
            context.load_cert_chain(self.certificate, self.key or None, lambda: "")
        except OSError as error:
            raise _bad("--tls-cert", self.certificate, error) from error


class TlsStream:
    """A socket with TLS that raises ``BlockingIOError`` where a plain one does."""

    def __init__(self, connection: ssl.SSLSocket) -> None:
        """Wrap what ``SSLContext.wrap_socket`` gave."""
        self._socket = connection
        self.wants_write = False
        """Whether the handshake waits for room, not for bytes."""

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close it."""
        self.close()

    @property
    def raw(self) -> socket.socket:
        """The socket, for what the kernel says of it."""
        return self._socket

    def shake_hands(self) -> bool:
        """Go on with the handshake; whether it is done.

        Raises:
            OSError: the other end does not speak TLS, or shows no good certificate.
        """
        import ssl  # loaded long since

        try:
            self._socket.do_handshake()
        except ssl.SSLWantReadError:
            self.wants_write = False
            return False
        except ssl.SSLWantWriteError:
            self.wants_write = True
            return False
        self.wants_write = False
        return True

    def certificate(self) -> dict[str, Any]:
        """Return the other end's verified certificate, {} = it showed none."""
        found: dict[str, Any] = self._socket.getpeercert() or {}
        return found

    def recv(self, size: int) -> bytes:
        """Return what came, b"" = the peer is gone; a whole TLS record at a time, so nothing is left behind."""
        import ssl  # loaded long since

        try:
            return self._socket.recv(max(size, _RECORD_BYTES))
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            raise BlockingIOError from error

    def send(self, data: bytes | bytearray | memoryview) -> int:
        """Send some of it; return how many bytes. After ``BlockingIOError`` the same bytes must come first."""
        import ssl  # loaded long since

        sent = 0
        with memoryview(data) as view:
            while sent < len(view):
                try:
                    sent += self._socket.send(view[sent : sent + _RECORD_BYTES])
                except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
                    if sent:
                        break
                    raise BlockingIOError from error
        return sent

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._socket.fileno()

    def setblocking(self, flag: bool) -> None:  # noqa: FBT001  # as sockets have it
        """Wait, or raise."""
        self._socket.setblocking(flag)

    def close(self) -> None:
        """Close it, without a farewell: the peer counts what was acknowledged."""
        self._socket.close()


def _bad(setting: str, value: str, error: OSError) -> ConfigError:
    reason = getattr(error, "reason", None) or error.strerror or error
    return ConfigError(setting, value, f"a PEM file that can be read ({reason})")
