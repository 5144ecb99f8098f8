"""The incident database in a folder, with chDB (ClickHouse's engine inside this process).

The only module that uses chDB. Its rules, as seen with 4.4: one folder per process and one process per folder at a
time. A process must not fork while a folder is open, because the child hangs. A connection runs one query at a time and
keeps the effects of SET and USE. After a failed query its rows may appear in the next answer. So verdicts are written
on one connection, and each user query gets its own read-only connection with limits, closed afterwards.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, cast

import chdb
from chdb.session import Session

from tocsin.pipeline.stores.messages import one_line_error
from tocsin.pipeline.stores.rows import Cell, Row, TimeNs
from tocsin.pipeline.stores.shown import encoded, is_by_cell, without_hidden
from tocsin.pipeline.stores.sql_store import SqlStore
from tocsin.pipeline.stores.user_queries import LIMITS, QuerySlots, UserQuery, checked_query
from tocsin.schemas.errors import ConfigError, DatabaseLockedError, StoreError
from tocsin.schemas.records import NS_PER_SECOND

_OPEN_ATTEMPTS_COUNT = 2
_IN_MEMORY = threading.Lock()
"""Lock for chDB's engine without a folder, which runs one statement at a time."""


class _Result(Protocol):
    """Type of chDB's query result (the package has no types)."""

    def bytes(self) -> bytes | None: ...


class _Written(Protocol):
    """Type of the result of a chDB insert."""

    rows_written: int


class _Stream(Protocol):
    """Type of an open chDB insert."""

    def append(self, data: bytes) -> None: ...

    def finish(self) -> _Written: ...


class _Session(Protocol):
    """Type of a chDB connection."""

    def query(self, sql: str, fmt: str = "CSV") -> _Result: ...

    def send_insert(self, query: str, fmt: str) -> contextlib.AbstractContextManager[_Stream]: ...

    def close(self) -> None: ...


