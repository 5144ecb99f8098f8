"""``tocsin alerts``: checks a routes file, prints its schema, and sends a test along a route."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tocsin.schemas.errors import ConfigError
from tocsin.schemas.printable import plain

if TYPE_CHECKING:
    from tocsin.pipeline.alerts.routes import RouteConfig


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
        ConfigError: the routes file is wrong, or holds no such route.
    """
    if args.verb == "schema":
        from tocsin.pipeline.alerts.adapters import ADAPTERS
        from tocsin.pipeline.alerts.route_schema import schema_of

        print(json.dumps(schema_of(ADAPTERS), indent=2))
        return 0
    if args.verb == "check":
        _check(args.file)
        return 0
    if args.config is None:
        raise ConfigError("--config", None, "a routes file (or TOCSIN_ALERTS)")
    return _test(args.route, args.config)


def _check(path: Path) -> None:
    """Check a routes file and print a line for each route."""
    from tocsin.pipeline.alerts.adapters import ADAPTERS

    config = _loaded(path)
    for name, settings in config.receivers.items():
        ADAPTERS[str(settings["kind"])].make(settings, config.places[name]).close()
    for route in config.routes:
        kind = config.receivers[route.receiver]["kind"]
        print(plain(f"route {route.name}: to {route.receiver} ({kind})"))
    if config.watchdog is None:
        print("watchdog: none, so nobody is told when tocsin itself ends")
    else:
        print(plain(f"watchdog: to {config.watchdog.receiver} every {config.watchdog.every_seconds:g} s"))
    print(plain(f"{path}: right"))


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
