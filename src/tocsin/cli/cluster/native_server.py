"""A server that speaks ClickHouse's native protocol over chDB: for ``tocsin cluster`` and for tests.

No current ClickHouse server can be installed from a package index; chDB is its engine without a network. This adds
the network: the driver's newest protocol revision, errors with codes, users, TLS, settings of a query, inserts in
blocks. It is **not** for production: no compression, no progress, no cancelling, roles instead of grants.

Run it: ``python -m tocsin.cli.cluster.native_server FOLDER --users FILE``; it prints ``listening on HOST:PORT``.
"""

from __future__ import annotations

import argparse
import hmac
import logging
import re
import signal
import socket
import socketserver
import ssl
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from clickhouse_driver import defines, errors
from clickhouse_driver.bufferedreader import BufferedSocketReader
from clickhouse_driver.bufferedwriter import BufferedSocketWriter
from clickhouse_driver.protocol import ClientPacketTypes, ServerPacketTypes
from clickhouse_driver.reader import read_binary_str, read_binary_uint8, read_binary_uint64
from clickhouse_driver.varint import read_varint, write_varint
from clickhouse_driver.writer import write_binary_int32, write_binary_str, write_binary_uint8, write_binary_uint64

from tocsin.cli.cluster.native_engine import (
    EndpointRole,
    Engine,
    EngineConnection,
    ServerError,
    User,
    error_of,
    read_users,
)
from tocsin.pipeline.stores.native_blocks import BUFFER_BYTES, BlockReader, Columns, make_context, write_block
from tocsin.schemas.errors import TocsinError

VERSION = (26, 9, 2)
"""Version of the ClickHouse inside chDB 4.4."""
REVISION: int = defines.CLIENT_REVISION
"""Newest protocol revision that clickhouse-driver speaks, so that tests use the same protocol as with a current server.
"""
HANDSHAKE_SECONDS = 10.0

_LOG = logging.getLogger("tocsin.native_server")
_NOBODY = User("nobody", EndpointRole.READER)
_INSERT = re.compile(
    r"^\s*INSERT\s+INTO\s+(?:TABLE\s+)?([`\w.]+)\s*(?:\(([^)]*)\))?\s*(?:FORMAT\s+\w+|VALUES)?\s*;?\s*$", re.IGNORECASE
)


class NativeServer(socketserver.ThreadingTCPServer):
    """Accepts connections and serves each in its own thread.

    Args:
        address: (host, port); port 0: a free one.
        engine: the database.
        users: name -> who.
        tls: the context of encrypted connections, None: in the clear.

    Attributes:
        users: user by name.
        tls: TLS context of the connections, None: no encryption.
    """

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(
        self, address: tuple[str, int], engine: Engine, users: Mapping[str, User], tls: ssl.SSLContext | None = None
    ) -> None:
        """Bind the address and listen; ``serve_forever`` accepts connections."""
        self.engine = engine
        self.users = users
        self.tls = tls
        super().__init__(address, _Handler)

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002  # the base class's
        """Log an unexpected error; the client's connection is closed."""
        _LOG.error("connection failed", exc_info=True)


