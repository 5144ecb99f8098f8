"""``tocsin agent``: runs the collectors of one training host and sends their records to the engine."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tocsin import __version__
from tocsin.cli.agent_checks import add_checks_arguments, checks_of
from tocsin.cli.config_file import add_config_argument
from tocsin.cli.identity import add_token_arguments, agent_tls_of, kafka_tokens_of, tokens_of
from tocsin.cli.kafka import add_kafka_arguments, settings_of
from tocsin.cli.logs import add_log_arguments, set_up_logs

if TYPE_CHECKING:
    from tocsin.collectors.agent.agent import Wakeup
    from tocsin.collectors.clock import SteadyClock
    from tocsin.collectors.sources.settings import SourceSettings
    from tocsin.collectors.transport.outbox import SinkConfig
    from tocsin.collectors.transport.sink import Sink

DEFAULT_ENGINE = "127.0.0.1:4440"
DEFAULT_METRICS_LISTEN = "127.0.0.1:9441"
DEFAULT_SPOOL_BYTES = 64 * 1024 * 1024


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags to the parser."""
    add_config_argument(parser)
    _add_peers(parser)
    add_token_arguments(lambda *said: _flag(parser, *said), parser)
    _add_kafka(parser)
    _add_spool(parser)
    _add_sources(parser)
    add_checks_arguments(parser)
    add_log_arguments(parser)


def _add_peers(parser: argparse.ArgumentParser) -> None:
    """Add the flags with the agent's own name, place and addresses, and the engine's address."""
    _flag(parser, "--engine", "TOCSIN_ENGINE", DEFAULT_ENGINE, "where the engine is: unix:PATH or HOST:PORT")
    text = (
        "unix datagram socket of the hooks (default: agent.sock in /run/tocsin where this user may write there, else in"
    )
    _flag(parser, "--socket", "TOCSIN_AGENT_SOCKET", "", f"{text} $XDG_RUNTIME_DIR/tocsin, else in /tmp/tocsin-UID)")
    text = "flight-recorder dumps of hooks are read below this folder only; '': none but those asked for"
    _flag(parser, "--dump-dir", "TOCSIN_DUMP_DIR", default_dump_folder(), text)
    _flag(parser, "--host", "TOCSIN_HOST", socket.gethostname(), "this machine's name")
    _flag(parser, "--cluster", "TOCSIN_CLUSTER", "default", "cluster of an idle host's records")
    _flag(parser, "--leaf", "TOCSIN_LEAF", "", "leaf switch that this machine hangs on")
    _flag(parser, "--minipod", "TOCSIN_MINIPOD", "", "minipod that this machine stands in")
    text = "HOST:PORT for /metrics, /healthz and /readyz, several separated by commas; '': none"
    _flag(parser, "--metrics-listen", "TOCSIN_METRICS_LISTEN", DEFAULT_METRICS_LISTEN, text)


def _add_kafka(parser: argparse.ArgumentParser) -> None:
    """Add the flags for sending to Kafka instead of to the engine."""
    add_kafka_arguments(parser, text="send to these brokers instead of --engine")
    text = "of what is sent to Kafka: zstd, lz4 or none"
    _flag(parser, "--kafka-compression", "TOCSIN_KAFKA_COMPRESSION", "zstd", text)
    text = "cut the frames of jobs with more ranks by metric group, 0: never (all agents of a job alike)"
    _flag(parser, "--split-frames-above", "TOCSIN_SPLIT_FRAMES_ABOVE", "0", text, kind=int)


