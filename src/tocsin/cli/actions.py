"""``tocsin actions``: what the controller decided, and a person's word about it: approve, deny, cancel."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from tocsin.cli.action_channel import actions_channel, add_actions_kafka_arguments
from tocsin.cli.engine_reader import ASKING, CHANGING, add_engine_arguments
from tocsin.cli.incident_text import moment_text
from tocsin.cli.paths import add_data_argument
from tocsin.schemas.printable import json_text, plain
from tocsin.schemas.records import NS_PER_SECOND

_ID_SHOWN: Final = 12
_INCARNATION: Final = ("boot_id", "node_uid", "pod_uid", "pod_name")
_COMMANDS: Final = {
    "approve": "let an action that waits for a person be carried out",
    "deny": "decide against an action that is not begun; its machines are left alone for this cause for a time",
    "cancel": "take an action back: it is not begun, or what it changed is undone",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to the parser."""
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    listing = verbs.add_parser("list", help="the actions that are not over, oldest first")
    listing.add_argument("--all", action="store_true", help="also those that are over")
    _add_common(listing, asks=True)
    show = verbs.add_parser("show", help="one action: on what it rests, what became of it, and when")
    show.add_argument("id", metavar="ID", help="its id, or the beginning of it")
    _add_common(show, asks=True)
    for name, text in _COMMANDS.items():
        command = verbs.add_parser(name, help=text)
        command.add_argument("id", metavar="ID", help="its id, or the beginning of it")
        command.add_argument("--note", metavar="TEXT", default="", help="why; kept with who said it")
        _add_common(command, asks=False)


def _add_common(parser: argparse.ArgumentParser, *, asks: bool) -> None:
    """Add the flags that all verbs have; ``asks``: the verb changes nothing."""
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    add_data_argument(parser)
    add_engine_arguments(parser, ASKING if asks else CHANGING)
    add_actions_kafka_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Ask the engine of the data folder, one on another machine, or the topics, and return the exit status.

    Raises:
        ConfigError: a flag is wrong.
        EngineError: no engine runs, or it refuses.
    """
    asks = args.verb in {"list", "show"}
    client = actions_channel(args, ASKING if asks else CHANGING)
    if args.verb == "list":
        answer = client.call("actions_list", everything=args.all)
        _print_list(answer, is_json=args.json)
    elif args.verb == "show":
        answer = client.call("action_show", id=args.id)
        _print_one(answer, is_json=args.json)
    else:
        changed = client.call(f"action_{args.verb}", id=args.id, note=args.note)["action"]
        print(json_text(changed) if args.json else plain(line_of(changed)))
    return 0


def _print_list(answer: Mapping[str, Any], *, is_json: bool) -> None:
    actions = answer["actions"]
    if is_json:
        for one in actions:
            print(json_text(one))
        return
    if answer["is_dry_run"]:
        print("a dry run: nothing below is carried out (--act of tocsin serve or tocsin controller)")
    for one in actions:
        print(plain(line_of(one)))
    if not actions:
        print("no action waits, goes on or stands")


def _print_one(answer: Mapping[str, Any], *, is_json: bool) -> None:
    action, history = answer["action"], answer["history"]
    if is_json:
        print(json_text({"action": action, "history": history}))
        return
    print(plain(line_of(action)))
    print(plain(f"  id {action['action_id']}, verdict {action['verdict_id']}, cause {action['cause']}"))
    print(plain(f"  rule {action['rule']}, budget class {action['budget_class']}"))
    for machine in action["target"]["machines"]:
        known = [f"{name} {machine[name]}" for name in _INCARNATION if machine.get(name)]
        print(plain(f"  machine {machine['host']}" + (f" ({', '.join(known)})" if known else "")))
    spares = action.get("spares") or []
    if spares:
        more = f" and {len(spares) - 8} more" if len(spares) > 8 else ""
        print(plain(f"  spares, the best first: {' '.join(spares[:8])}{more}"))
    print(plain(f"  may be begun until {_moment(action['deadline_ns'])}"))
    for one in history:
        print(plain(f"  {_moment(one['changed_ns'])}  {one['state']}: {_why(one)}"))


def line_of(action: Mapping[str, Any]) -> str:
    """Return an action as one line of text."""
    target = action["target"]
    hosts = [one["host"] for one in target["machines"]]
    what = " ".join(hosts[:4]) + (f" and {len(hosts) - 4} more" if len(hosts) > 4 else "")
    job = target["job"]
    where = f"{what or 'the whole job'} of job {job['job_id']}/{job['attempt']}"
    return f"{action['action_id'][:_ID_SHOWN]}  {action['state']}: {action['kind']} {where}, {_why(action)}"


def _why(action: Mapping[str, Any]) -> str:
    """Return the named reason of a state, with what is said about it and by whom."""
    words = [str(action["reason"])]
    if action.get("detail"):
        words.append(f"({action['detail']})")
    if action.get("actor"):
        words.append(f"by {action['actor']}")
    if action.get("holder"):
        words.append(f"executor {action['holder']}")
    return " ".join(words)


def _moment(time_ns: int) -> str:
    return moment_text(datetime.fromtimestamp(int(time_ns) // NS_PER_SECOND, UTC))
