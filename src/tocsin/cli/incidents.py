"""``tocsin incidents``: what is wrong now, since when, on which machine, why, what was done."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tocsin.cli.database import add_database_arguments, database, database_of
from tocsin.cli.main import EXIT_ERROR
from tocsin.cli.ticks import engine_ticks
from tocsin.pipeline.stores.clickhouse_address import ClickHouseAddress
from tocsin.pipeline.stores.user_queries import incidents_query
from tocsin.schemas.printable import json_text, plain

MAX_SHOWN_COUNT = 1000
"""Newest incidents shown."""
MAX_EVIDENCE_COUNT = 6
"""Sentences of evidence shown; --json has all."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--all", action="store_true", help="also what is over: resolved, cancelled, expired")
    parser.add_argument("--job", metavar="J", help="only this job")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    add_database_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print the incidents."""
    data, address = database_of(args)
    incidents = fetch(data, address, everything=args.all, job_id=args.job)
    if args.json:
        for incident in incidents:
            print(json_text(incident))
    else:
        print(render(incidents, everything=args.all, job_id=args.job))
    is_judged = address is not None or engine_ticks(data, "incidents")
    return 0 if is_judged else EXIT_ERROR


def fetch(
    data: Path, address: ClickHouseAddress | None = None, *, everything: bool = False, job_id: str | None = None
) -> list[Mapping[str, Any]]:
    """The rows of ``incidents_current``, or of ``incidents_all``, newest first.

    Raises:
        StoreError: there is no database, or it cannot be read.
        EngineError: an engine runs and does not answer.
    """
    query = incidents_query(everything=everything, job_id=job_id, limit=MAX_SHOWN_COUNT)
    with database(data, address) as ask:
        answer = ask(query, "JSONEachRow")
    return [json.loads(line) for line in answer.splitlines()]


def render(incidents: Sequence[Mapping[str, Any]], *, everything: bool = False, job_id: str | None = None) -> str:
    """All incidents as blocks for a human."""
    of_job = "" if job_id is None else f" in job {plain(job_id)}"
    if not incidents:
        return f"nothing was ever wrong{of_job}" if everything else f"nothing is wrong now{of_job}"
    count = f"{len(incidents)} incident{'s' if len(incidents) > 1 else ''}"
    if len(incidents) == MAX_SHOWN_COUNT:
        count = f"the newest {count}"
    head = f"{count}{of_job}" if everything else f"{count} now{of_job}"
    return "\n\n".join([head, *map(render_one, incidents)])


def render_one(incident: Mapping[str, Any]) -> str:
    """One incident as a block of lines."""
    ranks = f"  rank {incident['ranks']}" if incident["ranks"] else ""
    evidence = list(incident["evidence_list"])
    more_count = len(evidence) - MAX_EVIDENCE_COUNT
    shown = evidence[:MAX_EVIDENCE_COUNT] + ([f"… and {more_count} more: --json"] if more_count > 0 else [])
    lines = [
        plain(incident["summary"]),
        *_field("what", f"{incident['what']} ({incident['state']})"),
        *_field("since", f"{str(incident['since'])[:19]} UTC"),
        *_field("machine", f"{incident['machine']}{ranks}"),
        *_field("why", incident["why"]),
        *_field("evidence", *shown),
        *_field("confidence", f"{float(incident['confidence']):.0%}"),
        *_field("action", f"{incident['action']}: {str(incident['reason']).replace('_', ' ')}"),
        *_field("job", f"{incident['job']}, attempt {incident['attempt']}, cluster {incident['cluster']}"),
        *_field("verdict", f"{incident['verdict_id']}, update {incident['update_number']}"),
    ]
    return "\n".join(lines)


def _field(name: str, *values: str) -> list[str]:
    """One labelled value, or several below each other."""
    return [f"  {name if index == 0 else '':<11}{plain(value)}" for index, value in enumerate(values)]
