"""``tocsin sql "SELECT …"``: ask the incident database."""

from __future__ import annotations

import argparse
import sys

from tocsin.cli.database import add_database_arguments, database, database_of
from tocsin.schemas.printable import plain


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("query", help='e.g. "SELECT what, since, machine, why FROM tocsin.incidents_current"')
    parser.add_argument(
        "--format", default="Pretty", help="Pretty, Vertical, JSON, JSONEachRow, CSV, … (ClickHouse's names)"
    )
    add_database_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print the answer as the database formats it."""
    with database(*database_of(args)) as ask:
        answer = ask(args.query, args.format)
    if sys.stdout.isatty():  # a format that is no text, or an engine of another version
        answer = plain(answer.decode("utf-8", "backslashreplace"), kept="\n\t").encode()
    sys.stdout.flush()
    sys.stdout.buffer.write(answer)
    sys.stdout.buffer.flush()
    return 0
