"""The numbered DDL of the incident database, as package data in this folder.

A released migration never changes, because a database remembers the checksum of what was applied to it. A change
is a new file with the next number.
"""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib import resources
from typing import NamedTuple

from tocsin.schemas.errors import SchemaError

_FILE_NAME = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")

_MAKES = re.compile(
    r"CREATE\s+(?:OR\s+REPLACE\s+)?(?:TABLE|VIEW)\s+(?:IF\s+NOT\s+EXISTS\s+)?tocsin\.(\w+)", re.IGNORECASE
)

# What may hold a semicolon that ends no statement; a doubled quote reads as two literals side by side.
_TOKEN = re.compile(
    r"""
      (?P<comment> --[^\n]* | /\*.*?\*/ )
    | (?P<quoted> '(?:[^'\\]|\\.)*' | "(?:[^"\\]|\\.)*" | `(?:[^`\\]|\\.)*` )
    | (?P<end> ; )
    | (?P<open> ['"`] | /\* )
    """,
    re.VERBOSE | re.DOTALL,
)


class Migration(NamedTuple):
    """One numbered DDL file.

    Attributes:
        number: number from 1, without gaps.
        name: subject, from the file's name.
        statements: SQL statements without comments and semicolons; each may be run again after a crash.
        sha256: hexadecimal checksum of the file's text.
    """

    number: int
    name: str
    statements: tuple[str, ...]
    sha256: str

    @property
    def makes(self) -> frozenset[str]:
        """Names of the tables and views that the migration creates."""
        return frozenset(match[1] for statement in self.statements if (match := _MAKES.match(statement)))


@cache
def migrations() -> tuple[Migration, ...]:
    """Return all migrations by number.

    Raises:
        SchemaError: a file name, the numbering or a file's text is wrong.
    """
    found = [
        parse_migration(entry.name, entry.read_text(encoding="utf-8"))
        for entry in resources.files(__name__).iterdir()
        if entry.name.endswith(".sql")
    ]
    found.sort()
    numbers = [migration.number for migration in found]
    if numbers != list(range(1, len(found) + 1)):
        raise SchemaError(f"migrations are numbered {numbers}: must be 1, 2, 3 … without gaps")
    return tuple(found)


def parse_migration(file_name: str, text: str) -> Migration:
    """Return a migration from its file's name and text.

    Raises:
        SchemaError: the name is not ``NNNN_words.sql``, or a quote or comment is not closed.
    """
    match = _FILE_NAME.fullmatch(file_name)
    if match is None:
        raise SchemaError(f"migration {file_name!r}: must be named like 0007_new_table.sql")
    plain = text.replace("\r\n", "\n")  # a checkout on Windows is the same migration
    try:
        statements = split_statements(plain)
    except SchemaError as error:
        raise SchemaError(f"migration {file_name}: {error}") from error
    checksum = hashlib.sha256(plain.encode()).hexdigest()
    return Migration(int(match[1]), match[2], statements, checksum)


def split_statements(text: str) -> tuple[str, ...]:
    r"""Split SQL text at its semicolons, except those in quotes and comments.

    >>> split_statements("SELECT ';' AS a; -- one; two\nSELECT 2")
    ("SELECT ';' AS a", 'SELECT 2')

    Raises:
        SchemaError: a quote or a comment is not closed.
    """
    statements: list[str] = []
    current: list[str] = []
    position = 0
    for token in _TOKEN.finditer(text):
        current.append(text[position : token.start()])
        position = token.end()
        if token.lastgroup == "quoted":
            current.append(token[0])
        elif token.lastgroup == "comment":
            current.append(" ")  # a comment separates words
        elif token.lastgroup == "end":
            statements.append("".join(current).strip())
            current = []
        else:
            line = text.count("\n", 0, token.start()) + 1
            raise SchemaError(f"line {line}: {token[0]} is never closed")
    statements.append("".join([*current, text[position:]]).strip())
    return tuple(statement for statement in statements if statement)