class ChdbStore(SqlStore):
    """The incident database in a folder.

    Args:
        folder: the database folder; created if missing, readable by its owner only.

    Raises:
        DatabaseLockedError: another process has it open.
        StoreError: the folder cannot be used.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(ChdbBackend(folder))


class ChdbBackend:
    """Connections to one database folder: one for writing, and one for each running user query.

    Args:
        folder: the database folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()
        if "?" in str(self._folder):
            raise ConfigError("data folder", str(folder), "a path without '?': chDB reads what follows as settings")
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"cannot make the database folder {self._folder}: {error.strerror}") from error
        self._writer: _Session | None = _open_session(self._folder)
        self._pid = os.getpid()
        self._write_lock = threading.Lock()
        self._slots = QuerySlots()
        self.execute("CREATE DATABASE IF NOT EXISTS tocsin")  # a user's connection begins with USE

    def execute(self, statement: str) -> None:
        """See ``Backend.execute``."""
        with self._writing() as writer:
            writer.query(statement)

    def select(self, statement: str) -> list[Mapping[str, Any]]:
        """See ``Backend.select``."""
        with self._writing() as writer:
            answer = writer.query(statement, "JSONEachRow").bytes() or b""
        return [json.loads(line) for line in answer.splitlines()]

    def insert(self, table: str, columns: Sequence[str], batch: Sequence[Row]) -> None:
        """See ``Backend.insert``."""
        # A column that the table lacks is a mistake of ours; chDB would drop its values in silence.
        names = ", ".join(columns)
        statement = f"INSERT INTO {table} ({names}) SETTINGS input_format_skip_unknown_fields = 0"
        data = encode_rows(batch)
        with self._writing() as writer, writer.send_insert(statement, "JSONEachRow") as stream:
            stream.append(data)
            written = stream.finish().rows_written
        if written != len(batch):
            raise StoreError(f"the database took {written} of {len(batch)} rows for {table}")

    def query(self, sql: str, fmt: str) -> bytes:
        """See ``Backend.query``."""
        self._opened(self._writer)  # before the places: a forked child's never become free
        with self._slots.slot(sql), self._connection() as session:
            self._opened(self._writer)  # it may have been closed meanwhile
            asked = checked_query(sql, fmt, lambda statement: _text(session, statement))
            _restrict(session)
            if is_by_cell(asked.fmt):
                return self._by_cell(session, asked)
            with _explained():
                answer = session.query(asked.sql, asked.fmt).bytes() or b""
        return without_hidden(answer, asked.fmt)

    def _by_cell(self, session: _Session, asked: UserQuery) -> bytes:
        """Answer a query in a format that does not escape line ends: values are cleaned first, then formatted."""
        with _explained():
            data = session.query(asked.sql, "Native").bytes() or b""
            if not data:  # no rows: the format says what stands around them
                return without_hidden(session.query(asked.sql, asked.fmt).bytes() or b"", asked.fmt)
        found = encoded(data)
        if found is None:
            raise StoreError(f"a column's type cannot be shown as {asked.fmt}: ask for JSONEachRow or TSV")
        with self._connection() as own:
            return without_hidden(_formatted(found, asked.fmt, own.query), asked.fmt)

    def close(self) -> None:
        """See ``Backend.close``; running user queries are stopped."""
        if os.getpid() != self._pid:
            return  # the parent's database: in a forked child even dropping a session hangs
        with self._write_lock:
            writer, self._writer = self._writer, None
        if writer is None:
            return
        # Not where nothing runs, nor without waiting: the engine ends with this connection, and what it still does in
        # the background then ends the process (seen in tests as a lost worker).
        if not self._slots.is_idle():
            with contextlib.suppress(RuntimeError):
                writer.query("KILL QUERY WHERE 1 SYNC")
        with self._slots.all_slots():
            writer.close()

    @contextlib.contextmanager
    def _writing(self) -> Iterator[_Session]:
        """Lock and yield the writing connection.

        After an error it is replaced, as its next answer could hold old rows.
        """
        with self._write_lock:
            writer = self._opened(self._writer)
            try:
                with _explained():
                    yield writer
            except StoreError:
                with _explained():
                    self._writer = _connect(self._folder)  # before the other goes: the folder stays ours
                writer.close()
                raise

    @contextlib.contextmanager
    def _connection(self) -> Iterator[_Session]:
        """Open a connection to the folder, and close it at the end of the block."""
        with _explained():
            session = _connect(self._folder)
        try:
            yield session
        finally:
            session.close()

    def _opened(self, session: _Session | None) -> _Session:
        """Return the session; raise ``StoreError`` if the database was closed, or this is a forked child."""
        if session is None:
            raise StoreError(f"the incident database {self._folder} was closed")
        if os.getpid() != self._pid:
            raise StoreError("chDB does not survive fork: open the database in the process that uses it")
        return session


def format_native(data: bytes, fmt: str) -> bytes:
    """Convert rows in format ``Native`` to another ClickHouse output format.

    ClickHouse servers send typed columns and leave text formatting to the client. Formatting here with chDB makes
    answers look the same from a server and from an embedded database.

    Raises:
        StoreError: the format does not exist, or a database folder is open in this process.
    """
    return _formatted(data, fmt, _in_memory)


def parse_here(statement: str) -> str:
    """Run one of the program's own statements on an engine without a database, and return its answer as text.

    Raises:
        StoreError: the statement fails, or a database folder is open in this process.
    """
    with _explained():
        return (_in_memory(statement, "TSVRaw").bytes() or b"").decode("utf-8", "replace")


def _in_memory(sql: str, fmt: str) -> _Result:
    """Run a statement on chDB's engine without a folder and return the result."""
    with _IN_MEMORY:
        return cast("_Result", chdb.query(sql, fmt))  # type: ignore[no-untyped-call]  # chDB has no types


