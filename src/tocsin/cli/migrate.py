"""``tocsin migrate``: bring the incident database to this version's tables."""

from __future__ import annotations

import argparse

from tocsin.cli.paths import add_data_argument, control_socket, data_folder, database_folder
from tocsin.pipeline.control import ControlClient, EngineAbsentError

_VERSION = "SELECT max(number) FROM tocsin.schema_migrations"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_data_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Apply what is missing and print the version."""
    data = data_folder(args.data)
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
