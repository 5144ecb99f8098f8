"""``tocsin record FOLDER``: a job of the running engine into a recording."""

import argparse
import signal
import threading
from pathlib import Path

from tocsin.cli.paths import add_data_argument, control_socket, data_folder
from tocsin.schemas.errors import ConfigError


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
    """Record until the time is over or Ctrl-C."""
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
