"""Make query answers safe for a terminal: control characters and invisible characters in values are escaped.

Formats that escape line ends need this only in the finished text. In others (Pretty, Vertical, CSV ...) a line end
inside a value could forge a line of output. There the values are cleaned before formatting.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

from tocsin.pipeline.stores.native_blocks import UNREADABLE, Columns, decode_native, encode_native
from tocsin.schemas.printable import json_escaped, plain

_BINARY: Final = (
    *("parquet", "arrow", "orc", "avro", "native", "rowbinary", "msgpack", "protobuf", "capnproto", "bson"),
    *("npy", "odbcdriver", "mysqlwire", "postgresqlwire", "buffers", "null"),
)
"""Prefixes of the names of binary formats."""
_ESCAPING: Final = re.compile(r"(?:tsv|tabseparated)(?!raw)|tskv|values|markdown")
"""Prefixes of the names of formats that escape line ends."""
_FIXED_STRING: Final = re.compile(r"\bFixedString\(\d+\)")


def is_binary(fmt: str) -> bool:
    """Return whether answers in a format are bytes rather than text."""
    return fmt.lower().startswith(_BINARY)


def is_by_cell(fmt: str) -> bool:
    """Return whether values must be cleaned before formatting, because the format does not escape line ends."""
    name = fmt.lower()
    return not is_binary(fmt) and "json" not in name and _ESCAPING.match(name) is None


def without_hidden(answer: bytes, fmt: str) -> bytes:
    """Return an answer with control and invisible characters escaped; binary formats are returned unchanged.

    Args:
        answer: the answer in this format.
        fmt: name of the format.
    """
    if is_binary(fmt):
        return answer
    if "json" in fmt.lower():
        return json_escaped(answer.decode("utf-8", "replace")).encode()
    lines = answer.decode("utf-8", "backslashreplace").split("\n")
    return "\n".join(plain(line, kept="\t") for line in lines).encode()


def encoded(data: bytes) -> bytes | None:
    """Return rows in format ``Native`` with cleaned values; None if a column has an unsupported type."""
    try:
        return b"".join(
            encode_native(*_clean(block.columns_with_types, block.get_columns())) for block in decode_native(data)
        )
    except UNREADABLE:
        return None


def encoded_columns(columns: Columns, data: Sequence[Sequence[Any]], fmt: str) -> bytes:
    """Encode columns in format ``Native``.

    Values are cleaned if the target format ``fmt`` does not escape line ends.
    """
    return encode_native(*(_clean(columns, data) if is_by_cell(fmt) else (columns, data)))


def _clean(columns: Columns, data: Sequence[Sequence[Any]]) -> tuple[Columns, Sequence[Sequence[Any]]]:
    """Return columns and data with names and values cleaned; fixed-length strings become strings."""
    specs = [(plain(name), _FIXED_STRING.sub("String", spec)) for name, spec in columns]
    return specs, [[_clean_value(value) for value in column] for column in data]


def _clean_value(value: Any) -> Any:
    """Return a value with control and invisible characters in its texts escaped, at any depth."""
    match value:
        case bytes():
            return plain(value.decode("utf-8", "backslashreplace")).encode()
        case list():
            return [_clean_value(item) for item in value]
        case tuple():
            return tuple(_clean_value(item) for item in value)
        case dict():
            return {_clean_value(key): _clean_value(item) for key, item in value.items()}
    return value
