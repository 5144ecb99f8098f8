"""``tocsin sql "SELECT …"``: queries the incident database."""

from __future__ import annotations

import argparse
import sys

from tocsin.cli.database import add_database_arguments, database, database_of
from tocsin.schemas.printable import plain

_TERMINAL_FORMAT = "Pretty"
_PIPE_FORMAT = "TSVWithNames"
"""Output format for programs: a header, then one line per row, separated by tabs."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to the parser."""
    parser.add_argument("query", help='e.g. "SELECT what, since, machine, why FROM tocsin.incidents_current"')
    text = "Pretty, Vertical, JSON, JSONEachRow, CSV, … (ClickHouse's names; default: Pretty on a terminal, elsewhere "
    parser.add_argument("--format", help=f"{text}{_PIPE_FORMAT})")
    add_database_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Run the query, print the result as the database formats it, and return the exit status 0."""
    is_terminal = sys.stdout.isatty()
    with database(*database_of(args)) as ask:
        answer = ask(args.query, args.format or (_TERMINAL_FORMAT if is_terminal else _PIPE_FORMAT))
    if is_terminal:  # a format that is no text, or an engine of another version
        answer = plain(answer.decode("utf-8", "backslashreplace"), kept="\n\t").encode()
    sys.stdout.flush()
    sys.stdout.buffer.write(answer)
    sys.stdout.buffer.flush()
    return 0
