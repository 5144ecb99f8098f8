"""``tocsin alerts``: checks a routes file, sends a test, tells people about verdicts, lists what they were told."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from tocsin.cli.alerts_run import add_run_arguments, run_alerts
from tocsin.cli.kafka import add_kafka_arguments, settings_of
from tocsin.cli.paths import add_data_argument, data_folder
from tocsin.schemas.errors import ConfigError
from tocsin.schemas.kafka.topics import ALERTS_STATE
from tocsin.schemas.printable import json_text, plain
from tocsin.schemas.records import NS_PER_SECOND

QUEUE_FILE_NAME = "alerts.db"
"""Name of the queue's file in the data folder."""

if TYPE_CHECKING:
    from tocsin.pipeline.alerts.routes import Route, RouteConfig, RouteMatch, SeverityRule
    from tocsin.pipeline.alerts.told_list import ToldRow


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to the parser."""
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    check = verbs.add_parser("check", help="read a routes file as serve would, and say what it tells to whom")
    check.add_argument("file", metavar="FILE", type=Path)
    verbs.add_parser("schema", help="print the JSON Schema of the routes file, for editors")
    test = verbs.add_parser("test", help="send one message that says it is a test")
    test.add_argument("route", metavar="ROUTE", help="name of the route; 'watchdog' is the watchdog's")
    test.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        default=os.environ.get("TOCSIN_ALERTS") or None,
        help="routes file [env: TOCSIN_ALERTS]",
    )
    runs = verbs.add_parser("run", help="tell people about the verdicts in Kafka; of several one is active")
    add_alerts_argument(runs)
    add_run_arguments(runs)
    shown = verbs.add_parser("list", help="what people were told that still stands, and what waits to be sent")
    shown.add_argument("--json", action="store_true", help="as JSON")
    add_data_argument(shown)
    add_kafka_arguments(shown, text="the queue of 'tocsin alerts run' on these brokers, not that of 'tocsin serve'")


def add_alerts_argument(parser: argparse.ArgumentParser) -> None:
    """Add the flag ``--alerts`` of the commands that tell people."""
    parser.add_argument(
        "--alerts",
        type=Path,
        metavar="FILE",
        default=os.environ.get("TOCSIN_ALERTS") or None,
        help="routes file: who is told about which incidents (docs/alerts.md) [env: TOCSIN_ALERTS] (default: nobody)",
    )


def run(args: argparse.Namespace) -> int:
    """Run one verb; return 0, or 1 where a test was not delivered.

    Raises:
        ConfigError: the routes file is wrong, or holds no such route; or there is no queue.
    """
    if args.verb == "schema":
        from tocsin.pipeline.alerts.adapters import ADAPTERS
        from tocsin.pipeline.alerts.route_schema import schema_of

        print(json.dumps(schema_of(ADAPTERS), indent=2))
        return 0
    if args.verb == "run":
        run_alerts(args)
        return 0
    if args.verb == "list":
        _list(_told(args), is_json=args.json)
        return 0
    if args.verb == "check":
        _check(args.file)
        return 0
    if args.config is None:
        raise ConfigError("--config", None, "a routes file (or TOCSIN_ALERTS)")
    return _test(args.route, args.config)


def _check(path: Path) -> None:
    """Check a routes file and print what it tells to whom."""
    from tocsin.pipeline.alerts.adapters import ADAPTERS
    from tocsin.pipeline.core.marked_file import raise_all

    config = _loaded(path)
    errors = []
    for name, settings in config.receivers.items():
        try:
            ADAPTERS[str(settings["kind"])].make(settings, config.places[name]).close()
        except ConfigError as error:
            errors.append(error)
    raise_all(errors)
    for line in explained(config):
        print(plain(line))
    print(plain(f"{path}: right"))


def explained(config: RouteConfig) -> Iterator[str]:
    """Yield lines that say what routes do; of a receiver only its kind is said."""
    from tocsin.pipeline.alerts.routes import DEFAULT_SEVERITIES

    yield "how urgent an incident is (the first line that fits counts):"
    for rule in config.severities:
        yield f"  {_rule_words(rule)}"
    for rule in DEFAULT_SEVERITIES:
        yield f"  {_rule_words(rule)} (shipped)"
    yield "who is told:"
    for route in config.routes:
        yield f"  route {route.name}: to {route.receiver} ({config.receivers[route.receiver]['kind']}): {_asks(route)}"
    limits = config.limits
    yield (
        f"floods: in {limits.window_seconds:g} s a route tells {limits.signature_count} incidents of one kind and "
        f"{limits.route_count} of all kinds one by one; a summary counts the rest, until "
        f"none has joined it for {limits.calm_seconds:g} s"
    )
    if config.watchdog is None:
        yield "watchdog: none, so nobody is told when tocsin itself ends"
    else:
        yield f"watchdog: to {config.watchdog.receiver} every {config.watchdog.every_seconds:g} s"


def _rule_words(rule: SeverityRule) -> str:
    """Return a row of the table of severities as text."""
    once = ", once an attempt" if rule.is_once_an_attempt else ""
    return f"{rule.severity.value}{once}: {', '.join(_match_words(rule.match)) or 'everything else'}"


def _asks(route: Route) -> str:
    """Return what a route asks for as text."""
    states = "from open on" if "open" in route.match.state else "confirmed"
    faults = [] if route.match.fault else ["not degraded"]
    then = "; then the next route" if route.goes_on else ""
    return ", ".join([*_match_words(route.match), *faults, states]) + then


def _match_words(match: RouteMatch) -> list[str]:
    """Return the conditions as texts, without those on the state."""
    names = ("cluster", "job", "host", "fault", "cause", "action", "severity")
    parts = [f"{name} {' or '.join(getattr(match, name))}" for name in names if getattr(match, name)]
    return [*parts, f"confidence from {match.min_confidence:g}"] if match.min_confidence else parts


def _told(args: argparse.Namespace) -> list[ToldRow]:
    """Return what stands and what waits, by the queue's file, or by the state of ``tocsin alerts run``."""
    if not args.kafka or args.data:
        from tocsin.pipeline.alerts.told_list import read_told

        return read_told(data_folder(args.data) / QUEUE_FILE_NAME)
    from tocsin.pipeline.alerts.told_parts import told_of
    from tocsin.pipeline.kafka.state_reader import read_state

    return told_of(read_state(settings_of(args), args.topic_prefix, ALERTS_STATE), time.time_ns())


