"""``tocsin cluster up | status | logs | down``: the distributed engine on one machine."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import re
import shlex
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tocsin.cli.cluster.commands import COMMANDS, SINK
from tocsin.cli.cluster.flink_conf import FlinkConfig, bound_opt_folder, flink_home, parse_settings, python_path
from tocsin.cli.cluster.jars import fetch_jars, java
from tocsin.cli.cluster.state import (
    FOLDER_VARIABLE,
    ClusterState,
    alone,
    default_folder,
    is_held,
    last_state,
    read_state,
    write_state,
)
from tocsin.cli.cluster.steps import Steps
from tocsin.cli.logs import TextFormatter, add_log_arguments, set_up_logs
from tocsin.pipeline.runtime.flink.rest import FlinkRest
from tocsin.pipeline.runtime.flink.sql import STARTS
from tocsin.schemas.errors import ConfigError, EngineError
from tocsin.schemas.kafka.topics import DEFAULT_PREFIX, check_prefix
from tocsin.schemas.printable import plain

if TYPE_CHECKING:
    from tocsin.cli.cluster.cluster import Cluster

_PARTS: Final = f"kafka, jobmanager, taskmanager-0, clickhouse, {', '.join(COMMANDS)} or cluster"
_DOWN_SECONDS: Final = 120.0
_AS_ROOT: Final = """\
WARNING: this runs as root. Flink runs the programs of whoever reaches its ports, and other users of this machine reach
WARNING: them: each of them is root then. Run 'tocsin cluster up' as a user of its own (docs/cluster.md)."""
_LOOK_SECONDS: Final = 0.1
_MIBI: Final = 1 << 20
PORT_OF_ADDRESS: Final = re.compile(r":(\d+)(?:\?|$)")
"""The port at the end of an address, or before its query."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the subcommands and their flags to the parser."""
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    up = verbs.add_parser(
        "up", help="start broker, Flink with the job, ClickHouse, tocsin's own commands; until Ctrl-C"
    )
    status = verbs.add_parser("status", help="what runs, and where to reach it; status 1 where something does not")
    logs = verbs.add_parser("logs", help="the last lines of a part's log, or the files of all")
    down = verbs.add_parser("down", help="end the cluster that runs in another terminal")
    for verb in (up, status, logs, down):
        text = (
            f"what it keeps [env: {FOLDER_VARIABLE}; default: cluster/ in the data folder, see 'tocsin serve --help']"
        )
        verb.add_argument("--folder", type=Path, metavar="DIR", help=text)
    _add_up_arguments(up)
    logs.add_argument("name", nargs="?", help=_PARTS)
    logs.add_argument("-n", "--lines", type=int, default=40, metavar="N", help="how many (default: %(default)s)")


