"""``tocsin sql "SELECT …"``: ask the incident database.

``database`` is how every command reads: through the engine that has the database open, or
from the folder when none runs.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from tocsin.cli.paths import add_data_argument, control_socket, data_folder, database_folder
from tocsin.pipeline.control import ControlClient, EngineAbsentError
from tocsin.schemas.errors import StoreError

Ask = Callable[[str, str], bytes]
"""(SQL, format) -> the answer."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("query", help='e.g. "SELECT what, since, machine, why FROM tocsin.incidents_current"')
    parser.add_argument(
        "--format", default="Pretty", help="Pretty, Vertical, JSON, JSONEachRow, CSV, … (ClickHouse's names)"
    )
    add_data_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Print the answer as the database formats it."""
    with database(data_folder(args.data)) as ask:
        answer = ask(args.query, args.format)
    sys.stdout.flush()
    sys.stdout.buffer.write(answer)
    sys.stdout.buffer.flush()
    return 0


@contextlib.contextmanager
def database(data: Path) -> Iterator[Ask]:
    """Give the way to ask the incident database of a data folder.

    Raises:
        StoreError: there is no database yet, or it cannot be opened.
        EngineError: an engine runs and does not answer.
    """
    client = ControlClient(control_socket(data))
    try:
        client.call("ping")
    except EngineAbsentError:
        with _folder(data) as ask:
            yield ask
    else:
        yield lambda sql, fmt: str(client.call("sql", query=sql, format=fmt)["result"]).encode()


@contextlib.contextmanager
def _folder(data: Path) -> Iterator[Ask]:
    folder = database_folder(data)
    if not folder.is_dir():
        # Reading makes nothing: a mistyped folder must not answer "nothing is wrong".
        raise StoreError(
            f"no incident database in {data}: tocsin serve and tocsin drill make one, --data names another folder"
        )
    # chDB takes half a second to load: only who needs it pays.
    from tocsin.pipeline.stores.chdb_store import ChdbStore

    store = ChdbStore(folder)
    try:
        store.migrate()
        yield store.query
    finally:
        store.close()
