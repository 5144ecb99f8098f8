"""``tocsin record FOLDER``: records a job of the running engine, or from Kafka."""

import argparse
import contextlib
import math
import re
import signal
import sys
import threading
import time
from collections.abc import Generator, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tocsin.cli.kafka import add_kafka_arguments, settings_of
from tocsin.cli.logs import add_log_arguments, set_up_logs
from tocsin.cli.paths import add_data_argument, control_socket, data_folder
from tocsin.schemas.errors import ConfigError, EngineError
from tocsin.schemas.printable import counted, plain

_NS_PER_SECOND = 1_000_000_000

if TYPE_CHECKING:
    from tocsin.pipeline.runtime.embedded.control_socket import ControlClient

_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to the parser."""
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
    add_log_arguments(parser, "warning")


def run(args: argparse.Namespace) -> int:
    """Record until the time is over or Ctrl-C, or what Kafka holds.

    Return the exit status, 1 if the job sent nothing.
    """
    set_up_logs(args)
    if args.from_kafka:
        return _from_kafka(args)
    if args.since or args.until or args.drop_late:
        raise ConfigError("--since", args.since or args.until or "", "used with --from-kafka")
    from tocsin.pipeline.recording.manifest import read_manifest
    from tocsin.pipeline.runtime.embedded.control_socket import ControlClient

    if not 0 <= args.seconds < math.inf:
        raise ConfigError("--seconds", args.seconds, "0 (until Ctrl-C) or more")
    over = threading.Event()
    # Before the engine begins: a Ctrl-C at any time must leave a whole recording.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    folder = args.folder.resolve()
    client = ControlClient(control_socket(data_folder(args.data)))
    # The recording ends with the stream: hold it until the recording is stopped.
    answers = client.stream("record", folder=str(folder), job_id=args.job, follow=True)
    with contextlib.closing(cast("Generator[dict[str, Any], None, None]", answers)):
        last_answer = _follow(answers, folder, over, args.seconds)
        if last_answer.get("error") or over.is_set():
            _stop(client, folder)
        else:
            print("tocsin record: the engine ended, and the recording with it", file=sys.stderr)
    if not (folder / "manifest.json").is_file():
        raise EngineError(f"the engine left {folder} without a manifest: the recording is not complete")
    manifest = read_manifest(folder)
    seconds = (manifest.end_ns - manifest.start_ns) / _NS_PER_SECOND
    if not seconds:
        job = f"job {args.job}" if args.job else "any job"
        print(
            plain(f"tocsin record: nothing was heard of {job}: {folder} holds a manifest and nothing else"),
            file=sys.stderr,
        )
        return 1
    print(plain(f"recorded {seconds:.0f} s of job {manifest.job_id}: tocsin replay {folder}"))
    return 0


def _follow(
    answers: Iterable[dict[str, Any]], folder: Path, over: threading.Event, limit_seconds: float
) -> dict[str, Any]:
    """Show the recording's progress until it is over; return the engine's last message about it."""
    last_answer: dict[str, Any] = {"job_id": "", "turn_count": 0}
    begun_seconds = 0.0
    bar = sys.stderr.isatty()
    for answer in answers:
        if not begun_seconds:
            begun_seconds = time.monotonic()
            end = f"for {limit_seconds:g} s" if limit_seconds else "Ctrl-C ends it"
            print(plain(f"recording {answer['job_id'] or 'the next job'} into {folder}, {end}"), flush=True)
        last_answer = answer
        if limit_seconds and time.monotonic() - begun_seconds >= limit_seconds:
            over.set()
        if bar:
            print(f"\r{last_answer['turn_count']} s", end="", file=sys.stderr, flush=True)
        if over.is_set() or last_answer["error"]:
            break
    if bar:
        print(file=sys.stderr)
    return last_answer


def _stop(client: "ControlClient", folder: Path) -> None:
    """End the recording, unless the engine has already ended it because the engine itself ended."""
    from tocsin.pipeline.runtime.embedded.control_socket import EngineAbsentError, EngineRefusedError

    try:
        client.call("record_stop", folder=str(folder))
    except EngineAbsentError:
        return
    except EngineRefusedError as error:
        if error.reason != "unknown_recording":
            raise


def _from_kafka(args: argparse.Namespace) -> int:
    """Record a job's records from Kafka's topics, and return the exit status 0."""
    settings, now_ns = settings_of(args), time.time_ns()
    cluster, _, job_id = args.from_kafka.rpartition("/")
    if not job_id or args.seconds or args.job:
        must = "JOB or CLUSTER/JOB, without --job and --seconds (see --since, --until)"
        raise ConfigError("--from-kafka", args.from_kafka, must)
    since_ns = when_ns("--since", args.since, now_ns) if args.since else 0
    until_ns = when_ns("--until", args.until, now_ns) if args.until else None
    if until_ns is not None and until_ns <= since_ns:
        raise ConfigError("--until", args.until, "later than --since")
    from tocsin.pipeline.kafka.record import RecordRequest, record

    wanted = RecordRequest(job_id, cluster, since_ns, until_ns, not args.drop_late)
    done = record(settings, args.topic_prefix, args.folder, wanted)
    late = (
        f", {done.late_count} late ones " + ("left out" if args.drop_late else "among them") if done.late_count else ""
    )
    count = done.record_count + (0 if args.drop_late else done.late_count)
    bad = f", {done.undecodable.total()} could not be read" if done.undecodable else ""
    print(plain(f"recorded {counted(count, 'record')} of {job_id}{late}{bad}: tocsin replay {args.folder}"))
    return 0


def when_ns(setting: str, text: str, now_ns: int) -> int:
    """Parse a time, ISO 8601 (UTC if it has no zone) or an age like ``90m``, and return it in Unix nanoseconds.

    Raises:
        ConfigError: it is neither.
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
