"""Turn database error messages into one readable line, and check format names."""

from __future__ import annotations

import re

from tocsin.schemas.errors import ConfigError

PYTHON_FORMATS = frozenset({"dataframe", "arrowtable", "debug"})
"""Names of chDB's formats that return Python objects instead of bytes."""

_FORMAT = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


def check_format(name: str) -> None:
    """Check that a name can be one of ClickHouse's output formats.

    Raises:
        ConfigError: it cannot.
    """
    if not _FORMAT.fullmatch(name) or name.lower() in PYTHON_FORMATS:
        raise ConfigError("format", name, "one of ClickHouse's output formats, e.g. Pretty, JSON, CSV")


def one_line_error(message: str) -> str:
    r"""Return a database's error message on one line, without repeated prefixes, version and stack trace.

    >>> one_line_error("Code: 73. DB::Exception: Code: 73. DB::Exception: Unknown\nformat. (version 26.9)")
    'Unknown format.'
    """
    text = " ".join(message.partition(". Stack trace:")[0].split())
    text = re.sub(r"\(version [^)]*\)", "", text)
    text = re.sub(r"(?:Streaming insert (?:append|finish) failed: )?(?:(?:Code: \d+\. )?DB::Exception: )+", "", text)
    text = re.sub(r"(\([A-Z_]+\))(?:[ .]*\1)+", r"\1", text)  # each layer repeats the error's name
    return " ".join(text.split()).rstrip(" ")
