"""``tocsin incidents``: lists what is wrong now, shows one incident in full, follows changes, closes incidents."""

from __future__ import annotations

import argparse
import difflib
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from tocsin.cli.database import add_database_arguments, database_of
from tocsin.cli.durations import moment_ns
from tocsin.cli.engine_reader import add_engine_arguments, reader_of
from tocsin.cli.incident_html import html_of
from tocsin.cli.incident_page import page_of, render_page
from tocsin.cli.incident_source import (
    MAX_SHOWN_COUNT,
    DatabaseSource,
    IncidentSource,
    IncidentWish,
    RemoteSource,
    fetch_wished,
)
from tocsin.cli.incident_text import as_json, render
from tocsin.cli.incident_watch import follow_database, follow_engine, watcher_of
from tocsin.cli.main import EXIT_ERROR
from tocsin.cli.operator_channel import add_operator_arguments, is_kafka_named, operator_channel
from tocsin.pipeline.stores.clickhouse_address import ClickHouseAddress
from tocsin.pipeline.stores.incident_queries import IncidentFilter
from tocsin.schemas.errors import ConfigError
from tocsin.schemas.printable import json_text, plain
from tocsin.schemas.verdicts import FaultKind, VerdictState

LIST, SHOW, WATCH, CLOSE = "list", "show", "watch", "close"
_MAX_NAMED_COUNT = 8
_POLL_SECONDS: Final = 2.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to the parser."""
    text = "list (the default); show ID: one incident in full; watch: each change as it is told; close ID --note TEXT:"
    text += " it is dealt with. The beginning of an id is enough"
    parser.add_argument("words", nargs="*", metavar="list | show ID | watch | close ID", help=text)
    parser.add_argument("--note", default="", metavar="TEXT", help="why an incident is closed; kept with who closed it")
    parser.add_argument("--all", action="store_true", help="also what is over: resolved, cancelled, expired")
    parser.add_argument("--job", metavar="J", help="only this job")
    parser.add_argument("--host", metavar="H", help="only incidents that name this host")
    text = "only those of which anything was told since then (2h, 30min, 3d, or a time by ISO 8601), what is over, too"
    parser.add_argument("--since", metavar="TIME", help=text)
    states = [state.value for state in VerdictState]
    parser.add_argument("--state", choices=states, help="only those in this state, what is over, too")
    parser.add_argument("--fault", choices=[fault.value for fault in FaultKind], help="only this fault")
    parser.add_argument("--html", type=Path, metavar="FILE", help="with show ID: one self-contained page for a ticket")
    parser.add_argument("--renewals", action="store_true", help="with watch: also lines that say 'still true'")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    add_database_arguments(parser)
    add_engine_arguments(parser)
    add_operator_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Do what the words say; return the exit status, 2 if no engine judges (what is shown may be out of date)."""
    verb, wanted = asked_of(args.words)
    check_flags(args, verb)
    if verb == CLOSE:
        return close(args, str(wanted))
    reader = reader_of(args)
    source: IncidentSource = DatabaseSource(*database_of(args)) if reader is None else RemoteSource(reader)
    if verb == WATCH:
        return watch(args, source, is_remote=reader is not None)
    if wanted is not None:
        show(args, source, wanted)
    else:
        print_list(args, source)
    return 0 if source.is_judged() else EXIT_ERROR


def check_flags(args: argparse.Namespace, verb: str) -> None:
    """Check that no flag is given that the verb does not use.

    Raises:
        ConfigError: one is.
    """
    if args.note and verb != CLOSE:
        raise ConfigError("--note", args.note, "left out, or used with 'close ID'")
    if is_kafka_named(args) and verb != CLOSE:
        raise ConfigError("--kafka", args.kafka, "left out, or used with 'close ID': all else is in the database")
    if args.html is not None and verb != SHOW:
        raise ConfigError("--html", str(args.html), "left out, or used with 'show ID'")
    if args.renewals and verb != WATCH:
        raise ConfigError("--renewals", "given", "left out, or used with 'watch'")
    for name in ("host", "since", "state", "fault") if verb in (SHOW, CLOSE) else ():
        if getattr(args, name) is not None:
            raise ConfigError(f"--{name}", getattr(args, name), f"left out: '{verb} ID' names one incident")


