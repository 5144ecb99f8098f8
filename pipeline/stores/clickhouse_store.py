"""The incident database on a ClickHouse server, over its native protocol.

The only module that connects with clickhouse-driver. Verdicts are written on one connection, and each user query gets
its own read-only connection with limits. Nothing is retried here. Errors say whether a retry can help
(``StoreAwayError``), and the caller decides.
"""

from __future__ import annotations

import contextlib
import logging
import os
import struct
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from clickhouse_driver import Client, errors

from tocsin.pipeline.stores.clickhouse_address import DATABASE, ClickHouseAddress
from tocsin.pipeline.stores.messages import one_line_error
from tocsin.pipeline.stores.native_blocks import BlockReader, Columns
from tocsin.pipeline.stores.rows import Cell, Row
from tocsin.pipeline.stores.shown import encoded_columns, without_hidden
from tocsin.pipeline.stores.sql_store import SqlStore
from tocsin.pipeline.stores.user_queries import LIMITS, QuerySlots, checked_query
from tocsin.schemas.errors import RowRefusedError, StoreAwayError, StoreError, StoreRefusedError

CONNECT_TIMEOUT_SECONDS = 10
ANSWER_TIMEOUT_SECONDS = 90
"""A server that sends nothing for this long counts as unreachable."""
OLDEST_SERVER = (22, 8)
"""Oldest supported server version: the tables need Bool, DateTime64, column codecs, TTL and replaceable views."""

# A row that was acknowledged is in the table, whatever the server's profile says about asynchronous inserts.
_INSERT_SETTINGS = {"async_insert": 0, "wait_for_async_insert": 1}
_READ_SETTINGS: Mapping[str, int | str] = {**LIMITS, "readonly": 1}

# Codes by what helps. Everything else is a StoreError: the statement or the tables are wrong.
_AWAY_CODES = frozenset(
    {
        159,  # TIMEOUT_EXCEEDED
        202,  # TOO_MANY_SIMULTANEOUS_QUERIES
        203,  # NO_FREE_CONNECTION
        209,  # SOCKET_TIMEOUT
        210,  # NETWORK_ERROR
        225,  # NO_ZOOKEEPER
        236,  # ABORTED: the server is shutting down
        241,  # MEMORY_LIMIT_EXCEEDED
        242,  # TABLE_IS_READ_ONLY: a replica without its keeper
        243,  # NOT_ENOUGH_SPACE
        252,  # TOO_MANY_PARTS
        285,  # TOO_FEW_LIVE_REPLICAS
        286,  # UNSATISFIED_QUORUM_FOR_PREVIOUS_WRITE
        319,  # UNKNOWN_STATUS_OF_INSERT
        394,  # QUERY_WAS_CANCELLED
        425,  # SYSTEM_ERROR
        999,  # KEEPER_EXCEPTION
    }
)
_REFUSED_CODES = frozenset(
    {
        192,  # UNKNOWN_USER
        193,  # WRONG_PASSWORD
        194,  # REQUIRED_PASSWORD
        195,  # IP_ADDRESS_NOT_ALLOWED
        291,  # DATABASE_ACCESS_DENIED
        497,  # ACCESS_DENIED
        516,  # AUTHENTICATION_FAILED
    }
)
_ROW_CODES = frozenset(
    {
        53,  # TYPE_MISMATCH
        69,  # ARGUMENT_OUT_OF_BOUND
        70,  # CANNOT_CONVERT_TYPE
        131,  # TOO_LARGE_STRING_SIZE
        321,  # VALUE_IS_OUT_OF_RANGE_OF_DATA_TYPE
    }
)
_UNKNOWN_DATABASE = 81
_READONLY = 164
_READONLY_BUT_SETTINGS = 2
_SETTING_IS_FIXED = 452

T = TypeVar("T")

# The driver logs each failed connection with its stack; the same is said by our errors, once.
logging.getLogger("clickhouse_driver").setLevel(logging.CRITICAL)


class ClickHouseStore(SqlStore):
    """The incident database on a server; connects at the first call.

    Args:
        address: the server and its credentials.
    """

    def __init__(self, address: ClickHouseAddress) -> None:
        super().__init__(ClickHouseBackend(address))