def _add_spool(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the spool, which keeps records while the engine cannot be reached."""
    text = "folder for records while the engine is away; '': in memory"
    _flag(parser, "--spool-dir", "TOCSIN_SPOOL_DIR", default_spool_folder(), text)
    text = "most that the spool may hold; the oldest records go first"
    _flag(parser, "--spool-bytes", "TOCSIN_SPOOL_BYTES", str(DEFAULT_SPOOL_BYTES), text, kind=int)


def _add_sources(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say what the collectors read, and how often."""
    _flag(parser, "--proc-root", "TOCSIN_PROC_ROOT", "/proc", "where the host's /proc is")
    _flag(parser, "--sys-root", "TOCSIN_SYS_ROOT", "/sys", "where the host's /sys is")
    _flag(parser, "--disk-path", "TOCSIN_DISK_PATH", "/", "file system whose fill is reported; '': none")
    text = "NVIDIA GPUs: auto, off, or fake:N (N GPUs that do not exist, for tests)"
    _flag(parser, "--nvml", "TOCSIN_NVML", "auto", text, kind=_nvml)
    _flag(parser, "--rdma", "TOCSIN_RDMA", "auto", "InfiniBand and RoCE ports: auto or off", kind=_auto)
    text = "kernel log: /dev/kmsg or a file that a log daemon writes; '': none"
    _flag(parser, "--kmsg-path", "TOCSIN_KMSG_PATH", "/dev/kmsg", text)
    text = "page of an exporter, http(s); may be given several times [env: TOCSIN_PROMETHEUS, separated by blanks]"
    parser.add_argument("--prometheus", action="append", metavar="URL", help=text)
    text = "JSON file: which metric of these pages is which column; '': dcgm-exporter and node_exporter"
    _flag(parser, "--prometheus-mapping", "TOCSIN_PROMETHEUS_MAPPING", "", text)
    text = "time between two scrapes"
    _flag(parser, "--prometheus-seconds", "TOCSIN_PROMETHEUS_SECONDS", "5.0", text, kind=_seconds)
    text = "time between two samples of the host's metrics"
    _flag(parser, "--period-seconds", "TOCSIN_PERIOD_SECONDS", "1.0", text, kind=float)
    parser.add_argument(
        "--as-process-tree",
        dest="process_tree_pid",
        type=int,
        default=0,
        metavar="PID",
        help="drill only: host metrics of this agent come from the process tree of PID",
    )


def run(args: argparse.Namespace) -> int:
    """Run the agent until SIGTERM or Ctrl-C, send what is still queued, and return the exit status 0."""
    set_up_logs(args)
    from tocsin.collectors.agent.agent import Agent, AgentConfig, Parts, Wakeup
    from tocsin.collectors.agent.core import CoreConfig
    from tocsin.collectors.agent.job_state import HostPlace
    from tocsin.collectors.clock import SteadyClock, SystemClock
    from tocsin.collectors.sources.registry import make_collectors, process_watcher

    system, sources = SystemClock(), source_settings(args)
    watcher = process_watcher(sources, system)
    clock, wake = SteadyClock(system), Wakeup()
    core = CoreConfig(HostPlace(args.host, args.leaf, args.minipod), args.cluster, args.period_seconds)
    sink = make_sink(args, clock, wake)
    config = AgentConfig(core, args.socket or _default_socket(), args.dump_dir, args.metrics_listen)
    agent: Agent | None = None
    is_asked = False

    def stop(*_: object) -> None:
        nonlocal is_asked
        is_asked = True
        if agent is not None:
            agent.stop()

    for number in (signal.SIGTERM, signal.SIGINT):  # before the socket is there: all that it takes is sent
        signal.signal(number, stop)
    agent = Agent(config, Parts(sink, watcher, (*make_collectors(sources), watcher)), clock, wake)
    if is_asked:
        agent.stop()
    with checks_of(args):
        agent.run()
    return 0


def make_sink(args: argparse.Namespace, clock: SteadyClock, wake: Wakeup) -> Sink:
    """Return the way to the engine; the Kafka client costs memory, so only where it is used."""
    from tocsin.collectors.transport.spool import DiskSpool, MemorySpool, Spool

    def spool() -> Spool:
        return DiskSpool(args.spool_dir, args.spool_bytes) if args.spool_dir else MemorySpool(args.spool_bytes)

    if not args.kafka:
        from tocsin.collectors.transport.socket_sink import SocketSink

        return SocketSink(config_of(args), spool(), clock, wake)
    from tocsin.collectors.transport.kafka_client import KafkaSinkConfig
    from tocsin.collectors.transport.kafka_sink import KafkaSink

    settings, split = settings_of(args), args.split_frames_above
    tokens = kafka_tokens_of(args)
    config = KafkaSinkConfig(settings, args.host, args.topic_prefix, args.kafka_compression, split, tokens)
    config.check()
    return KafkaSink(config, spool(), clock, wake)


def _default_socket() -> str:
    """Return the path of this user's agent socket, where the user's hooks look for it.

    Prints a hint if another agent already listens on a socket that the hooks try first.

    Raises:
        ConfigError: the socket's folder belongs to another user or others can write to it.
    """
    from tocsin.collectors.hook._places import agent_sockets, listening, own_socket
    from tocsin.schemas.errors import ConfigError

    try:
        own = own_socket()
    except OSError as error:
        raise ConfigError("socket", "", f"given with --socket: {error}") from error
    places = agent_sockets()
    other = listening(places[: places.index(own)])
    if other:
        hint = f"hooks look at {other} first, and an agent listens there: set TOCSIN_AGENT_SOCKET={own} for your job"
        print(f"tocsin agent: {hint}", file=sys.stderr, flush=True)
    return own


def config_of(args: argparse.Namespace) -> SinkConfig:
    """Return the sink's settings: the engine's address, this host's name, its tokens and its TLS settings."""
    from tocsin.collectors.transport.outbox import SinkConfig

    return SinkConfig(args.engine, args.host, __version__, tokens_of(args), agent_tls_of(args))


def source_settings(args: argparse.Namespace) -> SourceSettings:
    """Return the settings of the host's sources; without ``--prometheus`` the environment names the pages."""
    from tocsin.collectors.sources.procfs import Roots
    from tocsin.collectors.sources.settings import SourceSettings

    return SourceSettings(
        roots=Roots(args.proc_root, args.sys_root),
        period_seconds=args.period_seconds,
        process_tree_pid=args.process_tree_pid,
        disk_path=args.disk_path,
        nvml=args.nvml,
        rdma=args.rdma,
        kmsg_path=args.kmsg_path,
        prometheus_urls=tuple(args.prometheus or os.environ.get("TOCSIN_PROMETHEUS", "").split()),
        prometheus_mapping_path=args.prometheus_mapping,
        prometheus_seconds=args.prometheus_seconds,
    )


def _nvml(text: str) -> str:
    """Parse ``--nvml``: "auto", "off" or "fake:N" with N of at most two digits; else an argparse error."""
    number = text.removeprefix("fake:")
    if text not in {"auto", "off"} and not (
        number != text and number.isascii() and number.isdigit() and len(number) < 3
    ):
        raise argparse.ArgumentTypeError(f"{text!r}: must be auto, off or fake:N")
    return text


def _auto(text: str) -> str:
    """Parse a flag that is "auto" or "off"; else an argparse error."""
    if text not in {"auto", "off"}:
        raise argparse.ArgumentTypeError(f"{text!r}: must be auto or off")
    return text


def _seconds(text: str) -> float:
    """Parse a period of 0.1 to 3600 seconds; else an argparse error."""
    seconds = float(text)
    if not 0.1 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text}: must be 0.1 to 3600 seconds")
    return seconds