def _add_up_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of ``tocsin cluster up``."""
    _add(parser, "--topic-prefix", DEFAULT_PREFIX, "NAME", "first part of the topics' names")
    for name, what in (("kafka", "of the broker"), ("flink", "of Flink's REST interface"), ("clickhouse", "of it")):
        _add(parser, f"--{name}-port", 0, "PORT", f"{what}, 0: the one that it had here last, or a free one")
    _add(parser, "--partitions", 4, "N", "of the topics that hold jobs' records")
    _add(parser, "--task-managers", 1, "N", "Flink processes that work")
    _add(parser, "--slots", 2, "N", "places in each of them; each place has a Python of its own")
    _add(parser, "--taskmanager-memory", 2048, "MIB", "of a TaskManager's Java; Python takes its own beside it")
    _add(parser, "--parallelism", 1, "N", "slots that the job uses")
    _add(parser, "--checkpoint-seconds", 5.0, "S", "between two checkpoints")
    parser.add_argument(
        "--exactly-once", action="store_true", help="verdicts leave in transactions, a checkpoint later"
    )
    text = "credentials of all hosts ('tocsin token'): records that none of them signed become dead letters"
    _add(parser, "--credentials", "", "FILE", text)
    text = "recordings are played to it, and a player speaks for any host (so it is with --no-ticker)"
    parser.add_argument("--allow-player", action="store_true", help=text)
    text = "where the job begins to read (default: %(default)s)"
    parser.add_argument("--start", choices=tuple(STARTS), default="latest", help=text)
    text = "no live ticks: for recordings, whose player brings its own ('tocsin replay --to-kafka')"
    parser.add_argument("--no-ticker", action="store_true", help=text)
    text = "no controller, which judges the fleet and takes people's notes"
    parser.add_argument("--no-controller", action="store_true", help=text)
    _add(parser, "--alerts", "", "FILE", "tell people by this routes file (docs/alerts.md)")
    _add(parser, "--metrics-ports", "", "PORTS", "Flink's Prometheus reporter, FIRST-LAST, on ALL interfaces")
    text = "a setting of Flink's own; may be repeated"
    parser.add_argument("--flink-setting", action="append", default=[], metavar="NAME=VALUE", help=text)
    add_log_arguments(parser)


def _add(parser: argparse.ArgumentParser, flag: str, default: Any, metavar: str, text: str) -> None:
    """Add a flag whose type is that of its default."""
    shown = " (default: %(default)s)" if default != "" else " (default: none)"
    parser.add_argument(flag, type=type(default), default=default, metavar=metavar, help=text + shown)


def run(args: argparse.Namespace) -> int:
    """Run the chosen subcommand and return its exit status."""
    folder = args.folder.expanduser().absolute() if args.folder else default_folder()
    return {"up": _up, "status": _status, "logs": _logs, "down": _down}[args.verb](folder, args)


def _up(folder: Path, args: argparse.Namespace) -> int:
    """Start the cluster and run it until Ctrl-C; return the exit status 0."""
    set_up_logs(args)
    if path := python_path():  # our children work in other folders
        os.environ["PYTHONPATH"] = os.pathsep.join([path, *filter(None, [os.environ.get("PYTHONPATH")])])
    java()
    home = flink_home()
    _check(args)
    begun = time.monotonic()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):  # a shell's background jobs begin with SIGINT ignored
        signal.signal(number, _interrupt)
    with alone(folder):
        _check_ports(args)
        if os.geteuid() == 0:
            print(_AS_ROOT, file=sys.stderr, flush=True)
        fetch_jars()
        if time.monotonic() - begun > 1:
            print(f"jars fetched in {time.monotonic() - begun:.0f} s", file=sys.stderr)
            begun = time.monotonic()
        _log_to(folder)
        return _run_until_interrupted(folder, args, begun, reach_lines(args, home))


def _check(args: argparse.Namespace) -> None:
    """Check the values of the flags; raise ConfigError if one is out of range."""
    check_prefix(args.topic_prefix)
    for name in ("kafka_port", "flink_port", "clickhouse_port"):
        if not 0 <= getattr(args, name) < 65536:
            raise ConfigError(f"--{name.replace('_', '-')}", getattr(args, name), "0 to 65535")
    if args.partitions < 1:
        raise ConfigError("--partitions", args.partitions, "at least 1")
    if args.taskmanager_memory < 1024:
        raise ConfigError("--taskmanager-memory", args.taskmanager_memory, "at least 1024 (MiB)")
    if not 1 <= args.parallelism <= args.task_managers * args.slots:
        must = f"1 to {args.task_managers * args.slots} (TaskManagers times slots)"
        raise ConfigError("--parallelism", args.parallelism, must)
    parse_settings(args.flink_setting)
    if args.alerts:
        from tocsin.pipeline.alerts.adapters import ADAPTERS
        from tocsin.pipeline.alerts.routes import load_routes

        load_routes(Path(args.alerts), ADAPTERS)


def _check_ports(args: argparse.Namespace) -> None:
    """Check that the given ports are free; the Java server would only report it with a stack trace."""
    from tocsin.cli.cluster.process import is_free

    taken: dict[int, str] = {}
    for name in ("kafka", "flink", "clickhouse"):
        port, flag = getattr(args, f"{name}_port"), f"--{name}-port"
        if port and port in taken:
            raise EngineError(f"port {port} is named twice: choose another {flag} than {taken[port]}")
        if port and not is_free(port):
            raise EngineError(f"port {port} is in use: choose another {flag}, or end what listens there")
        taken[port] = flag


def _interrupt(*_: object) -> None:
    """Signal handler: raise KeyboardInterrupt."""
    raise KeyboardInterrupt


def _log_to(folder: Path) -> None:
    """Write tocsin's log to the cluster's log file, too."""
    (folder / "logs").mkdir(exist_ok=True)
    handler = logging.FileHandler(folder / "logs" / "cluster.log")
    handler.setFormatter(TextFormatter())
    logging.getLogger("tocsin").addHandler(handler)


def reach_lines(args: argparse.Namespace, home: Path) -> list[str]:
    """Say who reaches the cluster's ports: what is on loopback, and what is not."""
    found = ["all on this machine's loopback; who may log in here reaches Kafka and Flink without a password."]
    opened = []
    if bound_opt_folder(home) is None:
        opened.append("six ports of Beam in each TaskManager, which serve any file")
    if args.metrics_ports:
        opened.append(f"Flink's metrics on {args.metrics_ports}")
    if args.flink_setting:
        opened.append("what --flink-setting opens")
    if opened:
        found = [f"WARNING: on ALL interfaces of this machine: {' and '.join(opened)}.", "docs/cluster.md closes them."]
    return found


