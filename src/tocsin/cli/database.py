"""Chooses the incident database that a command queries.

It is a server (``--clickhouse``), or a data folder: through the engine that has it open, or directly if none runs.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

from tocsin.cli.paths import add_data_argument, control_socket, data_folder, database_folder
from tocsin.pipeline.runtime.embedded.control_socket import ControlClient, EngineAbsentError
from tocsin.pipeline.stores.clickhouse_address import ClickHouseAddress, parse_address
from tocsin.schemas.errors import ConfigError, StoreError

URL_VARIABLE = "TOCSIN_CLICKHOUSE"

Ask = Callable[[str, str], bytes]
"""Function (SQL, output format) -> the result as bytes."""


def add_clickhouse_argument(parser: argparse.ArgumentParser) -> None:
    """Add the flag ``--clickhouse URL``, which is the same for every command."""
    parser.add_argument(
        "--clickhouse",
        metavar="URL",
        help="the incident database on a server: clickhouse://USER@HOST[:9000][?password_file=FILE], clickhouses:// for"
        " TLS (docs/clickhouse.md) [env: TOCSIN_CLICKHOUSE, TOCSIN_CLICKHOUSE_PASSWORD]",
    )


def add_database_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags ``--data`` and ``--clickhouse``, for a command that queries one of the two."""
    add_data_argument(parser)
    add_clickhouse_argument(parser)


def address_of(args: argparse.Namespace) -> ClickHouseAddress | None:
    """Return the address of the server from ``--clickhouse`` or the environment, None: neither names one.

    Raises:
        ConfigError: the address is not valid.
    """
    url = args.clickhouse or os.environ.get(URL_VARIABLE, "")
    return parse_address(url) if url else None


def database_of(args: argparse.Namespace) -> tuple[Path, ClickHouseAddress | None]:
    """Return the data folder and the server's address from the flags of ``add_database_arguments``.

    The address is None if the folder is to be used. A flag takes precedence over the environment.

    Raises:
        ConfigError: both flags are given, or one is not valid.
    """
    data = data_folder(args.data)
    if args.data is None:
        return data, address_of(args)
    if args.clickhouse:
        raise ConfigError("--data", str(args.data), "left out where --clickhouse is given: they are two databases")
    return data, None


@contextlib.contextmanager
def database(data: Path, address: ClickHouseAddress | None = None) -> Iterator[Ask]:
    """Context manager that gives a function to query an incident database.

    Args:
        data: the data folder.
        address: address of the server to query instead of the folder, None: the folder.

    Raises:
        StoreError: the database does not exist yet, or cannot be opened.
        EngineError: an engine runs and does not answer.
    """
    if address is not None:
        with _server(address) as ask:
            yield ask
        return
    client = ControlClient(control_socket(data))
    try:
        client.call("ping")
    except EngineAbsentError:
        with _folder(data) as ask:
            yield ask
    else:
        yield lambda sql, fmt: str(client.call("sql", query=sql, format=fmt)["result"]).encode()


@contextlib.contextmanager
def _server(address: ClickHouseAddress) -> Iterator[Ask]:
    """Context manager that gives a function to query a ClickHouse server."""
    from tocsin.pipeline.stores.clickhouse_store import ClickHouseStore

    store = ClickHouseStore(address)
    try:
        store.check()  # reading changes nothing on a server that others use
        yield store.query
    finally:
        store.close()


@contextlib.contextmanager
def _folder(data: Path) -> Iterator[Ask]:
    """Context manager that gives a function to query the database in a data folder."""
    folder = database_folder(data)
    if not folder.is_dir():
        # Reading makes nothing: a mistyped folder must not answer "nothing is wrong".
        raise StoreError(
            f"no incident database in {data}: tocsin serve and tocsin drill make one, --data names another folder,"
            " --clickhouse a server"
        )
    # chDB takes half a second to load: only who needs it pays.
    from tocsin.pipeline.stores.chdb_store import ChdbStore

    store = ChdbStore(folder)
    try:
        store.migrate()
        yield store.query
    finally:
        store.close()