class _Handler(socketserver.BaseRequestHandler):
    """One connection: the hello packets, then queries one after another."""

    server: NativeServer

    def handle(self) -> None:
        """Serve the connection until it ends."""
        plain: socket.socket = self.request
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        plain.settimeout(HANDSHAKE_SECONDS)
        stream, connection = plain, None
        try:
            if self.server.tls is not None:
                stream = self.server.tls.wrap_socket(plain, server_side=True)
            self._in = BufferedSocketReader(stream, BUFFER_BYTES)
            self._out = BufferedSocketWriter(stream, BUFFER_BYTES)
            connection = self._hello()
            stream.settimeout(None)
            while connection is not None:
                self._packet(connection)
        except (EOFError, OSError):
            pass  # the client left, or never spoke
        finally:
            if connection is not None:
                connection.close()
            if stream is not plain:  # wrapping took the descriptor
                stream.close()

    def _hello(self) -> EngineConnection | None:
        """Read the client's hello and check user and password; return the connection, None: refused."""
        if read_varint(self._in) != ClientPacketTypes.HELLO:
            return None
        read_binary_str(self._in)
        read_varint(self._in), read_varint(self._in)
        self._revision = min(REVISION, read_varint(self._in))
        self._context = make_context(self._revision)
        database, name, password = (read_binary_str(self._in) for _ in range(3))
        user = self.server.users.get(name)
        try:
            if not hmac.compare_digest((user or _NOBODY).password.encode(), password.encode()) or user is None:
                why = "Authentication failed: password is incorrect, or there is no user with such name"
                raise ServerError(516, f"{name}: {why}. (AUTHENTICATION_FAILED)")
            connection = EngineConnection(self.server.engine, name, user, database)
        except ServerError as error:
            self._exception(error)
            return None
        self._say_hello()
        if self._revision >= defines.DBMS_MIN_PROTOCOL_VERSION_WITH_ADDENDUM:
            read_binary_str(self._in)  # quota key
        return connection

    def _say_hello(self) -> None:
        """Send the server's hello."""
        write_varint(ServerPacketTypes.HELLO, self._out)
        write_binary_str("ClickHouse", self._out)
        for number in (*VERSION[:2], REVISION):
            write_varint(number, self._out)
        if self._revision >= defines.DBMS_MIN_REVISION_WITH_SERVER_TIMEZONE:
            write_binary_str("UTC", self._out)
        if self._revision >= defines.DBMS_MIN_REVISION_WITH_SERVER_DISPLAY_NAME:
            write_binary_str("chdb", self._out)
        if self._revision >= defines.DBMS_MIN_REVISION_WITH_VERSION_PATCH:
            write_varint(VERSION[2], self._out)
        if self._revision >= defines.DBMS_MIN_PROTOCOL_VERSION_WITH_PASSWORD_COMPLEXITY_RULES:
            write_varint(0, self._out)
        if self._revision >= defines.DBMS_MIN_REVISION_WITH_INTERSERVER_SECRET_V2:
            write_binary_uint64(0, self._out)
        self._out.flush()

    def _packet(self, connection: EngineConnection) -> None:
        """Read and answer one packet."""
        kind = read_varint(self._in)
        if kind == ClientPacketTypes.PING:
            write_varint(ServerPacketTypes.PONG, self._out)
            self._out.flush()
        elif kind == ClientPacketTypes.QUERY:
            self._query(connection)
        elif kind != ClientPacketTypes.CANCEL:
            raise EOFError(f"packet {kind}")

    def _query(self, connection: EngineConnection) -> None:
        """Read a query packet, run it, and send its result or its error."""
        read_binary_str(self._in)  # its id
        self._skip_client_info()
        settings = self._read_settings()
        if self._revision >= defines.DBMS_MIN_REVISION_WITH_INTERSERVER_SECRET:
            read_binary_str(self._in)
        read_varint(self._in)  # stage
        is_compressed = read_varint(self._in)
        sql = read_binary_str(self._in)
        if self._revision >= defines.DBMS_MIN_PROTOCOL_VERSION_WITH_PARAMETERS:
            self._read_settings()
        try:
            if is_compressed:
                raise ServerError(48, "this server of tocsin's has no compression: connect without. (NOT_IMPLEMENTED)")
            while self._read_data().num_columns:  # external tables
                pass
            insert = _INSERT.match(sql)
            if insert is None:
                self._answer(connection, sql, settings)
            else:
                self._insert(connection, insert, settings)
            write_varint(ServerPacketTypes.END_OF_STREAM, self._out)
            self._out.flush()
        except ServerError as error:
            self._exception(error)
            if is_compressed:
                raise EOFError from error  # what follows cannot be read
        except (RuntimeError, errors.Error) as error:  # chDB's, and of types that the driver does not know
            self._exception(error_of(error))

    def _answer(self, connection: EngineConnection, sql: str, settings: Mapping[str, str]) -> None:
        """Run a statement and send the blocks of its result."""
        columns, blocks = connection.run(sql, settings)
        if columns:
            self._data(columns)
        for block in blocks:
            if block.num_rows:
                self._data(block.columns_with_types, block.get_columns())

    def _insert(self, connection: EngineConnection, insert: re.Match[str], settings: Mapping[str, str]) -> None:
        """Send the columns of an INSERT, read the client's blocks and insert them."""
        table, names = insert[1], insert[2] or ""
        columns = connection.columns_of_insert(table, names)
        self._data(columns)
        self._out.flush()
        blocks = []
        while (block := self._read_data()).num_columns:
            blocks.append(block)
            self._profile_events()
        connection.insert(table, columns, blocks, settings)
        self._profile_events()

    def _profile_events(self) -> None:
        """Send an empty packet of profile events, which clients wait for after each block of an insert."""
        if self._revision >= defines.DBMS_MIN_PROTOCOL_VERSION_WITH_PROFILE_EVENTS_IN_INSERT:
            write_varint(ServerPacketTypes.PROFILE_EVENTS, self._out)
            write_binary_str("", self._out)
            write_block(self._out, self._context, [], [])

    def _read_data(self) -> Any:
        """Read a data packet and return its block."""
        kind = read_varint(self._in)
        if kind != ClientPacketTypes.DATA:
            raise EOFError(f"packet {kind} where data was expected")
        read_binary_str(self._in)
        return BlockReader(self._in, self._context).read()

    def _data(self, columns: Columns, data: Any = ()) -> None:
        """Send a data packet."""
        write_varint(ServerPacketTypes.DATA, self._out)
        write_binary_str("", self._out)
        write_block(self._out, self._context, columns, data)

    def _read_settings(self) -> dict[str, str]:
        """Read the settings of a query: name -> value."""
        settings: dict[str, str] = {}
        while name := read_binary_str(self._in):
            if self._revision < defines.DBMS_MIN_REVISION_WITH_SETTINGS_SERIALIZED_AS_STRINGS:
                raise EOFError("settings of an old client are not read")
            read_binary_uint8(self._in)
            settings[name] = read_binary_str(self._in)
        return settings

    def _skip_client_info(self) -> None:
        """Read the client's description of itself and ignore it."""
        revision, stream = self._revision, self._in
        if read_binary_uint8(stream) == 0:
            return
        self._skip_strings(3)  # initial user, query id, address
        if revision >= defines.DBMS_MIN_PROTOCOL_VERSION_WITH_INITIAL_QUERY_START_TIME:
            read_binary_uint64(stream)
        read_binary_uint8(stream)  # interface
        self._skip_strings(3)  # its user, host, name
        self._skip_numbers(3)  # its version and revision
        self._skip_strings(1)  # quota key
        if revision >= defines.DBMS_MIN_PROTOCOL_VERSION_WITH_DISTRIBUTED_DEPTH:
            self._skip_numbers(1)
        if revision >= defines.DBMS_MIN_REVISION_WITH_VERSION_PATCH:
            self._skip_numbers(1)
        if revision >= defines.DBMS_MIN_REVISION_WITH_OPENTELEMETRY and read_binary_uint8(stream):
            stream.read(16), read_binary_uint64(stream), read_binary_str(stream), read_binary_uint8(stream)
        if revision >= defines.DBMS_MIN_REVISION_WITH_PARALLEL_REPLICAS:
            self._skip_numbers(3)

    def _skip_strings(self, count: int) -> None:
        """Read and ignore strings."""
        for _ in range(count):
            read_binary_str(self._in)

    def _skip_numbers(self, count: int) -> None:
        """Read and ignore variable-length integers."""
        for _ in range(count):
            read_varint(self._in)

    def _exception(self, error: ServerError) -> None:
        """Send an error to the client."""
        write_varint(ServerPacketTypes.EXCEPTION, self._out)
        write_binary_int32(error.code, self._out)
        for text in ("DB::Exception", f"DB::Exception: {error}", ""):
            write_binary_str(text, self._out)
        write_binary_uint8(0, self._out)
        self._out.flush()


