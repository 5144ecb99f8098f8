"""Answers that a terminal may show: what is hidden in the values of a database is made visible.

Formats that escape line ends need it in the finished text only. In the others (Pretty, Vertical, CSV, …) a line end
within a value would begin a line that looks like ours, so values are cleaned before they are formatted.
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
"""How the names of formats begin whose answers are no text."""
_ESCAPING: Final = re.compile(r"(?:tsv|tabseparated)(?!raw)|tskv|values|markdown")
"""How the names of formats begin that write a line end as an escape."""
_FIXED_STRING: Final = re.compile(r"\bFixedString\(\d+\)")


def is_binary(fmt: str) -> bool:
    """Whether answers in a format are bytes and no text."""
    return fmt.lower().startswith(_BINARY)


def is_by_cell(fmt: str) -> bool:
    """Whether values must be cleaned before they are formatted: the format does not escape line ends."""
    name = fmt.lower()
    return not is_binary(fmt) and "json" not in name and _ESCAPING.match(name) is None


def without_hidden(answer: bytes, fmt: str) -> bytes:
    """An answer as a terminal may get it.

    Args:
        answer: in this format.
        fmt: its format.
    """
    if is_binary(fmt):
        return answer
    if "json" in fmt.lower():
        return json_escaped(answer.decode("utf-8", "replace")).encode()
    lines = answer.decode("utf-8", "backslashreplace").split("\n")
    return "\n".join(plain(line, kept="\t") for line in lines).encode()


def encoded(data: bytes) -> bytes | None:
    """Rows of the format ``Native`` with clean values; None: a type that cannot be read here is among them."""
    try:
        return b"".join(
            encode_native(*_clean(block.columns_with_types, block.get_columns())) for block in decode_native(data)
        )
    except UNREADABLE:
        return None


def encoded_columns(columns: Columns, data: Sequence[Sequence[Any]], fmt: str) -> bytes:
    """Columns as the format ``Native``, with clean values where the format that they are for needs it."""
    return encode_native(*(_clean(columns, data) if is_by_cell(fmt) else (columns, data)))


def _clean(columns: Columns, data: Sequence[Sequence[Any]]) -> tuple[Columns, Sequence[Sequence[Any]]]:
    specs = [(plain(name), _FIXED_STRING.sub("String", spec)) for name, spec in columns]
    return specs, [[_clean_value(value) for value in column] for column in data]


def _clean_value(value: Any) -> Any:
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