def _run_until_interrupted(folder: Path, args: argparse.Namespace, begun: float, reach: list[str]) -> int:
    """Start the cluster, supervise it until interrupted, and stop it; write its state file meanwhile."""
    # Kafka's client and Flink's parts load here, after all that can be wrong cheaply
    from tocsin.cli.cluster.cluster import Cluster

    cluster = Cluster(_config(folder, args))
    addresses: dict[str, str] = {}
    state_lock = threading.Lock()  # parts that start side by side tell of themselves

    def write_phase(phase: str) -> None:
        with state_lock:
            addresses.update(cluster.addresses)
            logs = {**cluster.logs(), "cluster": str(folder / "logs" / "cluster.log")}
            write_state(folder, ClusterState(os.getpid(), phase, addresses, logs, cluster.processes()))

    def on_done(name: str, seconds: float) -> None:
        print(f"  {name:<12} {seconds:5.1f} s", file=sys.stderr, flush=True)
        write_phase("starting")

    write_phase("starting")
    try:
        _steps(cluster, on_done).run()
        write_phase("running")
        for line in address_lines(addresses, time.monotonic() - begun, reach):
            print(line, flush=True)
        cluster.supervise(threading.Event(), lambda: write_phase("running"))
    except KeyboardInterrupt:
        print("ending ...", file=sys.stderr, flush=True)
    finally:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)  # once is enough
        with contextlib.suppress(OSError):
            write_phase("ending")
        cluster.stop()
        with contextlib.suppress(OSError):
            write_phase("ended")
    return 0


def _steps(cluster: Cluster, on_done: Callable[[str, float], None]) -> Steps:
    """Return the start-up steps of the cluster, with their dependencies."""
    steps = Steps(on_done)
    steps.add("kafka", cluster.start_broker)
    steps.add("flink", cluster.start_flink)
    steps.add("clickhouse", cluster.clickhouse.start)
    for name in cluster.commands.names():
        needs = ("kafka", "clickhouse") if name == SINK else ("kafka",)
        steps.add(name, partial(cluster.start_command, name), *needs)
    steps.add("job", cluster.start_job, "kafka", "flink")
    return steps


def _config(folder: Path, args: argparse.Namespace) -> Any:
    """Return the cluster's settings from the flags."""
    from tocsin.cli.cluster.cluster import ClusterConfig

    ports = _ports(folder, args)
    flink = FlinkConfig(
        folder / "flink",
        ports["flink"],
        args.task_managers,
        args.slots,
        taskmanager_bytes=args.taskmanager_memory * _MIBI,
        metrics_ports=args.metrics_ports,
        settings=parse_settings(args.flink_setting),
    )
    return ClusterConfig(
        folder,
        flink,
        args.topic_prefix,
        ports["kafka"],
        ports["clickhouse"],
        args.partitions,
        not args.no_ticker,
        args.start,
        args.checkpoint_seconds,
        args.parallelism,
        args.exactly_once,
        args.credentials and str(Path(args.credentials).absolute()),
        args.allow_player or args.no_ticker,
        not args.no_controller,
        args.alerts and str(Path(args.alerts).absolute()),
    )


