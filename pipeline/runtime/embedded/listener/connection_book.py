"""Who is connected to the agents' listener, and who has to go."""

from __future__ import annotations

from collections.abc import Iterable

from tocsin.pipeline.runtime.embedded.listener.connection import Connection
from tocsin.pipeline.runtime.embedded.listener.limits import ServerLimits, connection_room


class ConnectionBook:
    """Who is connected, and who has to go so that another may come.

    Those who have not signed in are counted by address and go first: fleets sit behind one address of a router, so an
    address is no peer once it has signed in.
    """

    def __init__(self, limits: ServerLimits) -> None:
        """Hold nobody."""
        self._limits = limits
        self._room = connection_room(limits)
        self._unsigned: dict[str, dict[Connection, None]] = {}
        self._signed: dict[str, dict[Connection, None]] = {}
        self.all: dict[int, Connection] = {}
        """By descriptor, oldest first."""

    def add(self, connection: Connection) -> Connection | None:
        """Take a new connection; returns who has to go for it (perhaps itself)."""
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
        """Count a connection for a peer from now on; returns an older one of the same peer that has to go."""
        self._leave(connection)
        connection.principal = principal
        same = self._signed.setdefault(principal, {})
        same[connection] = None
        if len(same) > self._limits.principal_connection_count:
            return next(iter(same))
        return None

    def remove(self, connection: Connection) -> None:
        """Forget a connection; its descriptor must still be open."""
        self._leave(connection)
        self.all.pop(connection.peer.fileno(), None)

    def _leave(self, connection: Connection) -> None:
        book, key = (
            (self._signed, connection.principal) if connection.principal else (self._unsigned, connection.address)
        )
        same = book.get(key, {})
        same.pop(connection, None)
        if not same:
            book.pop(key, None)

    def overdue(self, now_seconds: float) -> Iterable[tuple[Connection, str]]:
        """Who has to go because of the time, and why."""
        for connection in list(self.all.values()):
            why = connection.overdue(self._limits, now_seconds)
            if why:
                yield connection, why
