"""``tocsin maintenance``: plans work on a host, a leaf switch or a job, lists planned work, ends it."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from tocsin.cli.durations import duration_of, moment_ns
from tocsin.cli.engine_reader import ASKING, CHANGING, add_engine_arguments
from tocsin.cli.incident_text import moment_text
from tocsin.cli.operator_channel import add_operator_arguments, operator_channel
from tocsin.cli.paths import add_data_argument
from tocsin.schemas.errors import ConfigError
from tocsin.schemas.operator_notes import TARGET_KINDS
from tocsin.schemas.printable import json_text, plain
from tocsin.schemas.records import NS_PER_SECOND

LIST, END, PLAN = "list", "end", "plan"
_STATES: Final = {"on": "goes on", "planned": "planned", "over": "over"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to the parser."""
    text = "plan work on this host, leaf switch or job; list: what is planned, goes on, or ended within the last hour;"
    text += " end ID: it is done. The beginning of an id is enough"
    parser.add_argument("words", nargs="+", metavar="HOST|LEAF|JOB | list | end ID", help=text)
    parser.add_argument("--for", dest="lasts", metavar="TIME", help="how long it lasts, at most 30 days: 2h, 30min, 3d")
    parser.add_argument("--reason", metavar="TEXT", help="what is done; kept with who planned it")
    kinds = [kind.value for kind in TARGET_KINDS]
    text = "what the name means, where several things have it or none was ever heard of"
    parser.add_argument("--kind", choices=kinds, help=text)
    text = "when it begins: in 2h, 30min, 3d, or a time by ISO 8601 (default: now)"
    parser.add_argument("--from", dest="begins", metavar="TIME", help=text)
    parser.add_argument("--cluster", metavar="C", help="its cluster, where several clusters have such a name")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    add_data_argument(parser)
    add_engine_arguments(parser, CHANGING)
    add_operator_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Ask the engine of the data folder, one on another machine, or the controller; return the exit status.

    Raises:
        ConfigError: a flag is wrong, or the verb does not use it.
        EngineError: no engine runs, or it refuses.
    """
    verb, wanted = asked_of(args.words, is_planned=args.lasts is not None)
    check_flags(args, verb)
    client = operator_channel(args, ASKING if verb == LIST else CHANGING)
    if verb == LIST:
        works = client.call("maintenance_list")["works"]
    elif verb == END:
        works = [client.call("maintenance_end", id=wanted)]
    else:
        works = [client.call("maintenance", **plan_of(args, wanted, time.time_ns()))]
    for work in works:
        print(json_text(json_of(work)) if args.json else plain(line_of(work)))
    if not args.json and not works:
        print("no work is planned")
    if not args.json and verb == PLAN:
        print(plain(f"when it is done: tocsin maintenance end {works[0]['maintenance_id'][:8]}"))
    return 0


def asked_of(words: Sequence[str], *, is_planned: bool) -> tuple[str, str]:
    """Return the verb, and the name or id after it; "" after ``list``.

    Args:
        words: the command's words.
        is_planned: whether ``--for`` is given, so that one word is always a name.

    Raises:
        ConfigError: the words are no name, ``list`` or ``end ID``.
    """
    if list(words) == [LIST] and not is_planned:
        return LIST, ""
    if len(words) == 1 and words[0]:
        return PLAN, words[0]
    if len(words) == 2 and words[0] == END and words[1]:
        return END, words[1]
    must = "the name of a host, a leaf switch or a job, 'list', or 'end' and the beginning of an id"
    raise ConfigError("maintenance", " ".join(words), must)


def check_flags(args: argparse.Namespace, verb: str) -> None:
    """Check that planning has its flags, and that the other verbs have none of them.

    Raises:
        ConfigError: one is missing, or too many.
    """
    if verb == PLAN:
        if args.lasts is None:
            raise ConfigError("--for", "", "given: how long the work lasts, for example 2h")
        if args.reason is None or not args.reason.strip():
            raise ConfigError("--reason", args.reason or "", "given: what is done")
        return
    flags = (("--for", args.lasts), ("--reason", args.reason), ("--kind", args.kind), ("--from", args.begins))
    for name, value in (*flags, ("--cluster", args.cluster)):
        if value is not None:
            raise ConfigError(name, value, f"left out: {verb!r} plans nothing")


def plan_of(args: argparse.Namespace, target: str, now_ns: int) -> dict[str, Any]:
    """Return the request that plans work.

    Raises:
        ConfigError: ``--for`` is no duration, or ``--from`` no time.
    """
    asked = {
        "target": target,
        "for_seconds": duration_of(args.lasts, "--for"),
        "reason": args.reason,
        "kind": args.kind,
        "cluster": args.cluster,
        "begin_ns": None if args.begins is None else moment_ns(args.begins, "--from", now_ns, ahead=True),
    }
    return {name: value for name, value in asked.items() if value is not None}


def line_of(work: Mapping[str, Any]) -> str:
    """Return a work as one line of text."""
    begin, end = (moment_text(_moment(work[name])) for name in ("begin_ns", "end_ns"))
    what = f"{work['target_kind']} {work['target']} of cluster {work['cluster']}"
    state = _STATES.get(str(work["state"]), str(work["state"]))
    return f"{work['maintenance_id'][:8]}  {state}: {what}, {begin} to {end}, by {work['actor']}: {work['reason']}"


def json_of(work: Mapping[str, Any]) -> dict[str, Any]:
    """Return a work as it is printed with ``--json``: as the engine tells it."""
    return {name: value for name, value in work.items() if name not in ("ok", "kind")}


def _moment(ns: int) -> datetime:
    """Return a time in Unix ns as a moment."""
    return datetime.fromtimestamp(int(ns) // NS_PER_SECOND, UTC)
