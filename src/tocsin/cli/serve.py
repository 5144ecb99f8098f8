"""``tocsin serve``: the embedded engine."""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tocsin.cli.action_settings import add_action_arguments, settings_of
from tocsin.cli.alerts import add_alerts_argument
from tocsin.cli.config_file import add_config_argument
from tocsin.cli.database import add_clickhouse_argument, address_of
from tocsin.cli.detectors import add_detector_argument
from tocsin.cli.drill_mark import remove_drill_mark
from tocsin.cli.identity import add_gate_arguments, gate_of, local_token, tls_of
from tocsin.cli.logs import add_log_arguments, set_up_logs
from tocsin.cli.main import EXIT_ERROR
from tocsin.cli.paths import add_data_argument, control_socket, data_folder, database_folder
from tocsin.pipeline.runtime.gc_settings import GC_THRESHOLDS
from tocsin.pipeline.stores.clickhouse_address import ClickHouseAddress
from tocsin.schemas.errors import ConfigError, EngineError, StoreAwayError
from tocsin.schemas.private_files import make_private_folder

if TYPE_CHECKING:  # numpy comes with them: only who runs the engine pays
    from tocsin.pipeline.runtime.embedded.alert_follower import AlertFollower
    from tocsin.pipeline.runtime.embedded.fleet_follower import FleetFollower
    from tocsin.pipeline.runtime.embedded.listener.listener_config import ServerConfig
    from tocsin.pipeline.runtime.embedded.note_follower import NoteFollower
    from tocsin.pipeline.runtime.embedded.service import EngineService, ServiceConfig
    from tocsin.pipeline.runtime.embedded.store_writer import StoreWriter
    from tocsin.pipeline.stores.sql_store import SqlStore
    from tocsin.schemas.verdicts import Verdict

_LONGEST_HOLD_SECONDS = 86_400
DEFAULT_LISTEN = "127.0.0.1:4440"
DEFAULT_METRICS_LISTEN = "127.0.0.1:9443"
_LOOK_SECONDS = 1.0
_END_SECONDS = 45.0
"""Longest time for an orderly end of an engine whose thread died; then the process is ended by force."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags."""
    add_config_argument(parser)
    add_data_argument(parser)
    add_clickhouse_argument(parser)
    parser.add_argument(
        "--listen",
        default=os.environ.get("TOCSIN_LISTEN", DEFAULT_LISTEN),
        help="where agents connect: unix:PATH or HOST:PORT [env: TOCSIN_LISTEN] (default: %(default)s)",
    )
    parser.add_argument(
        "--state",
        type=Path,
        metavar="DIR",
        default=os.environ.get("TOCSIN_STATE") or None,
        help="folder of the engine's state, with which a restart goes on [env: TOCSIN_STATE]"
        " (default: state in the data folder)",
    )
    parser.add_argument("--control", type=Path, help="control socket (default: control.sock in the data folder)")
    parser.add_argument(
        "--metrics-listen",
        metavar="HOST:PORT",
        default=os.environ.get("TOCSIN_METRICS_LISTEN", DEFAULT_METRICS_LISTEN),
        help="serve /metrics, /healthz and /readyz there; several separated by commas, '': nowhere"
        " [env: TOCSIN_METRICS_LISTEN] (default: %(default)s)",
    )
    add_gate_arguments(parser)
    parser.add_argument(
        "--hold",
        nargs=2,
        type=_seconds,
        default=(300, 600),
        metavar=("START", "CHANGE"),
        help="a drain or evict waits for so many seconds after this engine began, and after a machine's ranks or a "
        "job's model were changed (default: 300 600)",
    )
    add_detector_argument(parser)
    add_alerts_argument(parser)
    add_action_arguments(parser)
    add_log_arguments(parser)


