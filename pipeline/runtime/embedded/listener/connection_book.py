"""Track the listener's connections, and choose which to close when limits are reached."""

from __future__ import annotations

from collections.abc import Iterable

from tocsin.pipeline.runtime.embedded.listener.connection import Connection
from tocsin.pipeline.runtime.embedded.listener.limits import ServerLimits, connection_room


class ConnectionBook:
    """All open connections, counted by address before sign-in and by principal afterwards.

    Connections that have not signed in are closed first. Signed-in ones are not counted by address, because a whole
    fleet may share one address behind a router.
    """

    def __init__(self, limits: ServerLimits) -> None:
        """Start without connections."""
        self._limits = limits
        self._room = connection_room(limits)
        self._unsigned: dict[str, dict[Connection, None]] = {}
        self._signed: dict[str, dict[Connection, None]] = {}
        self.all: dict[int, Connection] = {}
        """Descriptor -> connection, oldest first."""

    def add(self, connection: Connection) -> Connection | None:
        """Add a new connection; return the connection to close for it (perhaps itself), None = none."""
        same = self._unsigned.setdefault(connection.address, {})
        same[connection] = None
        self.all[connection.peer.fileno()] = connection
        if len(same) > self._limits.address_connection_count:
            return next(iter(same))
        if len(self.all) > self._room:
            crowded = max(self._unsigned.values(), key=len)
            return next(iter(crowded))
        return None

    def sign_in(self, connection: Connection, principal: str) -> Connection | None:
        """Count a connection for a principal; return an older connection of it to close, None = none."""
        self._leave(connection)
        connection.principal = principal
        same = self._signed.setdefault(principal, {})
        same[connection] = None
        if len(same) > self._limits.principal_connection_count:
            return next(iter(same))
        return None

    def remove(self, connection: Connection) -> None:
        """Remove a connection; its descriptor must still be open."""
        self._leave(connection)
        self.all.pop(connection.peer.fileno(), None)

    def _leave(self, connection: Connection) -> None:
        """Remove a connection from the counts of its principal or address."""
        book, key = (
            (self._signed, connection.principal) if connection.principal else (self._unsigned, connection.address)
        )
        same = book.get(key, {})
        same.pop(connection, None)
        if not same:
            book.pop(key, None)

    def overdue(self, now_seconds: float) -> Iterable[tuple[Connection, str]]:
        """Yield the connections to close because of a timeout, each with the reason."""
        for connection in list(self.all.values()):
            why = connection.overdue(self._limits, now_seconds)
            if why:
                yield connection, why