def make_tls(certificate: Path, key: Path, client_authority: Path | None = None) -> ssl.SSLContext:
    """Return a server's TLS context; with ``client_authority``, clients must show a certificate of that CA."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    if client_authority is not None:
        context.load_verify_locations(client_authority)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def main() -> int:
    """Serve until SIGTERM; return the exit status, 2 if the server could not start."""
    parser = argparse.ArgumentParser(prog="python -m tocsin.cli.cluster.native_server", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)
    who = parser.add_mutually_exclusive_group(required=True)
    who.add_argument("--users", type=Path, help="JSON file: names, passwords, roles")
    who.add_argument("--no-password", action="store_true", help="the user default needs none: for tests")
    parser.add_argument("--tls-cert", type=Path)
    parser.add_argument("--tls-key", type=Path)
    parser.add_argument("--tls-client-ca", type=Path)
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, _stop)
    try:
        users = {"default": User()} if args.no_password else read_users(args.users)
        tls = make_tls(args.tls_cert, args.tls_key, args.tls_client_ca) if args.tls_cert else None
        args.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        engine = Engine(args.folder)
        server = NativeServer((args.host, args.port), engine, users, tls)
    except (TocsinError, OSError, RuntimeError) as error:
        print(f"native_server: {error}", file=sys.stderr)
        return 2
    host, port = server.server_address[:2]
    threading.Thread(target=server.serve_forever, args=(0.1,), daemon=True).start()
    print(f"listening on {host!s}:{port}", flush=True)
    try:
        threading.Event().wait()
    except SystemExit:
        server.shutdown()
        server.server_close()
        engine.close()
    return 0


def _stop(_: int, __: FrameType | None) -> NoReturn:
    raise SystemExit(0)


if __name__ == "__main__":
    sys.exit(main())
