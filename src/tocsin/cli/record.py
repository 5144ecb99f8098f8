"""``tocsin record FOLDER``: a job of the running engine, or out of Kafka, into a recording."""

import argparse
import re
import signal
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

from tocsin.cli.kafka import add_kafka_arguments, settings_of
from tocsin.cli.paths import add_data_argument, control_socket, data_folder
from tocsin.schemas.errors import ConfigError

_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="new or empty folder (on the engine's machine)")
    parser.add_argument(
        "--job", default="", metavar="JOB", help="which job (default: the only one, or the next to appear)"
    )
    parser.add_argument(
        "--seconds", type=float, default=0.0, metavar="S", help="end after so long (default: at Ctrl-C)"
    )
    add_data_argument(parser)
    group = parser.add_argument_group("out of Kafka, what its topics hold already")
    group.add_argument("--from-kafka", metavar="[CLUSTER/]JOB", help="whose records; needs --kafka")
    text = "from this event time: 2026-11-21T10:00 (UTC), or 90m, 2h, 1d ago (default: all that is there)"
    group.add_argument("--since", metavar="WHEN", help=text)
    group.add_argument("--until", metavar="WHEN", help="to before this event time (default: now)")
    text = "leave out what came too late to be judged: a replay then gives the verdicts that were given"
    group.add_argument("--drop-late", action="store_true", help=text)
    add_kafka_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Record until the time is over or Ctrl-C, or what Kafka holds."""
    if args.from_kafka:
        return _from_kafka(args)
    if args.since or args.until or args.drop_late:
        raise ConfigError("--since", args.since or args.until or "", "used with --from-kafka")
    from tocsin.pipeline.control import ControlClient

    if args.seconds < 0:
        raise ConfigError("--seconds", args.seconds, "0 (until Ctrl-C) or more")
    folder = str(args.folder.resolve())
    client = ControlClient(control_socket(data_folder(args.data)))
    told = client.call("record", folder=folder, job_id=args.job)
    print(f"recording {told['job_id'] or 'the next job'} into {folder}" + ("" if args.seconds else ", Ctrl-C ends it"))
    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    over.wait(args.seconds or None)
    done = client.call("record_stop", folder=folder)
    print(f"recorded {done['turn_count']} s of {done['job_id'] or 'no job'}: tocsin replay {args.folder}")
    return 0


def _from_kafka(args: argparse.Namespace) -> int:
    settings, now_ns = settings_of(args), time.time_ns()
    cluster, _, job_id = args.from_kafka.rpartition("/")
    if not job_id or args.seconds or args.job:
        must = "JOB or CLUSTER/JOB, without --job and --seconds (see --since, --until)"
        raise ConfigError("--from-kafka", args.from_kafka, must)
    since_ns = when_ns("--since", args.since, now_ns) if args.since else 0
    until_ns = when_ns("--until", args.until, now_ns) if args.until else None
    if until_ns is not None and until_ns <= since_ns:
        raise ConfigError("--until", args.until, "later than --since")
    from tocsin.pipeline.bus.record import Wanted, record

    wanted = Wanted(job_id, cluster, since_ns, until_ns, not args.drop_late)
    done = record(settings, args.topic_prefix, args.folder, wanted)
    late = (
        f", {done.late_count} late ones " + ("left out" if args.drop_late else "among them") if done.late_count else ""
    )
    count = done.record_count + (0 if args.drop_late else done.late_count)
    bad = f", {done.undecodable.total()} could not be read" if done.undecodable else ""
    print(f"recorded {count} records of {job_id}{late}{bad}: tocsin replay {args.folder}")
    return 0


def when_ns(setting: str, text: str, now_ns: int) -> int:
    """Return a point in time: ISO 8601 (UTC where it says no zone), or how long ago (``90m``).

    Raises:
        ConfigError: neither of them.
    """
    ago = re.fullmatch(r"(\d{1,9})([smhd])", text)
    if ago:
        return now_ns - int(ago[1]) * _UNIT_SECONDS[ago[2]] * 1_000_000_000
    try:
        when = datetime.fromisoformat(text)
    except ValueError as error:
        raise ConfigError(setting, text, "a time like 2026-11-21T10:00, or how long ago: 90s, 30m, 2h, 1d") from error
    when = when if when.tzinfo else when.replace(tzinfo=UTC)
    return round(when.timestamp() * 1e9)
