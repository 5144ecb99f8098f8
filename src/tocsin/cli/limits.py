"""The flag ``--max NAME=NUMBER``, which limits how much of a recording is read."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tocsin.pipeline.recording.limits import ReadLimits


def add_limit_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flag ``--max``."""
    text = (
        "raise or lower a limit of what is read of a recording: rows, gigabytes (in memory), days, metrics (of your "
        "own), attempts; may be repeated (default: rows=5e7 gigabytes=8 days=14 metrics=1000 attempts=1000)"
    )
    parser.add_argument("--max", metavar="NAME=NUMBER", action="append", default=[], dest="limits", help=text)


def read_limits_of(args: argparse.Namespace) -> ReadLimits:
    """Return the limits from the flags.

    Raises:
        ConfigError: a name is unknown, or a value is not a positive number.
    """
    from tocsin.pipeline.recording.limits import limits_of

    return limits_of(args.limits)