def wish_of(args: argparse.Namespace) -> IncidentWish:
    """Return which incidents the flags ask for.

    Raises:
        ConfigError: ``--since`` is no time.
    """
    since_ns = 0 if args.since is None else since_of(args.since, time.time_ns())
    fault = None if args.fault is None else FaultKind(args.fault)
    state = None if args.state is None else VerdictState(args.state)
    return IncidentWish(args.all, args.job, None, IncidentFilter(args.host, fault, state, since_ns))


def since_of(text: str, now_ns: int) -> int:
    """Return the time that ``--since`` names, in Unix ns: a duration before now, or a time by ISO 8601 (UTC).

    >>> since_of("2h", 7_200_000_000_001)
    1

    Raises:
        ConfigError: it is neither.
    """
    return moment_ns(text, "--since", now_ns, ahead=False)


def print_list(args: argparse.Namespace, source: IncidentSource) -> None:
    """Print the list of incidents."""
    wish, now = wish_of(args), datetime.now(UTC)
    found = source.fetch(wish)
    if args.job is not None and not found:
        check_job(args.job, source.known_jobs())
    if args.json:
        for incident in found:
            print(json_text(as_json(incident)))
        return
    everything = wish.everything or wish.wanted.is_of_the_past
    if not found and wish.wanted != IncidentFilter():
        print("no incident fits the conditions")
        return
    print(render(found, now, everything=everything, job_id=args.job, limit=MAX_SHOWN_COUNT))
    if found:
        print("\none in full: tocsin incidents show ID")


def show(args: argparse.Namespace, source: IncidentSource, wanted: str) -> None:
    """Print one incident in full, and write it as a page where that is asked for.

    Raises:
        ConfigError: no incident or several have such an id, or the page's file cannot be written.
    """
    incident = one_of(source.fetch(IncidentWish(everything=True, id_prefix=wanted)), wanted)
    if args.json:
        print(json_text(as_json(incident)))
        if args.html is None:
            return
    page = page_of(incident, source.parts(str(incident["verdict_id"])), datetime.now(UTC))
    if args.html is not None:
        try:
            args.html.write_text(html_of(page), encoding="utf-8")
        except OSError as error:
            must = f"a file that can be written to ({error.strerror})"
            raise ConfigError("--html", str(args.html), must) from error
    if not args.json:
        print(render_page(page))


def watch(args: argparse.Namespace, source: IncidentSource, *, is_remote: bool) -> int:
    """Print each change of an incident until interrupted from the keyboard; return 0 then.

    Args:
        args: the command's arguments.
        source: where to look again and again, where there is no control socket.
        is_remote: whether the source is an engine on another machine.
    """
    data, address = database_of(args) if not is_remote else (Path(), None)
    watcher = watcher_of(wish_of(args), renewals=args.renewals, as_json=args.json)
    try:
        if is_remote or address is not None:
            follow_database(source, watcher, _POLL_SECONDS)
        else:
            follow_engine(data, watcher)
    except KeyboardInterrupt:
        return 0
    return 0


def asked_of(words: Sequence[str]) -> tuple[str, str | None]:
    """Return the verb, and the beginning of an id after it; None: no single incident is asked for.

    Raises:
        ConfigError: the words are none of ``list``, ``show ID``, ``watch`` and ``close ID``.
    """
    if not words or list(words) in ([LIST], [WATCH]):
        return words[0] if words else LIST, None
    if len(words) != 2 or words[0] not in (SHOW, CLOSE) or not words[1]:
        must = "left out, 'list', 'watch', or 'show' or 'close' and the beginning of an incident's id"
        raise ConfigError("incidents", " ".join(words), must)
    return words[0], words[1]


def close(args: argparse.Namespace, wanted: str) -> int:
    """Close an incident of the data folder's engine, of one on another machine, or through the controller.

    Raises:
        ConfigError: there is no note, or no credential of an operator.
        EngineError: no engine runs, or it holds no such incident, or it refuses.
    """
    if not args.note.strip():
        raise ConfigError("--note", args.note, "a sentence: why the incident is closed")
    answer = operator_channel(args).call("incident_close", id=wanted, note=args.note)
    told = f"incident {answer['verdict_id']} of job {answer['job']} is closed by {answer['actor']}"
    print(plain(f"{told}; 'incidents show' tells it in about two seconds"))
    return 0


def fetch(data: Path, address: ClickHouseAddress | None = None, *, everything: bool = False) -> list[Mapping[str, Any]]:
    """Return the incidents of a data folder or a server, newest first; see ``fetch_wished``."""
    return fetch_wished(data, address, IncidentWish(everything=everything))


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
