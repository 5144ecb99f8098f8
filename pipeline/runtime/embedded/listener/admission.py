"""Sign-in of connections to the listener, TLS, and the later check that their credentials are still valid."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from tocsin.pipeline.identity.gate import Gate, GateConfig
from tocsin.pipeline.identity.key_trouble import KeyFileWatch
from tocsin.pipeline.identity.peers import peer_of
from tocsin.pipeline.identity.principal import Principal
from tocsin.schemas.credentials import Role
from tocsin.schemas.errors import ConfigError, IdentityError
from tocsin.schemas.reasons import IdentityRefusal
from tocsin.schemas.tls import TlsFiles, TlsStream

if TYPE_CHECKING:
    from tocsin.pipeline.runtime.embedded.listener.connection import Connection

_LOG = logging.getLogger("tocsin.identity")
_RECHECK_SECONDS = 5.0
"""Interval at which credentials are rechecked even if their file did not change, because grace periods end."""


class Admission:
    """Connects one listener's sockets with its ``Gate``."""

    def __init__(self, config: GateConfig, tls: TlsFiles | None, now_ns: Callable[[], int]) -> None:
        """Prepare the gate and TLS.

        Args:
            config: which peers may sign in.
            tls: the engine's certificates, None = no TLS.
            now_ns: returns the engine's time.

        Raises:
            ConfigError: a certificate cannot be used.
        """
        self._gate = Gate(config)
        self._tls = tls
        self._context = None if tls is None else tls.server_context()
        self._tls_stamp = None if tls is None else tls.stamp()
        self._tls_trouble = ""
        self._now_ns = now_ns
        self._rechecked_seconds = 0.0

    @property
    def trouble(self) -> str:
        """Reason why the current credentials or certificates are not used, "" = they are used."""
        return self._gate.trouble or self._tls_trouble

    @property
    def key_file(self) -> KeyFileWatch | None:
        """See ``Gate.key_file``."""
        return self._gate.key_file

    def wrap(self, peer: socket.socket) -> socket.socket | TlsStream:
        """Return the stream for a new socket: the socket itself, or TLS on it whose handshake ``begin`` continues.

        Raises:
            OSError: the peer has already disconnected.
        """
        if self._context is None or peer.family == socket.AF_UNIX:
            return peer
        return TlsStream(self._context.wrap_socket(peer, server_side=True, do_handshake_on_connect=False))

    def begin(self, connection: Connection) -> bool:
        """Continue the TLS handshake, then send the sign-in challenge.

        Return False while the handshake needs more data.

        Raises:
            IdentityError: the peer cannot sign in with any proof.
            OSError: the peer has disconnected, or shows no valid certificate.
        """
        stream = connection.peer
        if isinstance(stream, TlsStream):
            if not stream.shake_hands():
                return False
            connection.sign_in = self._gate.meet(peer_of(stream.raw, stream.certificate()))
        else:
            connection.sign_in = self._gate.meet(peer_of(stream))
        connection.say(connection.sign_in.challenge)
        return True

    def hello(self, connection: Connection, data: bytes) -> Principal:
        """Check the first message of a connection, and return the authenticated principal.

        Raises:
            IdentityError: the message is not a hello, or does not prove the peer's identity.
        """
        if connection.sign_in is None:
            raise IdentityError(IdentityRefusal.IDENTITY_MISSING, "something was said before the challenge")
        try:
            message = json.loads(data)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict) or message.get("t") != "hello":
            raise IdentityError(IdentityRefusal.IDENTITY_MISSING, "the first message must be the hello")
        principal = connection.sign_in.hello(message, self._now_ns())
        key = "" if principal.credential is None else principal.credential.key_id
        fields = {"host": principal.host, "role": principal.role.value, "by": principal.by, "key": key}
        _LOG.info("signed in", extra={**fields, "address": connection.address})
        return principal

    def cut_off(
        self, connections: Iterable[Connection], now_seconds: float
    ) -> Iterator[tuple[Connection, IdentityError]]:
        """Yield the connections whose credentials are no longer valid, with the error; called about once a second."""
        is_due = now_seconds - self._rechecked_seconds >= _RECHECK_SECONDS or now_seconds < self._rechecked_seconds
        if not (self._gate.refresh() or is_due):
            return
        self._rechecked_seconds = now_seconds
        self._renew_certificates()
        now_ns = self._now_ns()
        for connection in list(connections):
            principal = None if connection.sign_in is None else connection.sign_in.principal
            if principal is not None:
                try:
                    self._gate.check_still(principal, now_ns)
                except IdentityError as error:
                    yield connection, error

    def _renew_certificates(self) -> None:
        """Load changed certificate files for new connections; unusable files change nothing but ``trouble``."""
        if self._tls is None:
            return
        try:
            stamp = self._tls.stamp()
            if stamp != self._tls_stamp:
                self._context = self._tls.server_context()
                self._tls_stamp, self._tls_trouble = stamp, ""
        except (OSError, ConfigError) as error:
            self._tls_trouble = str(error)


def host_of(principal: Principal) -> str:
    """Return the host that a connection counts for; for roles other than agent, the role followed by the host."""
    return principal.host if principal.role is Role.AGENT else f"{principal.role.value}:{principal.host}"
