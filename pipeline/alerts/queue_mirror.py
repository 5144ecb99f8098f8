"""The rows of the queue of alerts as named parts, so that another process on another host can go on with them.

Triggers in the queue's file note which rows changed; whoever mirrors it takes these rows only.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

from tocsin.schemas.errors import SnapshotError

_KEYS: Final[Mapping[str, tuple[str, ...]]] = {
    "waiting": ("route", "verdict_id"),
    "told": ("route", "verdict_id"),
    "state": ("name",),
}
"""Table -> columns of its key."""
_BUSY_SECONDS: Final = 10.0


class QueueMirror:
    """Reads and writes the rows of an ``AlertQueue`` that is open; one thread uses it.

    A part's name is the table and the row's key, separated by ``/`` and percent-encoded; its bytes are the row as a
    JSON object.
    """

    def __init__(self, path: Path) -> None:
        """Begin to note changes in a queue's file."""
        self._db = sqlite3.connect(path, timeout=_BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        self._db.execute("CREATE TABLE IF NOT EXISTS changed (part TEXT PRIMARY KEY, names TEXT NOT NULL)")
        self._columns = {table: self._columns_of(table) for table in _KEYS}
        for table, keys in _KEYS.items():
            for event, row in (("INSERT", "new"), ("UPDATE", "new"), ("DELETE", "old")):
                names = ", ".join(f"{row}.{key}" for key in keys)
                self._db.execute(  # no foreign names in it
                    f"CREATE TRIGGER IF NOT EXISTS mirror_{table}_{event} AFTER {event} ON {table} BEGIN"  # noqa: S608
                    f" INSERT OR REPLACE INTO changed VALUES ('{table}' || '/' || json_array({names}),"
                    f" json_array('{table}', {names})); END"
                )

    def _columns_of(self, table: str) -> tuple[str, ...]:
        """Return the names of a table's columns."""
        return tuple(row[1] for row in self._db.execute(f"PRAGMA table_info({table})"))

    def load(self, parts: Mapping[str, bytes]) -> None:
        """Put rows into the empty queue; parts of other names are left out.

        Raises:
            SnapshotError: a part holds no row of its table.
        """
        self._db.execute("BEGIN IMMEDIATE")
        for name, data in parts.items():
            table = name.partition("/")[0]
            if table not in _KEYS:
                continue
            try:
                values = {key: value for key, value in json.loads(data).items() if key in self._columns[table]}
                marks = ", ".join("?" * len(values))
                statement = f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks})"  # noqa: S608  # columns
                self._db.execute(statement, tuple(values.values()))
            except (ValueError, AttributeError, sqlite3.Error) as error:
                self._db.execute("ROLLBACK")
                raise SnapshotError(f"part {unquote(name)!r} of the alerts' state is no row: {error}") from error
        self._db.execute("DELETE FROM changed")
        self._db.execute("COMMIT")

    def has_changes(self) -> bool:
        """Return whether rows changed since the last ``changes``."""
        return self._db.execute("SELECT 1 FROM changed LIMIT 1").fetchone() is not None

    def changes(self) -> dict[str, bytes | None]:
        """Return the rows that changed since the last call or ``load``, as parts; None: the row is gone."""
        found: dict[str, bytes | None] = {}
        self._db.execute("BEGIN IMMEDIATE")
        for (names,) in self._db.execute("SELECT names FROM changed").fetchall():
            table, *key = json.loads(names)
            part = "/".join([table, *(quote(one, safe="") for one in key)])
            found[part] = self._row(table, key)
        self._db.execute("DELETE FROM changed")
        self._db.execute("COMMIT")
        return found

    def _row(self, table: str, key: list[Any]) -> bytes | None:
        """Return a row as JSON, None if it is gone."""
        where = " AND ".join(f"{name} = ?" for name in _KEYS[table])
        row = self._db.execute(f"SELECT * FROM {table} WHERE {where}", key).fetchone()  # noqa: S608  # own names
        return None if row is None else json.dumps(dict(zip(self._columns[table], row, strict=True))).encode()

    def close(self) -> None:
        """Close the connection."""
        self._db.close()