def _formatted(data: bytes, fmt: str, query: Callable[[str, str], _Result]) -> bytes:
    """Write rows in format ``Native`` to a temporary file and convert them to ``fmt`` with ``query``."""
    with tempfile.NamedTemporaryFile(prefix="tocsin-", suffix=".native") as file, _explained():
        file.write(data)
        file.flush()
        name = file.name.replace("\\", "\\\\").replace("'", "\\'")
        statement = f"SELECT * FROM file('{name}', 'Native')"  # noqa: S608  # a name of ours
        return query(statement, fmt).bytes() or b""


def encode_rows(batch: Sequence[Row]) -> bytes:
    """Encode rows in format JSONEachRow; lone surrogates, which UTF-8 cannot encode, become ``?``."""
    lines = (json.dumps({name: encode_cell(cell) for name, cell in row.items()}, ensure_ascii=False) for row in batch)
    return "\n".join(lines).encode("utf-8", "replace")


def encode_cell(cell: Cell) -> Cell:
    """Convert one value to the form that ClickHouse reads from JSON.

    >>> encode_cell(TimeNs(1_500_000_000))
    '0000000001.500000000'
    """
    if isinstance(cell, TimeNs):
        seconds, nanoseconds = divmod(max(cell, 0), NS_PER_SECOND)
        return f"{seconds:010d}.{nanoseconds:09d}"  # with fewer digits ClickHouse reads a year
    if isinstance(cell, float) and not math.isfinite(cell):
        return str(cell)  # quoted: JSON has no number for it
    return cell


def _connect(folder: Path) -> _Session:
    """Open a chDB connection to the folder."""
    return cast("_Session", Session(str(folder)))  # type: ignore[no-untyped-call]


def _restrict(session: _Session) -> None:
    """Make a connection fit for a user query: database ``tocsin``, the limits, read-only."""
    with _explained():
        session.query("USE tocsin")  # `SELECT * FROM incidents` and `SHOW TABLES` mean ours
        session.query("SET " + ", ".join(f"{name} = {value!r}" for name, value in LIMITS.items()))
        session.query("SET readonly = 1")


def _text(session: _Session, statement: str) -> str:
    """Run a statement and return its answer as text."""
    with _explained():
        return (session.query(statement, "TSVRaw").bytes() or b"").decode("utf-8", "replace")


def _open_session(folder: Path) -> _Session:
    """Open the folder, or raise an error that names the process that has it open.

    A failed start is tried twice, because another process that only tests the lock (``_holder``) holds it for an
    instant.
    """
    message = ""
    for _ in range(_OPEN_ATTEMPTS_COUNT):
        _refuse_locked(folder)
        try:
            return _connect(folder)
        except RuntimeError as error:
            message = one_line_error(str(error))
        _refuse_locked(folder)
        time.sleep(0.05)
    raise StoreError(f"cannot open the incident database {folder}: {message}")


def _refuse_locked(folder: Path) -> None:
    """Raise ``DatabaseLockedError`` if another process has the folder open."""
    holder = _holder(folder)
    if holder:
        raise DatabaseLockedError(
            f"the incident database {folder} is open in {holder}: ask that engine"
            " (tocsin incidents and tocsin sql do, with its --data folder), or stop it first"
        )


def _holder(folder: Path) -> str:
    """Return a text that names the other process that has the folder open, "" = none.

    chDB reports only that it failed. Its engine holds an exclusive flock on the file ``status`` and writes its process
    id there, so the lock is tested directly.
    """
    try:
        with (folder / "status").open(encoding="utf-8", errors="replace") as status:
            try:
                fcntl.flock(status, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                found = re.search(r"PID: (\d+)", status.read())
                pid = int(found[1]) if found else 0
                if pid == os.getpid():
                    return ""
                return f"process {pid}" if pid else "another process"
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise StoreError(f"cannot read {folder / 'status'}: {error.strerror}") from error
    return ""


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """Turn chDB's errors (RuntimeError and its subclass ChdbError) into ``StoreError`` with a one-line message."""
    try:
        yield
    except RuntimeError as error:
        raise StoreError(one_line_error(str(error))) from error
