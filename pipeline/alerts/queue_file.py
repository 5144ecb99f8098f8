"""The file of the queue: its tables, and what becomes of one that cannot be used."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Final

from tocsin.schemas.private_files import open_private
from tocsin.schemas.reasons import NamedReason

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS waiting (
    route TEXT NOT NULL, verdict_id TEXT NOT NULL, receiver TEXT NOT NULL, kind TEXT NOT NULL, severity TEXT NOT NULL,
    event TEXT NOT NULL, told_ns INTEGER NOT NULL, made_ns INTEGER NOT NULL, note TEXT NOT NULL,
    first_ns INTEGER NOT NULL, due_ns INTEGER NOT NULL, tries INTEGER NOT NULL, is_maybe_told INTEGER NOT NULL,
    PRIMARY KEY (route, verdict_id)
);
CREATE INDEX IF NOT EXISTS waiting_due ON waiting (receiver, due_ns);
CREATE TABLE IF NOT EXISTS told (
    route TEXT NOT NULL, verdict_id TEXT NOT NULL, receiver TEXT NOT NULL, kind TEXT NOT NULL, severity TEXT NOT NULL,
    event TEXT NOT NULL, told_ns INTEGER NOT NULL, note TEXT NOT NULL, reference TEXT NOT NULL,
    sent_ns INTEGER NOT NULL,
    PRIMARY KEY (route, verdict_id)
);
CREATE INDEX IF NOT EXISTS told_sent ON told (receiver, sent_ns);
CREATE TABLE IF NOT EXISTS sent (sent_ns INTEGER NOT NULL, row TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS state (name TEXT PRIMARY KEY, value TEXT NOT NULL);
"""
_VERSION: Final = 1
_BUSY_SECONDS: Final = 10.0


class QueueReason(NamedReason):
    """Why a queue begins anew."""

    FILE_DAMAGED = "file_damaged", "The file of the queue is damaged; it was moved aside and a new one begun."
    OTHER_VERSION = "other_version", "Another version of tocsin wrote the file; it was moved aside."


def open_queue_file(path: Path) -> tuple[sqlite3.Connection, QueueReason | None]:
    """Return the open database with its tables, and why it cannot be used, None where it can.

    Raises:
        OSError, sqlite3.OperationalError: the file cannot be opened, or another process uses it for long.
    """
    os.close(open_private(path, os.O_RDWR | os.O_CREAT))
    database = sqlite3.connect(path, timeout=_BUSY_SECONDS, check_same_thread=False)
    try:
        version = int(database.execute("PRAGMA user_version").fetchone()[0])
        is_sound = database.execute("PRAGMA quick_check(1)").fetchone()[0] == "ok"
        if version not in {0, _VERSION} or not is_sound:
            database.close()
            return database, QueueReason.OTHER_VERSION if is_sound else QueueReason.FILE_DAMAGED
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        database.executescript(_TABLES)
        database.execute(f"PRAGMA user_version = {_VERSION}")
    except sqlite3.OperationalError:
        database.close()
        raise
    except sqlite3.DatabaseError:
        database.close()
        return database, QueueReason.FILE_DAMAGED
    return database, None


def move_aside(path: Path, now_ns: int) -> None:
    """Give a file that cannot be used, and its companions, another name."""
    for suffix in ("", "-wal", "-shm"):
        old = path.with_name(path.name + suffix)
        if old.exists():
            old.replace(path.with_name(f"{path.name}.damaged-{now_ns}{suffix}"))