class ClickHouseBackend:
    """Connections to one server: one for writing, and one for each running user query.

    Every method raises ``StoreAwayError`` (a retry can help), ``StoreRefusedError`` (wrong credentials, rights,
    certificate or address) or ``StoreError`` (anything else).

    Args:
        address: the server and its credentials.
    """

    def __init__(self, address: ClickHouseAddress) -> None:
        self._address = address
        self._writer = _PooledConnection(address, "")
        self._slots = QuerySlots()

    def execute(self, statement: str) -> None:
        """See ``Backend.execute``."""
        self._writer.run(lambda client: client.execute(statement))

    def select(self, statement: str) -> list[Mapping[str, Any]]:
        """See ``Backend.select``."""
        found, columns = self._writer.run(lambda client: client.execute(statement, with_column_types=True))
        names = [name for name, _ in columns]
        return [dict(zip(names, row, strict=True)) for row in found]

    def insert(self, table: str, columns: Sequence[str], batch: Sequence[Row]) -> None:
        """See ``Backend.insert``.

        Raises:
            RowRefusedError: a value does not fit its column; no row was written.
        """
        statement = f"INSERT INTO {table} ({', '.join(columns)}) VALUES"  # names of ours, values travel as data
        data = [[encode_cell(row[name]) for name in columns] for row in batch]
        written = self._writer.run(
            lambda client: client.execute(statement, data, settings=_INSERT_SETTINGS), inserting=True
        )
        if written != len(batch):
            raise StoreError(f"{self._address} took {written} of {len(batch)} rows for {table}")

    def query(self, sql: str, fmt: str) -> bytes:
        """See ``Backend.query``; the answer is formatted here by chDB, as for an embedded database."""
        # chDB takes a moment to load: only who needs it pays.
        from tocsin.pipeline.stores.chdb_store import format_native, parse_here

        if self._writer.is_closed:
            raise StoreError(f"the connection to {self._address} was closed")
        asked = checked_query(sql, fmt, parse_here)
        reader = _PooledConnection(self._address, DATABASE)
        try:
            with self._slots.slot(sql):
                columns, data = self._read_only(reader, asked.sql)
        finally:
            reader.close()
        if not columns:
            return b""
        return without_hidden(format_native(encoded_columns(_distinct(columns), data, asked.fmt), asked.fmt), asked.fmt)

    def close(self) -> None:
        """See ``Backend.close``; waits for running queries."""
        self._writer.close()
        with self._slots.all_slots():
            pass

    def _read_only(self, reader: _PooledConnection, sql: str) -> tuple[Any, Any]:
        """Run a user query read-only and return (columns, their data).

        It falls back to fewer settings where the server does not let this user change them.
        """
        try:
            return _select_columns(reader, sql, _READ_SETTINGS)
        except StoreError as error:
            cause = error.__cause__
            code = cause.code if isinstance(cause, errors.ServerException) else None
            if code == _READONLY and (frozen := _readonly_of(reader)):
                # 1: it may change nothing, not even a setting; 2: all but this one
                return _select_columns(reader, sql, LIMITS if frozen == _READONLY_BUT_SETTINGS else {})
            if code == _SETTING_IS_FIXED:
                return _select_columns(reader, sql, {"readonly": 1})
            if code == _UNKNOWN_DATABASE and DATABASE in str(error):
                raise StoreError(
                    f"{self._address} has no database {DATABASE}: tocsin migrate --clickhouse URL makes it"
                ) from error
            raise


def _readonly_of(reader: _PooledConnection) -> int:
    """Return the user's ``readonly`` setting on the server (0, 1 or 2)."""
    _, data = _select_columns(reader, "SELECT toUInt8(getSetting('readonly'))", {})
    return int(data[0][0]) if data else 0


def _select_columns(reader: _PooledConnection, sql: str, settings: Mapping[str, int | str]) -> tuple[Any, Any]:
    """Run a query with these settings and return (columns, their data), with texts as bytes."""
    options = {**settings, "strings_as_bytes": True}
    data, columns = reader.run(
        lambda client: client.execute(sql, with_column_types=True, columnar=True, settings=options)
    )
    return columns, data


def _distinct(columns: Columns) -> Columns:
    """Return the columns with unique names (``SELECT 1, 1`` repeats one), which the format ``Native`` requires."""
    names = [name for name, _ in columns]
    return [(f"{name}_{index}" if name in names[:index] else name, spec) for index, (name, spec) in enumerate(columns)]


