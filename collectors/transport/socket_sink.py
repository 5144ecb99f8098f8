"""The sink of an embedded engine: a socket in a thread of its own, and the spool while the engine is away."""

from __future__ import annotations

import logging
import random
import socket
import threading
from collections.abc import Callable
from typing import Final

from tocsin.collectors.clock import SteadyClock
from tocsin.collectors.transport.outbox import Outbox, SinkConfig
from tocsin.collectors.transport.session import Session
from tocsin.collectors.transport.sign_in import SignIn
from tocsin.collectors.transport.sink import Probe, Refused, SinkStatus
from tocsin.collectors.transport.spool import Spool
from tocsin.schemas.errors import ConfigError, CredentialError, IdentityError, TransportError
from tocsin.schemas.records import Record
from tocsin.schemas.tls import Stream

log = logging.getLogger(__name__)

BACKOFF_SECONDS: Final = (0.25, 1.0)
"""First and longest pause between two attempts; an engine that starts waits 5 s for the agents it knew."""
CONNECT_SECONDS: Final = 2.0


class SocketSink:
    """Sink that sends records to the engine over a socket, spools them while it cannot, and reconnects.

    See ``tocsin.collectors.transport.sink`` for the guarantees.
    """

    def __init__(self, config: SinkConfig, spool: Spool, clock: SteadyClock, wake: Callable[[], None]) -> None:
        """Prepare; ``start`` starts the thread. ``wake`` is called when ``poll`` has something.

        Raises:
            ConfigError: the engine's address is invalid.
        """
        config.check()
        self._config = config
        self._box = Outbox(spool, clock, wake)
        self._thread = threading.Thread(target=self._run, name="sink", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def put(self, record: Record) -> None:
        """Accept a record without blocking."""
        self._box.put(record)

    def poll(self) -> list[Refused | Probe]:
        """Return the engine's refusals and probes since the last call."""
        return self._box.poll()

    def status(self) -> SinkStatus:
        """Return the state of the connection to the engine."""
        return self._box.status

    def is_alive(self) -> bool:
        """Return whether the thread is running."""
        return self._thread.is_alive()

    def clock_jumped(self) -> None:
        """Forget the clock offset; the next comparison gives a new one."""
        self._box.offsets.clear()

    def close(self, seconds: float) -> None:
        """Send waiting records for at most ``seconds``; the rest stays in the spool."""
        self._box.closing_mono = self._box.mono() + seconds
        self._box.nudge()
        self._thread.join(seconds + 1.0)

    def _run(self) -> None:
        """Connect again and again with backoff, until closed."""
        box, backoff, last_logged = self._box, BACKOFF_SECONDS[0], ""
        while True:
            welcome, text = self._talk()
            if welcome:
                backoff, last_logged = BACKOFF_SECONDS[0], ""
            if text and text != last_logged:
                last_logged = text
                log.warning("engine away", extra={"engine": self._config.engine, "error": text})
            box.publish(connected=False)
            if box.closing_mono is not None:
                break
            self._pause(backoff * random.uniform(0.8, 1.2))
            backoff = min(BACKOFF_SECONDS[1], backoff * 2)
        box.spool_all()
        box.publish(connected=False)
        box.spool.close()

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

    def _pause(self, seconds: float) -> None:
        """Wait before the next attempt; records that arrive meanwhile go to the spool."""
        box = self._box
        until = box.mono() + seconds
        while box.closing_mono is None and box.mono() < until:
            box.spool_all()
            box.publish(connected=False)
            box.wait(until - box.mono())
