"""``tocsin migrate``: brings the incident database to this version's tables."""

from __future__ import annotations

import argparse

from tocsin.cli.database import add_database_arguments, database_of
from tocsin.cli.paths import control_socket, database_folder
from tocsin.pipeline.runtime.embedded.control_socket import ControlClient, EngineAbsentError
from tocsin.pipeline.stores.clickhouse_address import ClickHouseAddress

_VERSION = "SELECT max(number) FROM tocsin.schema_migrations"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to the parser."""
    add_database_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Apply the missing migrations, print the schema version, and return the exit status 0."""
    data, address = database_of(args)
    if address is not None:
        return _migrate_server(address)
    try:
        answer = ControlClient(control_socket(data)).call("sql", query=_VERSION, format="TSV")
    except EngineAbsentError:
        from tocsin.pipeline.stores.chdb_store import ChdbStore

        store = ChdbStore(database_folder(data))
        try:
            version = store.migrate()
        finally:
            store.close()
        print(f"{database_folder(data)}: schema version {version}")
    else:  # an engine migrates when it starts
        version = int(str(answer["result"]))
        print(f"{database_folder(data)}: schema version {version}, open in the running engine")
    return 0


def _migrate_server(address: ClickHouseAddress) -> int:
    """Migrate the database on a server."""
    from tocsin.pipeline.stores.clickhouse_store import ClickHouseStore

    store = ClickHouseStore(address)
    try:
        version = store.migrate()
    finally:
        store.close()
    print(f"{address}: schema version {version}")
    return 0
