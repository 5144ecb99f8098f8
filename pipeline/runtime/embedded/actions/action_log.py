"""The file that holds each change of an action, in order, together with the controller's state of the same moment.

Both are written in one transaction: an executor never sees an action that the controller does not know after a death,
and the controller never knows one that nobody can see. Lines of the log are only added.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tocsin.schemas.errors import ConfigError
from tocsin.schemas.private_files import open_private

FILE_NAME: Final = "actions.db"
MAX_LINES: Final = 200
"""Most lines in one answer to an executor."""
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS log (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, action_id TEXT NOT NULL, changed_ns INTEGER NOT NULL, value BLOB NOT NULL,
    signature BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS log_action ON log (action_id, seq);
CREATE TABLE IF NOT EXISTS state (name TEXT PRIMARY KEY, value BLOB NOT NULL);
"""
_VERSION: Final = 1
_BUSY_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class LogLine:
    """One change of an action.

    Attributes:
        seq: its place in the log, ascending from 1; 0 before it is written.
        action_id: the action.
        changed_ns: when it changed.
        value: the encoded action.
        signature: the controller's signature of the value.
    """

    seq: int
    action_id: str
    changed_ns: int
    value: bytes
    signature: bytes


class ActionLog:
    """The log of one engine's actions; any thread may use it."""

    def __init__(self, path: Path) -> None:
        """Open the file, made if absent.

        Args:
            path: the file.

        Raises:
            ConfigError: it cannot be used. It is not begun anew: who forgets what was done does it twice.
        """
        self._lock = threading.Lock()
        try:
            os.close(open_private(path, os.O_RDWR | os.O_CREAT))
            self._database = sqlite3.connect(path, timeout=_BUSY_SECONDS, check_same_thread=False)
            version = int(self._database.execute("PRAGMA user_version").fetchone()[0])
            if version not in {0, _VERSION}:
                must = f"a log of actions of version {_VERSION}, not {version}: use the tocsin that wrote it"
                raise ConfigError("the log of actions", str(path), must)
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = FULL")
            self._database.executescript(_TABLES)
            self._database.execute(f"PRAGMA user_version = {_VERSION}")
        except (OSError, sqlite3.Error) as error:
            must = f"a file that can be used ({error}); move it away only if no action of it is in force"
            raise ConfigError("the log of actions", str(path), must) from error

    def write(self, lines: Sequence[LogLine], parts: Mapping[str, bytes]) -> None:
        """Add lines and replace the controller's state, both or neither.

        Raises:
            sqlite3.Error: the disk refuses; nothing was written.
        """
        rows = [(one.action_id, one.changed_ns, one.value, one.signature) for one in lines]
        with self._lock, self._database as database:
            database.executemany("INSERT INTO log (action_id, changed_ns, value, signature) VALUES (?, ?, ?, ?)", rows)
            database.execute("DELETE FROM state")
            database.executemany("INSERT INTO state VALUES (?, ?)", sorted(parts.items()))

    def parts(self) -> dict[str, bytes]:
        """Return the controller's state as it was written last, empty before the first time."""
        with self._lock:
            return dict(self._database.execute("SELECT name, value FROM state").fetchall())

    def after(self, seq: int) -> list[LogLine]:
        """Return the newest line of each action that changed after a place in the log, in order, ``MAX_LINES`` at most.

        A reader that was away sees each action as it is now, not what it was meanwhile.
        """
        sql = (
            "SELECT seq, action_id, changed_ns, value, signature FROM log WHERE seq IN"
            " (SELECT max(seq) FROM log WHERE seq > ? GROUP BY action_id) ORDER BY seq LIMIT ?"
        )
        return self._lines(sql, (seq, MAX_LINES))

    def history(self, action_id: str) -> list[LogLine]:
        """Return all lines of one action, oldest first."""
        sql = "SELECT seq, action_id, changed_ns, value, signature FROM log WHERE action_id = ? ORDER BY seq"
        return self._lines(sql, (action_id,))

    def forget_before(self, time_ns: int, kept: Sequence[str]) -> None:
        """Remove the lines of actions whose last change is older than a time, except those of some actions."""
        with self._lock, self._database as database:
            old = database.execute(
                "SELECT action_id FROM log GROUP BY action_id HAVING max(changed_ns) < ?", (time_ns,)
            ).fetchall()
            gone = [(name,) for (name,) in old if name not in set(kept)]
            database.executemany("DELETE FROM log WHERE action_id = ?", gone)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._database.close()

    def _lines(self, sql: str, values: tuple[object, ...]) -> list[LogLine]:
        with self._lock:
            return [LogLine(*row) for row in self._database.execute(sql, values).fetchall()]