def _ports(folder: Path, args: argparse.Namespace) -> dict[str, int]:
    """Return the ports of the flags, else those of the last run if they are still free, else 0."""
    from tocsin.cli.cluster.process import is_free

    state, found = last_state(folder), {}
    for name in ("kafka", "flink", "clickhouse"):
        asked = getattr(args, f"{name}_port")
        port = PORT_OF_ADDRESS.search(state.addresses.get(name, "")) if state else None
        last = int(port[1]) if port else 0
        found[name] = asked or (last if last and is_free(last) else 0)
    return found


def address_lines(addresses: dict[str, str], seconds: float, reach: list[str]) -> list[str]:
    """Return the lines that say where the cluster's parts are, and who reaches them."""
    kafka, clickhouse = addresses["kafka"], addresses["clickhouse"]
    return [
        f"ready after {seconds:.0f} s",
        f"  Kafka        {kafka}",
        f"  Flink        {addresses['flink']}",
        f"  ClickHouse   {clickhouse}",
        *reach,
        "Here, in other terminals:",
        f"  export TOCSIN_KAFKA={kafka} TOCSIN_FLINK={addresses['flink']} TOCSIN_CLICKHOUSE={shlex.quote(clickhouse)}",
        "  tocsin agent                 sends what it collects to the cluster (TOCSIN_KAFKA)",
        "  tocsin incidents             lists what was found (TOCSIN_CLICKHOUSE)",
        "  tocsin flink status          says how the job goes (TOCSIN_FLINK)",
        "  tocsin cluster status        says what runs; logs NAME shows its log",
        "Ctrl-C here, or 'tocsin cluster down', ends all of it.",
    ]


def _status(folder: Path, args: argparse.Namespace) -> int:
    """Print which parts run and where; return the exit status, 1 if something does not run."""
    del args
    state = read_state(folder)
    if state is None:
        print(f"no cluster runs in {folder}: 'tocsin cluster up' starts one")
        return 1
    print(f"cluster in {folder}: {state.phase}, process {state.pid}")
    for name, address in state.addresses.items():
        print(f"  {name:<14} {address}")
    is_whole = state.phase == "running"
    for name in state.logs:
        pid = state.processes.get(name, 0)
        is_there = name == "cluster" or (pid and Path(f"/proc/{pid}").exists())
        is_whole = is_whole and bool(is_there)
        print(f"  {name:<14} {f'process {pid or state.pid}' if is_there else 'does not run'}")
    if "flink" in state.addresses:
        is_whole = _job_status(state.addresses["flink"]) and is_whole
    return 0 if is_whole else 1


def _job_status(url: str) -> bool:
    """Print the state of the Flink job, and return whether it runs."""
    from tocsin.cli.flink_status import describe, facts

    try:
        found = facts(FlinkRest(url), "tocsin")
    except EngineError as error:
        print(f"  {plain(error)}")
        return False
    for line in describe(found):
        print(f"  {plain(line)}")
    return bool(found["job"] and found["job"]["is_running"])


def _logs(folder: Path, args: argparse.Namespace) -> int:
    """Print the last lines of one log, or the names of all logs; return the exit status 0."""
    state = last_state(folder)
    if state is None:
        raise EngineError(f"no cluster ever ran in {folder}")
    if args.name is None:
        for name, file_name in sorted(state.logs.items()):
            print(f"{name:<14} {file_name}")
        return 0
    path = Path(state.logs.get(args.name, ""))
    if args.name not in state.logs or not path.is_file():
        raise ConfigError("log", args.name, f"one of {', '.join(sorted(state.logs))}")
    with path.open(encoding="utf-8", errors="replace") as file:
        sys.stdout.writelines(deque(file, max(1, args.lines)))
    return 0


def _down(folder: Path, args: argparse.Namespace) -> int:
    """Ask the running cluster to stop, wait until it has, and return the exit status 0."""
    del args
    state = read_state(folder)
    if state is None:
        print(f"no cluster runs in {folder}")
        return 0
    os.kill(state.pid, signal.SIGTERM)
    until = time.monotonic() + _DOWN_SECONDS
    while is_held(folder):
        if time.monotonic() > until:
            raise EngineError(f"the cluster's process {state.pid} did not end within {_DOWN_SECONDS:.0f} s: kill -9 it")
        time.sleep(_LOOK_SECONDS)
    print("ended")
    return 0
