"""``tocsin ettr``: what the wall time of each job's attempts was spent on."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tocsin.cli.database import add_database_arguments, database, database_of
from tocsin.cli.engine_reader import add_engine_arguments, reader_of
from tocsin.pipeline.stores.attempt_times import PART_NAMES
from tocsin.pipeline.stores.ettr_queries import ettr_query
from tocsin.schemas.printable import json_text, plain

Account = Mapping[str, Any]
"""A row of ``ettr_query``."""
_TIMES: Final = ("began", "until", "told")
_COUNTS: Final = ("steps", "recomputed_steps", "last_step")
_UNITS: Final = (("d", 86_400), ("h", 3_600), ("m", 60))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to the parser."""
    parser.add_argument("--job", metavar="J", help="only this job")
    parser.add_argument("--json", action="store_true", help="one JSON object a line, times in seconds")
    add_database_arguments(parser)
    add_engine_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print the account of each attempt; return the exit status 0."""
    reader = reader_of(args)
    if reader is not None:
        found = list(reader.call("ettr", job_id=args.job)["rows"])
    else:
        with database(*database_of(args)) as ask:
            found = [json.loads(line) for line in ask(ettr_query(args.job), "JSONEachRow").splitlines()]
    if args.json:
        for account in found:
            print(json_text(as_json(account)))
    else:
        print(render(found, args.job))
    return 0


def as_json(account: Account) -> dict[str, Any]:
    """Return what JSON says of an account: times by ISO 8601 in UTC, counts as numbers."""
    times = {name: f"{str(account[name]).replace(' ', 'T')}Z" for name in _TIMES}
    return {**account, **times, **{name: int(account[name]) for name in _COUNTS}}


def render(found: Sequence[Account], job_id: str | None = None) -> str:
    """Return the table: a line for each attempt, and one for each job with several attempts.

    Args:
        found: the accounts, those of one job one after the other.
        job_id: the job that was asked for, None: all jobs.
    """
    if not found:
        of_job = "" if job_id is None else f" of job {plain(job_id)}"
        return f"no account of any attempt{of_job} yet: the engine tells one each minute, and at an attempt's end"
    head = ["JOB", "ATTEMPT", "WALL", *(name.upper().replace("_", "-") for name in PART_NAMES), "ETTR"]
    rows: list[list[str]] = []
    for name in dict.fromkeys((str(one["cluster"]), str(one["job"])) for one in found):
        own = [one for one in found if (str(one["cluster"]), str(one["job"])) == name]
        rows += [_line(plain(name[1]), _attempt_text(one), [one]) for one in own]
        if len(own) > 1:
            rows.append(_line(plain(name[1]), "all", own))
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in (head, *rows))
    return "\n".join(line.rstrip() for line in lines)


def _attempt_text(account: Account) -> str:
    """Return an attempt's number, with a sign where it goes on."""
    return str(account["attempt"]) if account["is_over"] else f"{account['attempt']} (runs)"


def _line(job: str, attempt: str, accounts: Sequence[Account]) -> list[str]:
    """Return the cells of one line: the sums of these accounts."""
    wall_seconds = sum(one["wall_seconds"] for one in accounts)
    sums = [sum(one[f"{name}_seconds"] for one in accounts) for name in PART_NAMES]
    ratio = sums[0] / wall_seconds if wall_seconds > 0 else 0.0
    return [job, attempt, short_length(wall_seconds), *(short_length(one) for one in sums), f"{100 * ratio:.1f} %"]


def short_length(seconds: float) -> str:
    """Return a duration in its two largest units, ``-`` for none.

    >>> short_length(3720.4)
    '1h02m'
    """
    if seconds <= 0:
        return "-"
    if seconds < 60:
        return f"{seconds:.1f}s"
    left = round(seconds)
    shown: list[str] = []
    for unit, size in (*_UNITS, ("s", 1)):
        count, left = divmod(left, size)
        if shown or count:
            shown.append(f"{count:02d}{unit}" if shown else f"{count}{unit}")
    return "".join(shown[:2])
