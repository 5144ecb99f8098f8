"""``tocsin serve``: the embedded engine."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from pathlib import Path

from tocsin.cli.logs import add_log_arguments, set_up_logs
from tocsin.cli.paths import add_data_argument, control_socket, data_folder, database_folder
from tocsin.schemas.errors import ConfigError

DEFAULT_LISTEN = "127.0.0.1:4440"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    add_data_argument(parser)
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
    # chDB and numpy take half a second: only this command pays.
    from tocsin.collectors.metrics_page import MetricsPage
    from tocsin.pipeline.service import EngineService, ServiceConfig
    from tocsin.pipeline.stores.chdb_store import ChdbStore

    folder = data_folder(args.data)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError("--data", str(folder), f"a folder that can be made ({error.strerror or error})") from error
    store = ChdbStore(database_folder(folder))
    try:
        store.migrate()
        store.expire_left_open()
        config = ServiceConfig(args.listen, args.control or control_socket(folder), letter_folder=folder)
        service = EngineService(config, store)
        stop = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop.set())
        service.start()
        page = None
        if args.metrics_listen:
            page = MetricsPage(args.metrics_listen, service.families, service.health)
            page.start()
        print(f"tocsin serve: agents on {service.server.address}, incidents in {folder}", file=sys.stderr, flush=True)
        stop.wait()
        if page is not None:
            page.close()
        service.stop()
    finally:
        store.close()
    return 0
