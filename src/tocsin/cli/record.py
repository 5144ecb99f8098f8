"""``tocsin record FOLDER``: a job of the running engine into a recording."""

import argparse
import contextlib
import math
import signal
import sys
import threading
import time
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from tocsin.cli.paths import add_data_argument, control_socket, data_folder
from tocsin.schemas.errors import ConfigError, EngineError

_NS_PER_SECOND = 1_000_000_000

if TYPE_CHECKING:
    from tocsin.pipeline.control import ControlClient


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


def run(args: argparse.Namespace) -> int:
    """Record until the time is over or Ctrl-C; 1 when the job said nothing."""
    from tocsin.pipeline.control import ControlClient
    from tocsin.pipeline.recording.manifest import read_manifest

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
        told = _follow(answers, folder, over, args.seconds)
        if told.get("error") or over.is_set():
            _stop(client, folder)
        else:
            print("tocsin record: the engine ended, and the recording with it", file=sys.stderr)
    if not (folder / "manifest.json").is_file():
        raise EngineError(f"the engine left {folder} without a manifest: the recording is not complete")
    manifest = read_manifest(folder)
    seconds = (manifest.end_ns - manifest.start_ns) / _NS_PER_SECOND
    if not seconds:
        job = f"job {args.job}" if args.job else "any job"
        print(f"tocsin record: nothing was heard of {job}: {folder} holds a manifest and nothing else", file=sys.stderr)
        return 1
    print(f"recorded {seconds:.0f} s of job {manifest.job_id}: tocsin replay {folder}")
    return 0


def _follow(
    answers: Iterable[dict[str, Any]], folder: Path, over: threading.Event, limit_seconds: float
) -> dict[str, Any]:
    """Watch the recording until it is over; the last that the engine said of it."""
    told: dict[str, Any] = {"job_id": "", "turn_count": 0}
    begun_seconds = 0.0
    bar = sys.stderr.isatty()
    for answer in answers:
        if not begun_seconds:
            begun_seconds = time.monotonic()
            end = f"for {limit_seconds:g} s" if limit_seconds else "Ctrl-C ends it"
            print(f"recording {answer['job_id'] or 'the next job'} into {folder}, {end}", flush=True)
        told = answer
        if limit_seconds and time.monotonic() - begun_seconds >= limit_seconds:
            over.set()
        if bar:
            print(f"\r{told['turn_count']} s", end="", file=sys.stderr, flush=True)
        if over.is_set() or told["error"]:
            break
    if bar:
        print(file=sys.stderr)
    return told


def _stop(client: "ControlClient", folder: Path) -> None:
    """End the recording, unless the engine, which ended in this moment, has done so."""
    from tocsin.pipeline.control import EngineAbsentError, EngineRefusedError

    try:
        client.call("record_stop", folder=str(folder))
    except EngineAbsentError:
        return
    except EngineRefusedError as error:
        if error.reason != "unknown_recording":
            raise
