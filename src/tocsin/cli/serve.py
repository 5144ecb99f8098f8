"""``tocsin serve``: the embedded engine."""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from tocsin.cli.database import add_clickhouse_argument, address_of
from tocsin.cli.logs import add_log_arguments, set_up_logs
from tocsin.cli.paths import add_data_argument, control_socket, data_folder, database_folder
from tocsin.pipeline.garbage import GARBAGE_THRESHOLDS
from tocsin.pipeline.stores.clickhouse_address import ClickHouseAddress
from tocsin.schemas.errors import ConfigError, StoreAwayError

if TYPE_CHECKING:  # numpy comes with them: only who runs the engine pays
    from tocsin.pipeline.store_writer import StoreWriter
    from tocsin.pipeline.stores.sql_store import SqlStore

DEFAULT_LISTEN = "127.0.0.1:4440"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    add_data_argument(parser)
    add_clickhouse_argument(parser)
    parser.add_argument(
        "--listen",
        default=os.environ.get("TOCSIN_LISTEN", DEFAULT_LISTEN),
        help="where agents connect: unix:PATH or HOST:PORT [env: TOCSIN_LISTEN] (default: %(default)s)",
    )
    parser.add_argument("--control", type=Path, help="control socket (default: control.sock in the data folder)")
    parser.add_argument("--metrics-listen", metavar="HOST:PORT", help="serve /metrics and /healthz there")
    add_log_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until SIGTERM or Ctrl-C."""
    set_up_logs(args)
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    # chDB and numpy take half a second: only this command pays.
    from tocsin.collectors.metrics_page import MetricsPage
    from tocsin.pipeline.service import EngineService, ServiceConfig

    address = address_of(args)
    folder = data_folder(args.data)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError("--data", str(folder), f"a folder that can be made ({error.strerror or error})") from error
    store, writer = _database(folder, address)
    try:
        config = ServiceConfig(args.listen, args.control or control_socket(folder), folder, folder)
        service = EngineService(config, store, writer=writer)
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        service.start()
        page = None
        if args.metrics_listen:
            page = MetricsPage(args.metrics_listen, service.families, service.health)
            page.start()
        where = address or folder
        print(f"tocsin serve: agents on {service.server.address}, incidents in {where}", file=sys.stderr, flush=True)
        stop.wait()
        if page is not None:
            page.close()
        service.stop()
    finally:
        store.close()
    return 0


def _database(folder: Path, address: ClickHouseAddress | None) -> tuple[SqlStore, StoreWriter]:
    """The incident database, prepared; a server that is away is waited for while the engine already judges.

    Raises:
        StoreError: a person has to act: credentials, rights, a newer schema, a folder that is in use.
    """
    from tocsin.pipeline.store_writer import StoreWriter, prepare

    if address is None:
        from tocsin.pipeline.stores.chdb_store import ChdbStore

        store: SqlStore = ChdbStore(database_folder(folder))
        open_verdicts = None
    else:
        from tocsin.pipeline.open_verdicts import OpenVerdicts
        from tocsin.pipeline.stores.clickhouse_store import ClickHouseStore

        store = ClickHouseStore(address)
        open_verdicts = OpenVerdicts(folder / "open-verdicts.json")
    is_prepared = True
    try:
        prepare(store, open_verdicts)
    except StoreAwayError as error:
        print(f"tocsin serve: {error}; verdicts wait in memory until it does", file=sys.stderr, flush=True)
        is_prepared = False
    except BaseException:
        store.close()
        raise
    return store, StoreWriter(store, open_verdicts, is_prepared=is_prepared)