class _PooledConnection:
    """One connection for one caller at a time, opened when needed and reopened after every error."""

    def __init__(self, address: ClickHouseAddress, database: str) -> None:
        self._address = address
        self._database = database
        self._client: Any = None
        self._lock = threading.Lock()
        self._closed = False

    def run(self, work: Callable[[Any], T], *, inserting: bool = False) -> T:
        """Call ``work`` with the connected client and return its result.

        ``inserting`` makes data errors a ``RowRefusedError``.
        """
        with self._lock, _explained(self._address, inserting=inserting):
            if self._closed:
                raise StoreError(f"the connection to {self._address} was closed")
            if self._client is None:
                self._client = self._connected()
            try:
                return work(self._client)
            except BaseException:  # whatever it was, half an answer may be on the wire
                self._drop()
                raise

    @property
    def is_closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._drop()

    def _drop(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.disconnect()

    def _connected(self) -> Any:
        """Return a newly connected client; raise ``StoreRefusedError`` if the server is too old."""
        client = make_client(self._address, self._database)
        try:
            client.connection.connect()
            server = client.connection.server_info
            if (server.version_major, server.version_minor) < OLDEST_SERVER:
                found = ".".join(map(str, server.version_tuple()))
                oldest = ".".join(map(str, OLDEST_SERVER))
                raise StoreRefusedError(
                    f"{self._address} is ClickHouse {found}: tocsin's tables need {oldest} or newer"
                )
        except BaseException:
            client.disconnect()
            raise
        return client


def make_client(address: ClickHouseAddress, database: str) -> Any:
    """Return a client of clickhouse-driver that reads times exactly (``native_blocks``); it is not connected yet.

    Raises:
        StoreRefusedError: a certificate or key file cannot be read.
    """
    files = {"ca_certs": address.ca_file, "certfile": address.cert_file, "keyfile": address.key_file}
    for file in files.values():
        if file is not None and not os.access(file, os.R_OK):
            raise StoreRefusedError(f"cannot read {file}, which the address of {address} names")
    client = Client(
        address.host,
        port=address.port,
        user=address.user,
        password=address.read_password(),
        database=database,
        client_name="tocsin",
        secure=address.tls,
        connect_timeout=CONNECT_TIMEOUT_SECONDS,
        send_receive_timeout=ANSWER_TIMEOUT_SECONDS,
        tcp_keepalive=(60, 10, 3),
        **{name: str(file) for name, file in files.items() if file is not None},
    )
    connection = client.connection
    connection.get_block_in_stream = lambda: BlockReader(connection.fin, connection.context)
    return client


def encode_cell(cell: Cell | Sequence[int]) -> Any:
    """Convert one value to the form that the driver writes.

    Lone surrogates, which UTF-8 cannot encode, become ``?``.
    """
    if isinstance(cell, str):
        return cell if cell.isascii() else cell.encode("utf-8", "replace").decode()
    if isinstance(cell, Sequence):
        return [encode_cell(item) for item in cell]
    return cell


@contextlib.contextmanager
def _explained(address: ClickHouseAddress, *, inserting: bool) -> Iterator[None]:
    """Turn the driver's errors into ``StoreError`` and its subclasses with a one-line message."""
    try:
        yield
    except StoreError:
        raise
    except errors.ServerException as error:
        raise _server_error(address, error, inserting=inserting) from error
    except (errors.NetworkError, errors.SocketTimeoutError, EOFError, OSError) as error:
        raise _network_error(address, error) from error
    except (errors.UnexpectedPacketFromServerError, errors.UnknownPacketFromServerError) as error:
        raise StoreRefusedError(
            f"what answers at {address} does not speak ClickHouse's native protocol: the port is 9000 in the clear,"
            " 9440 with TLS (clickhouses://); 8123 and 8443 are HTTP"
        ) from error
    except errors.UnknownTypeError as error:
        raise StoreError(f"{address}: the answer has a column that cannot be read ({error.message})") from error
    except (errors.Error, struct.error, ValueError, TypeError, ArithmeticError) as error:
        kind = RowRefusedError if inserting else StoreError
        raise kind(f"{address}: {one_line_error(str(error))}") from error


def _server_error(address: ClickHouseAddress, error: Any, *, inserting: bool) -> StoreError:
    """Return the ``StoreError`` subclass that matches an error code of the server."""
    text = f"{address}: {one_line_error(error.message)}"
    if error.code in _REFUSED_CODES:
        return StoreRefusedError(text)
    if error.code in _AWAY_CODES:
        return StoreAwayError(text)
    if inserting and error.code in _ROW_CODES:
        return RowRefusedError(text)
    return StoreError(text)


def _network_error(address: ClickHouseAddress, error: Exception) -> StoreError:
    """Return the ``StoreError`` subclass for a network or TLS error, with a hint at the likely cause."""
    text = " ".join(str(error).removeprefix("Code: 209. ").removeprefix("Code: 210. ").split())
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return StoreRefusedError(
            f"the certificate of {address} is not trusted ({text}): name its authority with ca_file=FILE"
        )
    if "WRONG_VERSION_NUMBER" in text or "RECORD_LAYER_FAILURE" in text:
        return StoreRefusedError(f"{address} does not speak TLS on this port: is it clickhouse:// ({text})?")
    if "_ALERT_" in text:  # the server ended the handshake: it wants a certificate, or another one
        return StoreRefusedError(f"{address} refuses TLS with this program ({text}): see cert_file and key_file")
    if isinstance(error, errors.SocketTimeoutError | TimeoutError):
        text = f"nothing came for {ANSWER_TIMEOUT_SECONDS} s, or no connection within {CONNECT_TIMEOUT_SECONDS} s"
    elif isinstance(error, EOFError) or "reset" in text or "EOF" in text:
        # also what a port with TLS does to a connection without, and the other way round
        doubt = (
            "TLS right for this port, and does it ask for cert_file" if address.tls else "no TLS right for this port"
        )
        text = f"it closed the connection; is {doubt}?"
    return StoreAwayError(f"{address} does not answer ({text})")