def _list(rows: Sequence[ToldRow], *, is_json: bool) -> None:
    """Print what stands and what waits."""
    if is_json:
        print(json_text([asdict(row) for row in rows], indent=2))
        return
    now_ns = time.time_ns()
    for row in rows:
        print(plain(_row_words(row, now_ns)))
    if not rows:
        print("Nothing that people were told stands, and nothing waits.")


def _row_words(row: ToldRow, now_ns: int) -> str:
    """Return a row as a line."""
    seconds = max(0, now_ns - row.since_ns) / NS_PER_SECOND
    tries = f", tried {row.tries_count} times" if row.tries_count else ""
    what = f"{row.severity.value}, {row.kind.value.replace('_', ' ')}"
    where = f"{row.route} -> {row.receiver}"
    return f"{row.state:<8}  {where}  {seconds:.0f} s{tries}  {what}  {row.verdict_id}  {row.summary}"


def _loaded(path: Path) -> RouteConfig:
    """Return the routes of a file."""
    from tocsin.pipeline.alerts.adapters import ADAPTERS
    from tocsin.pipeline.alerts.routes import load_routes

    return load_routes(path, ADAPTERS)


def _test(name: str, path: Path) -> int:
    """Send a test along a route and print how it ended; return the exit status."""
    from tocsin.pipeline.alerts.adapters import ADAPTERS
    from tocsin.pipeline.alerts.notice import AlertSeverity, NoticeKind
    from tocsin.pipeline.alerts.sample import empty_notice

    config = _loaded(path)
    receivers = {one.name: one.receiver for one in config.routes}
    if config.watchdog is not None:
        receivers.setdefault("watchdog", config.watchdog.receiver)
    if name not in receivers:
        near = difflib.get_close_matches(name, receivers, 1)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise ConfigError("ROUTE", name, f"one of {', '.join(receivers)}{hint}")
    receiver = receivers[name]
    settings = config.receivers[receiver]
    adapter = ADAPTERS[str(settings["kind"])].make(settings, config.places[receiver])
    now_ns = time.time_ns()
    result = adapter.send([empty_notice(name, NoticeKind.TEST, AlertSeverity.PAGE, now_ns)], now_ns)
    adapter.close()
    words = f": {result.detail}" if result.detail else ""
    print(plain(f"{receiver}: {result.reason.value}{words}"))
    if not result.is_delivered:
        print(result.reason.meaning)
    return 0 if result.is_delivered else 1
