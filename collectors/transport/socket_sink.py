"""The sink of an embedded engine: a socket in a thread of its own, and the spool while the engine is away."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from typing import Final

from tocsin.collectors.clock import SteadyClock
from tocsin.collectors.transport.outbox import Outbox, SinkConfig
from tocsin.collectors.transport.session import Session
from tocsin.collectors.transport.sign_in import SignIn
from tocsin.collectors.transport.spool import Spool
from tocsin.collectors.transport.threaded_sink import ThreadedSink
from tocsin.schemas.errors import ConfigError, CredentialError, IdentityError, TransportError
from tocsin.schemas.tls import Stream

log = logging.getLogger(__name__)

BACKOFF_SECONDS: Final = (0.25, 1.0)
"""First and longest pause between two attempts; an engine that starts waits 5 s for the agents it knew."""
CONNECT_SECONDS: Final = 2.0
_END_SECONDS: Final = 1.0
"""Time that closing takes beyond that for sending: writing the spool."""


class SocketSink(ThreadedSink):
    """Connects, sends, spools, connects again. See ``tocsin.collectors.transport.sink`` for the guarantees."""

    def __init__(self, config: SinkConfig, spool: Spool, clock: SteadyClock, wake: Callable[[], None]) -> None:
        """Prepare; ``start`` starts the thread. ``wake`` is called when ``poll`` has something.

        Raises:
            ConfigError: the engine's address is invalid.
        """
        config.check()
        self._config = config
        away = ("engine away", "engine", config.engine)
        box = Outbox(spool, clock, wake)
        super().__init__(box, log, backoff_seconds=BACKOFF_SECONDS, end_seconds=_END_SECONDS, away=away)

    def _talk(self) -> tuple[bool, str]:
        """Run one connection; return whether the engine accepted it, and why it ended."""
        config = self._config
        hello = {"t": "hello", "host": config.host, "agent_version": config.agent_version}
        session = None
        try:
            with self._connect() as connection:
                session = Session(self._box, connection, SignIn(config.tokens, hello, config.transport()))
                session.run()
        except (IdentityError, CredentialError) as error:
            return bool(session and session.was_welcome), f"{error.reason}: {error}"
        except (OSError, ValueError, TransportError, ConfigError) as error:  # ValueError: a name that IDNA refuses
            return bool(session and session.was_welcome), f"{type(error).__name__}: {error}"
        finally:
            if session is not None:
                session.put_back()
        return session.was_welcome, ""

    def _connect(self) -> Stream:
        """Return a connected, non-blocking stream to the engine."""
        family, address = self._config.address()
        connection = socket.socket(family, socket.SOCK_STREAM)
        try:
            connection.settimeout(CONNECT_SECONDS)
            connection.connect(address)
            if family != socket.AF_UNIX:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            tls = self._config.tls
            stream: Stream = connection if tls is None else tls.connect(connection, self._config.server_name())
            stream.setblocking(False)
        except (OSError, ConfigError):
            connection.close()
            raise
        self._box.connects += 1
        return stream
