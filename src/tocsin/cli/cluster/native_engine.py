"""Query engine of the native-protocol server: chDB sessions, users and their roles.

Each client connection has its own session, so that ``USE`` and ``SET`` apply to it only. A query that brings settings
gets a session of its own, because ``SET readonly`` cannot be undone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, cast

from chdb.session import Session

from tocsin.pipeline.stores.native_blocks import Columns, decode_native, encode_native
from tocsin.pipeline.stores.user_queries import QueryRefusedError, check_calls
from tocsin.schemas.errors import ConfigError

_COMMENT = r"(?:--[^\n]*(?:\n|$)|/\*.*?\*/|\s)*"
_WORD = re.compile(rf"{_COMMENT}\(*\s*([A-Za-z]+)", re.DOTALL)
_FORMAT_CLAUSE = re.compile(r"\s+FORMAT\s+\w+\s*;?\s*$", re.IGNORECASE)
_READING = frozenset({"SELECT", "WITH", "SHOW", "DESCRIBE", "DESC", "EXISTS", "EXPLAIN", "SET", "USE", "CHECK"})
_WRITING = _READING | {"INSERT"}


class ServerError(Exception):
    """An error with a ClickHouse error code, to be sent to the client."""

    def __init__(self, code: int, message: str) -> None:
        """Create the error from its code and message."""
        super().__init__(message)
        self.code = code


class EndpointRole(StrEnum):
    """Rights of a user. chDB has no users; the roles stand for the grants of ``docs/clickhouse.md``."""

    ADMIN = "admin"
    WRITER = "writer"
    READER = "reader"


@dataclass(frozen=True, slots=True)
class User:
    """A user that may connect.

    Attributes:
        password: the user's password.
        role: which statements the user may run.
        readonly: ClickHouse's ``readonly`` setting for the user's sessions, 1 or 2; 0: not set.
    """

    password: str = field(default="", repr=False)
    role: EndpointRole = EndpointRole.ADMIN
    readonly: int = 0


def read_users(file: Path) -> dict[str, User]:
    """Read the users from JSON: ``{"name": {"password": "…", "role": "writer", "readonly": 0}}``.

    Raises:
        ConfigError: the file cannot be read or has another form.
    """
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return {
            name: User(str(of["password"]), EndpointRole(of.get("role", "admin")), int(of.get("readonly", 0)))
            for name, of in found.items()
        }
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        must = 'a file with {"name": {"password": "…", "role": "admin, writer or reader"}}'
        raise ConfigError("--users", str(file), f"{must} ({error})") from error


class Engine:
    """An open chDB database folder.

    Args:
        folder: the database's folder.
    """

    def __init__(self, folder: Path) -> None:
        """Open the folder."""
        self._folder = str(folder)
        self._base = self.session()
        self._base.query("SELECT 1")

    def session(self) -> Any:
        """Return a new session on the folder."""
        return cast("Any", Session(self._folder))  # type: ignore[no-untyped-call]  # chDB has no types

    def close(self) -> None:
        """Close the folder."""
        self._base.close()


class EngineConnection:
    """The session of one client connection.

    Args:
        engine: the folder.
        name: the user.
        user: what the user may do.
        database: where unqualified names are looked up, "" = ``default``.

    Attributes:
        engine: the database.
        name: name of the user.
        user: the user's rights.
        database: database of unqualified table names, "": ``default``.
    """

    def __init__(self, engine: Engine, name: str, user: User, database: str) -> None:
        """Open the session."""
        self._engine = engine
        self._name = name
        self._user = user
        self._session = engine.session()
        try:
            if database:
                self._session.query(f"USE `{database.replace('`', '')}`")
            if user.readonly:
                self._session.query(f"SET readonly = {user.readonly}")
        except RuntimeError as error:
            self._session.close()
            raise error_of(error) from error

    def close(self) -> None:
        """Close the session."""
        self._session.close()

    def run(self, sql: str, settings: Mapping[str, str]) -> tuple[Columns, list[Any]]:
        """Run a statement, and return the columns of its result ([]: it has no result) and its blocks of rows.

        Raises:
            ServerError: the user may not run the statement.
        """
        self._check(sql)
        plain = _FORMAT_CLAUSE.sub("", sql)
        with _SettingsSession(self, settings) as session:
            blocks = decode_native(session.query(plain, "Native").bytes() or b"")
            if blocks:
                return blocks[0].columns_with_types, blocks
            if first_word(sql) in {"SELECT", "WITH"}:
                return self._described(session, f"DESCRIBE ({plain.rstrip().rstrip(';')})"), []
            return [], []

    def columns_of_insert(self, table: str, names: str) -> Columns:
        """Return the columns that an INSERT into a table expects; ``names`` is its column list, "": all columns."""
        self._check_role("INSERT")
        described = f"(SELECT {names} FROM {table})" if names else f"TABLE {table}"  # noqa: S608  # the client's own SQL
        return self._described(self._session, f"DESCRIBE {described}")

    def insert(self, table: str, columns: Columns, blocks: Sequence[Any], settings: Mapping[str, str]) -> None:
        """Insert all blocks in one statement, so that a crash loses either all of them or none."""
        names = ", ".join(f"`{name}`" for name, _ in columns)
        data = b"".join(encode_native(block.columns_with_types, block.get_columns()) for block in blocks)
        if not data:
            return
        with (
            _SettingsSession(self, settings) as session,
            session.send_insert(f"INSERT INTO {table} ({names})", "Native") as stream,
        ):
            stream.append(data)
            stream.finish()

    def settings_session(self, settings: Mapping[str, str]) -> Any:
        """Return a new session with this connection's database and user, and the settings of one query."""
        session = self._engine.session()
        try:
            database = self._session.query("SELECT currentDatabase()", "TSVRaw").bytes().decode().strip()
            session.query(f"USE `{database}`")
            if self._user.readonly:
                session.query(f"SET readonly = {self._user.readonly}")  # what it then forbids, the engine itself says
            for name, value in sorted(settings.items(), key=lambda pair: pair[0] == "readonly"):
                if re.fullmatch(r"\w+", name):
                    _set(session, name, value)
        except RuntimeError:
            session.close()
            raise
        return session

    @property
    def session(self) -> Any:
        """The connection's session."""
        return self._session

    def _check(self, sql: str) -> None:
        """Check that the text is one statement that the user may run and that reads nothing outside the database.

        The text is checked as ClickHouse's parser formats it, so that comments and quoting cannot hide anything.
        """
        hexadecimal = sql.encode("utf-8", "replace").hex()
        text = self._session.query(f"SELECT formatQuerySingleLine(unhex('{hexadecimal}'))", "TSVRaw").bytes()
        canonical = (text or b"").decode("utf-8", "replace")
        self._check_role(canonical)
        try:
            check_calls(canonical)
        except QueryRefusedError as error:
            raise ServerError(497, f"{self._name}: Not enough privileges. {error}. (ACCESS_DENIED)") from error

    def _check_role(self, sql: str) -> None:
        """Check that the user's role permits the kind of statement; raise ServerError if not."""
        allowed = {EndpointRole.WRITER: _WRITING, EndpointRole.READER: _READING}.get(self._user.role)
        word = first_word(sql)
        if allowed is not None and word not in allowed:
            need = f"To execute this query, it's necessary to have the grant {word} ON tocsin.*"
            raise ServerError(497, f"{self._name}: Not enough privileges. {need}. (ACCESS_DENIED)")

    @staticmethod
    def _described(session: Any, statement: str) -> Columns:
        """Return the names and types of the columns that a DESCRIBE statement lists, without computed columns."""
        found = json.loads(session.query(statement, "JSONCompact").bytes())["data"]
        return [(row[0], row[1]) for row in found if row[2] not in {"MATERIALIZED", "ALIAS"}]


class _SettingsSession:
    """Context manager that gives the session for one statement.

    It is the connection's session, or a temporary one if the statement brings settings.
    """

    def __init__(self, connection: EngineConnection, settings: Mapping[str, str]) -> None:
        self._own = connection.settings_session(settings) if settings else None
        self._session = self._own or connection.session

    def __enter__(self) -> Any:
        return self._session

    def __exit__(self, *_: object) -> None:
        if self._own is not None:
            self._own.close()


def first_word(sql: str) -> str:
    """Return the statement's first word in capitals, "": there is none."""
    found = _WORD.match(sql)
    return found[1].upper() if found else ""


def error_of(error: Exception) -> ServerError:
    """Return chDB's error as a server error, with the code from its text."""
    message = str(error)
    code = re.search(r"Code: (\d+)", message)
    return ServerError(int(code[1]) if code else 1002, message)


def _set(session: Any, name: str, value: str) -> None:
    """Set a setting in a session; settings that this version does not know are ignored."""
    text = value.replace("\\", "\\\\").replace("'", "\\'")
    try:
        session.query(f"SET {name} = '{text}'")
    except RuntimeError as error:
        if error_of(error).code != 115:  # UNKNOWN_SETTING: a server ignores it, too, unless it is marked important
            raise
