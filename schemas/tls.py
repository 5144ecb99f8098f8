"""TLS on a non-blocking stream socket, for both ends of the connection between agent and engine.

``ssl`` is imported only where TLS is used, which saves an agent without TLS its memory.
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
    """Interface of a session's socket; ``recv`` and ``send`` raise ``BlockingIOError`` where they would wait."""

    def __enter__(self) -> Self:
        """Return the stream itself."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        """Close the stream."""

    def recv(self, size: int, /) -> bytes:
        """Return received bytes, b"" if the peer closed."""

    def send(self, data: bytes | bytearray | memoryview, /) -> int:
        """Send some of the data and return how many bytes."""

    def fileno(self) -> int:
        """Return the file descriptor."""

    def setblocking(self, flag: bool, /) -> None:  # noqa: FBT001  # as sockets have it
        """Set whether calls wait."""

    def close(self) -> None:
        """Close the stream."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The PEM files of one end of a TLS connection.

    Attributes:
        certificate: our certificate with its chain, "" for none.
        key: key of the certificate, "" if in the certificate's file.
        authorities: authorities whose certificates the other end may show. "": the system's for an agent; an engine
            then asks for no certificate.
    """

    certificate: str = ""
    key: str = ""
    authorities: str = ""

    def connect(self, connection: socket.socket, server_name: str) -> TlsStream:
        """Return an agent's TLS stream after the handshake, with the engine's certificate verified.

        The handshake blocks as the socket does; the returned stream is non-blocking.

        Args:
            connection: connected socket.
            server_name: name that the engine's certificate must have.

        Raises:
            ConfigError: a file cannot be used.
            OSError: the other end's certificate is invalid, or it does not use TLS.
        """
        stream = TlsStream(self.client_context().wrap_socket(connection, server_hostname=server_name))
        stream.setblocking(False)
        return stream

    def client_context(self) -> ssl.SSLContext:
        """Return an agent's TLS context.

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
        """Return an engine's TLS context; with ``authorities`` every peer must show a certificate.

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
        """Return inode, size and modification time of each file, which change when a file is renewed.

        Raises:
            OSError: a file is missing.
        """
        found = (Path(path).stat() for path in (self.certificate, self.key, self.authorities) if path)
        return tuple((one.st_ino, one.st_size, one.st_mtime_ns) for one in found)

    def _load(self, context: ssl.SSLContext) -> None:
        """Load our certificate into a context, if there is one."""
        if not self.certificate:
            return
        try:
            # always a text: without one OpenSSL asks at the terminal
            context.load_cert_chain(self.certificate, self.key or None, lambda: "")
        except OSError as error:
            raise _bad("--tls-cert", self.certificate, error) from error


class TlsStream:
    """A TLS socket that raises ``BlockingIOError`` where a plain non-blocking one does."""

    def __init__(self, connection: ssl.SSLSocket) -> None:
        """Wrap a socket of ``SSLContext.wrap_socket``."""
        self._socket = connection
        self.wants_write = False
        """Whether the handshake waits for room to write instead of bytes to read."""

    def __enter__(self) -> Self:
        """Return the stream itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the stream."""
        self.close()

    @property
    def raw(self) -> socket.socket:
        """The underlying socket, for questions to the kernel."""
        return self._socket

    def shake_hands(self) -> bool:
        """Continue the handshake; return whether it is complete.

        Raises:
            OSError: the other end does not use TLS, or its certificate is invalid.
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
        """Return the other end's verified certificate, {} if it showed none."""
        found: dict[str, Any] = self._socket.getpeercert() or {}
        return found

    def recv(self, size: int) -> bytes:
        """Return received bytes, b"" if the peer closed.

        At least a whole TLS record is read, so nothing stays buffered.
        """
        import ssl  # loaded long since

        try:
            return self._socket.recv(max(size, _RECORD_BYTES))
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError) as error:
            raise BlockingIOError from error

    def send(self, data: bytes | bytearray | memoryview) -> int:
        """Send some of the data and return how many bytes.

        After ``BlockingIOError`` the same bytes must be sent first.
        """
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
        """Return the file descriptor."""
        return self._socket.fileno()

    def setblocking(self, flag: bool) -> None:  # noqa: FBT001  # as sockets have it
        """Set whether calls wait."""
        self._socket.setblocking(flag)

    def close(self) -> None:
        """Close the socket without a TLS closing message; the peer counts what was acknowledged."""
        self._socket.close()


def _bad(setting: str, value: str, error: OSError) -> ConfigError:
    """Return the ``ConfigError`` of a PEM file that cannot be used."""
    reason = getattr(error, "reason", None) or error.strerror or error
    return ConfigError(setting, value, f"a PEM file that can be read ({reason})")
