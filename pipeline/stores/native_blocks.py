"""Read and write blocks of ClickHouse's native protocol without loss of precision.

clickhouse-driver turns times into ``datetime``, which has only microseconds; incidents are kept in nanoseconds. On the
wire a time is an integer, so it is read and written as one here. All other types are left to the driver. ``tests/`` and
``tocsin cluster`` use the same code on the server's side.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from clickhouse_driver import defines, errors
from clickhouse_driver.block import BlockInfo, ColumnOrientedBlock
from clickhouse_driver.bufferedreader import BufferedSocketReader
from clickhouse_driver.bufferedwriter import BufferedSocketWriter
from clickhouse_driver.columns.service import read_column, write_column
from clickhouse_driver.context import Context
from clickhouse_driver.reader import read_binary_str, read_binary_uint8
from clickhouse_driver.varint import read_varint, write_varint
from clickhouse_driver.writer import write_binary_str, write_binary_uint8

BUFFER_BYTES = 1 << 20
FORMAT_REVISION = 0
"""Protocol revision of the format ``Native`` in a file: blocks without any framing."""

_QUOTED = r"'(?:[^'\\]|\\.)*'"
_TIMES = re.compile(rf"{_QUOTED}|DateTime64\([^)]*\)|DateTime(?:\([^)]*\))?|\bDate32\b|\bDate\b")
_WIRE_TYPES = {"DateTime64": "Int64", "DateTime": "UInt32", "Date32": "Int32", "Date": "UInt16"}

Columns = Sequence[tuple[str, str]]
"""(name, ClickHouse type) of each column."""

UNREADABLE = (errors.Error, struct.error, TypeError, ValueError, KeyError, NotImplementedError)
"""Errors that the driver raises for a type that it does not support."""


def wire_type(spec: str) -> str:
    """Return a ClickHouse type as it is sent on the wire: time types become integer types.

    >>> wire_type("Array(Nullable(DateTime64(9, 'UTC')))")
    'Array(Nullable(Int64))'
    >>> wire_type("Enum8('Date' = 1)")
    "Enum8('Date' = 1)"
    """
    return _TIMES.sub(lambda m: m[0] if m[0].startswith("'") else _WIRE_TYPES[m[0].partition("(")[0]], spec)


def make_context(revision: int) -> Any:
    """Return a driver context for blocks of a protocol revision; texts stay bytes, settings are the defaults."""
    context = Context()
    context.server_info = SimpleNamespace(used_revision=revision, timezone="UTC", get_timezone=lambda: "UTC")
    context.settings = {}
    context.client_settings = {
        "use_numpy": False,
        "strings_as_bytes": True,
        "strings_encoding": "utf-8",
        "opentelemetry_traceparent": None,
        "opentelemetry_tracestate": "",
        "quota_key": "",
        "input_format_null_as_default": False,
        "namedtuple_as_json": False,
        "server_side_params": False,
    }
    return context


class BlockReader:
    """Reads blocks; replaces the driver's ``BlockInputStream``.

    Args:
        fin: the driver's buffered reader.
        context: the driver's context, which knows the protocol revision.
    """

    def __init__(self, fin: Any, context: Any) -> None:
        self._fin = fin
        self._context = context

    def read(self, use_numpy: bool | None = None) -> Any:  # noqa: ARG002, FBT001  # the driver's signature
        """Read and return the next block, column by column.

        Raises:
            EOFError: there are no more blocks.
        """
        revision = self._context.server_info.used_revision
        info = BlockInfo()
        if revision >= defines.DBMS_MIN_REVISION_WITH_BLOCK_INFO:
            info.read(self._fin)
        columns_count, rows_count = read_varint(self._fin), read_varint(self._fin)
        columns: list[tuple[str, str]] = []
        data: list[Any] = []
        for _ in range(columns_count):
            name, spec = read_binary_str(self._fin), read_binary_str(self._fin)
            sparse = False
            if revision >= defines.DBMS_MIN_REVISION_WITH_CUSTOM_SERIALIZATION:
                sparse = bool(read_binary_uint8(self._fin))
            columns.append((name, spec))
            if rows_count:
                column = read_column(
                    self._context, wire_type(spec), rows_count, self._fin, False, has_custom_serialization=sparse
                )
                data.append(column)
        return ColumnOrientedBlock(columns, data, info)


def write_block(fout: Any, context: Any, columns: Columns, data: Sequence[Sequence[Any]]) -> None:
    """Write one block; ``data`` is [] for a block that only announces its columns."""
    revision = context.server_info.used_revision
    if revision >= defines.DBMS_MIN_REVISION_WITH_BLOCK_INFO:
        BlockInfo().write(fout)
    write_varint(len(columns), fout)
    write_varint(len(data[0]) if data else 0, fout)
    for index, (name, spec) in enumerate(columns):
        write_binary_str(name, fout)
        write_binary_str(spec, fout)
        if revision >= defines.DBMS_MIN_REVISION_WITH_CUSTOM_SERIALIZATION:
            write_binary_uint8(0, fout)
        if data:
            write_column(context, name, wire_type(spec), list(data[index]), fout)
    fout.flush()


class _Memory:
    """In-memory replacement for the socket methods that the driver's buffers call."""

    def __init__(self, data: bytes = b"") -> None:
        self.written = bytearray()
        self._left = memoryview(data)

    def recv_into(self, buffer: Any, *_: object) -> int:
        part, self._left = self._left[: len(buffer)], self._left[len(buffer) :]
        buffer[: len(part)] = part
        return len(part)

    def sendall(self, data: bytes) -> None:
        self.written += data


def encode_native(columns: Columns, data: Sequence[Sequence[Any]]) -> bytes:
    """Return columns and their data as one block in format ``Native``."""
    memory = _Memory()
    write_block(BufferedSocketWriter(memory, BUFFER_BYTES), make_context(FORMAT_REVISION), columns, data)
    return bytes(memory.written)


def decode_native(data: bytes) -> list[Any]:
    """Return all blocks in bytes of the format ``Native``."""
    reader = BlockReader(BufferedSocketReader(_Memory(data), BUFFER_BYTES), make_context(FORMAT_REVISION))
    blocks = []
    while True:
        try:
            blocks.append(reader.read())
        except EOFError:
            return blocks