def default_dump_folder() -> str:
    """Return the folder where hooks write dumps by default: ``tocsin-dumps`` in ``TMPDIR`` or ``/tmp``."""
    return str(Path(os.environ.get("TMPDIR") or "/tmp") / "tocsin-dumps")  # noqa: S108  # as the hook's, without tempfile


def default_spool_folder() -> str:
    """Return the default folder of the spool: below ``/var/lib`` for root, else in the user's state folder."""
    if os.geteuid() == 0:
        return "/var/lib/tocsin/spool"
    state = os.environ.get("XDG_STATE_HOME")
    folder = Path(state) if state else Path.home() / ".local" / "state"
    return str(folder / "tocsin" / "spool")


def _flag(  # one line a flag is what makes them readable
    parser: argparse.ArgumentParser,
    name: str,
    environment: str,
    default: str,
    text: str,
    *,
    kind: Callable[[str], object] = str,
) -> None:
    """Add a flag whose default is the value of an environment variable, or else ``default``."""
    shown = f"; default: {default}" if default else ""
    parser.add_argument(
        name,
        # a text: argparse converts it, so that a wrong value in the environment is said in one line
        default=os.environ.get(environment, default),
        type=kind,
        metavar=name.rpartition("-")[2].upper(),
        help=f"{text} [env: {environment}{shown}]".replace("%", "%%"),
    )