def _seconds(text: str) -> int:
    """Return a flag's text as seconds, from 0 to ``_LONGEST_HOLD_SECONDS``; ``argparse`` reports other texts."""
    if not text.isdecimal() or int(text) > _LONGEST_HOLD_SECONDS:
        raise argparse.ArgumentTypeError(f"{text!r}: must be a number of seconds from 0 to {_LONGEST_HOLD_SECONDS}")
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Run the embedded engine until SIGTERM or Ctrl-C; return the exit status.

    Raises:
        ConfigError: a flag's value cannot be used.
        StoreError: the incident database needs a person: credentials, rights, a newer schema, a folder in use.
        EngineError: a thread of the engine died.
    """
    set_up_logs(args)
    gc.set_threshold(*GC_THRESHOLDS)
    # chDB and numpy take half a second to import: only this command pays.
    from tocsin.pipeline.recording.live import RecordingManager
    from tocsin.pipeline.runtime.embedded.actions.action_attach import attach_actions
    from tocsin.pipeline.runtime.embedded.ettr_follower import attach_ettr
    from tocsin.pipeline.runtime.embedded.fleet_follower import attach_fleet
    from tocsin.pipeline.runtime.embedded.listener.limits import raise_descriptor_limit
    from tocsin.pipeline.runtime.embedded.listener.listener_config import ServerConfig
    from tocsin.pipeline.runtime.embedded.note_follower import attach_notes
    from tocsin.pipeline.runtime.embedded.service import EngineService

    raise_descriptor_limit()
    address = address_of(args)
    folder = _prepared_folder(args)
    gate = gate_of(args, folder)
    server = ServerConfig(gate=gate, tls=tls_of(args))
    store, writer = _database(folder, address)
    try:
        service = EngineService(_service_config(args, folder, server), store, writer=writer)
        service.attach_recordings(RecordingManager(service.engine))
        ettr = attach_ettr(service, store, folder)
        fleet = attach_fleet(service, folder)  # before what tells people: it says which verdicts are one incident
        notes = attach_notes(service, folder, fleet, store.query)
        acting = replace(settings_of(args, folder, gate.store), on_change=ettr.take_action, facts=fleet.facts)
        actions = attach_actions(service, folder, notes, acting)
        if args.alerts is not None:
            actions.tellers.append(_attach_alerts(service, fleet, notes, args.alerts, folder).remark)
        with local_token(gate, service.server.address):
            words = _serve_until_stopped(service, args.metrics_listen, str(address or folder))
    finally:
        store.close()
    if words:
        raise EngineError(f"{words}: the engine has ended, for it could not do its work; see its log, start it anew")
    return 0


def _attach_alerts(
    service: EngineService, fleet: FleetFollower, notes: NoteFollower, path: Path, folder: Path
) -> AlertFollower:
    """Let the engine tell people about its verdicts by a routes file, and return what tells them.

    Raises:
        ConfigError: the routes file is wrong, or the queue's file cannot be used.
    """
    from tocsin.pipeline.alerts.adapters import ADAPTERS
    from tocsin.pipeline.runtime.embedded.alert_follower import attach_alerts

    def covered_by(one: Verdict) -> str:
        return fleet.covering(one.job.cluster, one.verdict_id)

    return attach_alerts(service, path, folder, ADAPTERS, covered_by, lambda: notes.released)


def _prepared_folder(args: argparse.Namespace) -> Path:
    """Return the data folder, made if absent, without the mark of an earlier drill.

    Raises:
        ConfigError: the folder cannot be made.
    """
    folder = data_folder(args.data)
    try:
        make_private_folder(folder)
    except OSError as error:
        raise ConfigError("--data", str(folder), f"a folder that can be made ({error.strerror or error})") from error
    remove_drill_mark(folder)
    return folder


def _service_config(args: argparse.Namespace, folder: Path, server: ServerConfig) -> ServiceConfig:
    """Return the service's settings from the flags, the data folder and the listener's settings."""
    from tocsin.pipeline.detect.learned.registry import learned_config
    from tocsin.pipeline.incidents.proposals import HoldRules
    from tocsin.pipeline.runtime.embedded.engine import EngineConfig, played
    from tocsin.pipeline.runtime.embedded.recovery import RecoveryConfig
    from tocsin.pipeline.runtime.embedded.service import ServiceConfig
    from tocsin.pipeline.runtime.job_pipeline import JobConfig

    engine = EngineConfig(job=JobConfig(learned=learned_config(args.detector or ())))
    return ServiceConfig(
        args.listen,
        args.control or control_socket(folder),
        folder,
        folder,
        played(engine) if args.allow_player else engine,
        hold=HoldRules(*args.hold),
        server=server,
        recovery=RecoveryConfig(Path(args.state or folder / "state")),
    )


def _end_by_force_later() -> None:
    """Start a timer that ends this process after ``_END_SECONDS``, whatever still runs in it by then."""
    killer = threading.Timer(_END_SECONDS, os._exit, (EXIT_ERROR,))
    killer.daemon = True
    killer.start()


def _serve_until_stopped(
    service: EngineService, metrics_listen: str, where: str, on_death: Callable[[], None] = _end_by_force_later
) -> str:
    """Serve until a signal comes or a thread dies; return which thread died and why, "" = a signal came.

    Args:
        service: the engine, not yet started.
        metrics_listen: addresses of the metrics and health pages.
        where: what holds the incidents, for the first printed line.
        on_death: called when a thread has died, before the orderly end, which may never come.
    """
    from tocsin.collectors.metrics_page import Pages
    from tocsin.pipeline.runtime.embedded.service_metrics import families_of

    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    pages = Pages(metrics_listen, lambda: families_of(service), service.health.live, service.health.ready)
    service.pages = pages.words
    service.start()
    pages.start()
    print(f"tocsin serve: agents on {service.server.address}, incidents in {where}", file=sys.stderr, flush=True)
    words = ""
    while not words and not stop.wait(_LOOK_SECONDS):
        words = service.death()
    if words:
        print(f"tocsin serve: {words}", file=sys.stderr, flush=True)
        on_death()
    pages.close()
    service.stop()
    return words


def _database(folder: Path, address: ClickHouseAddress | None) -> tuple[SqlStore, StoreWriter]:
    """Open and prepare the incident database and return it with its writer.

    A server that is away is no error: the engine judges meanwhile, and verdicts wait in memory.

    Raises:
        StoreError: a person has to act: credentials, rights, a newer schema, a folder that is in use.
    """
    from tocsin.pipeline.runtime.embedded.store_writer import StoreWriter, prepare

    if address is None:
        from tocsin.pipeline.stores.chdb_store import ChdbStore

        store: SqlStore = ChdbStore(database_folder(folder))
        open_verdicts = None
    else:
        from tocsin.pipeline.runtime.embedded.open_verdicts import OpenVerdicts
        from tocsin.pipeline.stores.clickhouse_store import ClickHouseStore

        store = ClickHouseStore(address)
        open_verdicts = OpenVerdicts(folder / "open-verdicts.json")
    is_prepared = True
    try:
        prepare(store)
    except StoreAwayError as error:
        print(f"tocsin serve: {error}; verdicts wait in memory until it does", file=sys.stderr, flush=True)
        is_prepared = False
    except BaseException:
        store.close()
        raise
    return store, StoreWriter(store, open_verdicts, is_prepared=is_prepared)
