"""``tocsin incidents``: lists what is wrong now, since when, on which machine, why, and what was done."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from tocsin.cli.database import add_database_arguments, database, database_of
from tocsin.cli.engine_reader import EngineReader, add_engine_arguments, reader_of
from tocsin.cli.incident_text import as_json, render, render_one
from tocsin.cli.main import EXIT_ERROR
from tocsin.cli.paths import control_socket
from tocsin.cli.status_table import is_judging
from tocsin.cli.ticks import engine_judges, is_ticking
from tocsin.pipeline.runtime.embedded.control_socket import ControlClient, EngineAbsentError
from tocsin.pipeline.stores.clickhouse_address import ClickHouseAddress
from tocsin.pipeline.stores.user_queries import incidents_query
from tocsin.schemas.errors import ConfigError
from tocsin.schemas.printable import json_text, plain

SHOW, CLOSE = "show", "close"
MAX_SHOWN_COUNT = 1000
"""Greatest number of incidents shown; the newest ones."""
_MAX_NAMED_COUNT = 8
_JOBS_QUERY = (
    "SELECT job_id FROM tocsin.incidents UNION DISTINCT SELECT job_id FROM tocsin.host_health"
    " UNION DISTINCT SELECT job_id FROM tocsin.job_status ORDER BY 1"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to the parser."""
    text = "show ID: one incident in full; close ID --note TEXT: it is dealt with. The beginning of an id is enough"
    parser.add_argument("words", nargs="*", metavar="show ID | close ID", help=text)
    parser.add_argument("--note", default="", metavar="TEXT", help="why an incident is closed; kept with who closed it")
    parser.add_argument("--all", action="store_true", help="also what is over: resolved, cancelled, expired")
    parser.add_argument("--job", metavar="J", help="only this job")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    add_database_arguments(parser)
    add_engine_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Print the incidents; return the exit status, 2 if no engine judges (the list may be out of date)."""
    verb, wanted = asked_of(args.words)
    reader = reader_of(args)
    if verb == CLOSE:
        return close(args, str(wanted), is_remote=reader is not None)
    if args.note:
        raise ConfigError("--note", args.note, "left out, or used with 'close ID'")
    source: IncidentSource = _Database(*database_of(args)) if reader is None else _Remote(reader)
    now = datetime.now(UTC)
    if wanted is not None:
        found = [one_of(source.fetch(everything=True, id_prefix=wanted), wanted)]
    else:
        found = source.fetch(everything=args.all, job_id=args.job)
        if args.job is not None and not found:
            check_job(args.job, source.known_jobs())
    if args.json:
        for incident in found:
            print(json_text(as_json(incident)))
    elif wanted is not None:
        print(render_one(found[0], now))
    else:
        print(render(found, now, everything=args.all, job_id=args.job, limit=MAX_SHOWN_COUNT))
        if found:
            print("\none in full: tocsin incidents show ID")
    return 0 if source.is_judged() else EXIT_ERROR


class IncidentSource(Protocol):
    """Where incidents are read from."""

    def fetch(
        self, *, everything: bool = False, job_id: str | None = None, id_prefix: str | None = None
    ) -> list[Mapping[str, Any]]:
        """Return the incidents, like the function ``fetch``."""

    def known_jobs(self) -> list[str]:
        """Return the names of all known jobs."""

    def is_judged(self) -> bool:
        """Return whether an engine is judging now; if none is, a warning is printed on stderr."""


class _Database:
    """Incidents from a data folder or a database server."""

    def __init__(self, data: Path, address: ClickHouseAddress | None) -> None:
        self._data, self._address = data, address

    def fetch(
        self, *, everything: bool = False, job_id: str | None = None, id_prefix: str | None = None
    ) -> list[Mapping[str, Any]]:
        return fetch(self._data, self._address, everything=everything, job_id=job_id, id_prefix=id_prefix)

    def known_jobs(self) -> list[str]:
        return known_jobs(self._data, self._address)

    def is_judged(self) -> bool:
        if self._address is None:
            return engine_judges(self._data, "incidents")
        with database(self._data, self._address) as ask:
            return is_judging(ask, "incidents")


class _Remote:
    """Incidents from an engine on another machine."""

    def __init__(self, reader: EngineReader) -> None:
        self._reader = reader

    def fetch(
        self, *, everything: bool = False, job_id: str | None = None, id_prefix: str | None = None
    ) -> list[Mapping[str, Any]]:
        answer = self._reader.call("incidents", everything=everything, job_id=job_id, id_prefix=id_prefix)
        return list(answer["rows"])

    def known_jobs(self) -> list[str]:
        return list(self._reader.call("jobs")["jobs"])

    def is_judged(self) -> bool:
        return is_ticking(self._reader.call("health"), "incidents")


def asked_of(words: Sequence[str]) -> tuple[str, str | None]:
    """Return ``show`` or ``close`` and the beginning of an ID after it, None: no single incident is asked for.

    Raises:
        ConfigError: the words are neither ``show ID`` nor ``close ID``.
    """
    if not words:
        return SHOW, None
    if len(words) != 2 or words[0] not in (SHOW, CLOSE) or not words[1]:
        must = "left out, or 'show' or 'close' and the beginning of an incident's id"
        raise ConfigError("incidents", " ".join(words), must)
    return words[0], words[1]


def close(args: argparse.Namespace, wanted: str, *, is_remote: bool) -> int:
    """Close an incident over the control socket of the engine that holds it.

    Raises:
        ConfigError: there is no note, or the engine is on another machine.
        EngineError: no engine runs, or it holds no such incident.
    """
    if is_remote:
        raise ConfigError("--engine", args.engine, "left out: incidents are closed on the engine's own machine")
    if not args.note.strip():
        raise ConfigError("--note", args.note, "a sentence: why the incident is closed")
    data, _ = database_of(args)
    answer = ControlClient(control_socket(data)).call("incident_close", id=wanted, note=args.note)
    told = f"incident {answer['verdict_id']} of job {answer['job']} is closed by {answer['actor']}"
    print(plain(f"{told}; 'incidents show' tells it in about two seconds"))
    return 0


def fetch(
    data: Path,
    address: ClickHouseAddress | None = None,
    *,
    everything: bool = False,
    job_id: str | None = None,
    id_prefix: str | None = None,
) -> list[Mapping[str, Any]]:
    """Return the incidents, newest first: the columns of ``incidents_all``, and when each expires if it is not renewed.

    Args:
        data: the data folder.
        address: address of the server to query instead, None: the data folder.
        everything: whether to include those that have ended.
        job_id: only this job's, None: all jobs.
        id_prefix: only those whose ID begins with it, None: all.

    Raises:
        StoreError: there is no database, or it cannot be read.
        EngineError: an engine runs and does not answer.
    """
    query = incidents_query(everything=everything, job_id=job_id, id_prefix=id_prefix, limit=MAX_SHOWN_COUNT)
    with database(data, address) as ask:
        answer = ask(query, "JSONEachRow")
    return [json.loads(line) for line in answer.splitlines()]


def one_of(found: Sequence[Mapping[str, Any]], wanted: str) -> Mapping[str, Any]:
    """Return the one incident with this ID, or whose ID begins with it.

    Raises:
        ConfigError: none matches, or several do.
    """
    exact = [one for one in found if one["verdict_id"] == wanted]
    if len(exact or found) == 1:
        return (exact or found)[0]
    if not found:
        raise ConfigError("ID", wanted, "an incident's id, or its beginning (tocsin incidents --all lists them)")
    several = ", ".join(str(one["verdict_id"]) for one in found[:_MAX_NAMED_COUNT])
    raise ConfigError("ID", wanted, f"the beginning of one incident's id only; so begin {several}")


def known_jobs(data: Path, address: ClickHouseAddress | None) -> list[str]:
    """Return the names of the jobs that the database or a running engine knows, sorted.

    Raises:
        StoreError: the database cannot be read.
        EngineError: an engine runs and does not answer.
    """
    with database(data, address) as ask:
        found = {json.loads(line)["job_id"] for line in ask(_JOBS_QUERY, "JSONEachRow").splitlines()}
    if address is None:
        with contextlib.suppress(EngineAbsentError):  # the folder alone tells
            found |= {job["job_id"] for job in ControlClient(control_socket(data)).call("status")["jobs"]}
    return sorted(found)


def check_job(job_id: str, known: Sequence[str]) -> None:
    """Check that a job is known, because "nothing is wrong" would be misleading for a misspelt name.

    Raises:
        ConfigError: the job is unknown; the error suggests the nearest name.
    """
    if job_id in known:
        return
    near = difflib.get_close_matches(job_id, known, n=1)
    named = ", ".join(known[:_MAX_NAMED_COUNT]) + (", …" if len(known) > _MAX_NAMED_COUNT else "")
    hint = f"did you mean {near[0]!r}?" if near else f"known are {named}" if known else "no job was ever heard of"
    raise ConfigError("--job", job_id, f"a job that was heard of: {hint}")
