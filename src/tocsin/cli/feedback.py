"""``tocsin feedback``: says whether a verdict was right."""

from __future__ import annotations

import argparse

from tocsin.cli.paths import add_data_argument, control_socket, data_folder
from tocsin.pipeline.runtime.embedded.control_socket import ControlClient
from tocsin.schemas.printable import json_text, plain


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to the parser."""
    parser.add_argument("verdict", metavar="VERDICT", help="the incident's id, or its beginning")
    text = "true: who was named was at fault (or nobody was, where nobody was named); false: not so"
    parser.add_argument("judgement", choices=["true", "false"], help=text)
    parser.add_argument("--note", required=True, metavar="TEXT", help="what was found; kept with who says so")
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    add_data_argument(parser)


def run(args: argparse.Namespace) -> int:
    """Tell the engine that holds the data folder; return the exit status.

    Raises:
        EngineError: no engine runs, or it refuses: it knows no such verdict, or several.
    """
    client = ControlClient(control_socket(data_folder(args.data)))
    answer = client.call("feedback", id=args.verdict, is_true=args.judgement == "true", note=args.note)
    if args.json:
        print(json_text({name: value for name, value in answer.items() if name not in ("ok", "kind")}))
        return 0
    word = "upheld" if answer["is_true"] else "denied"
    print(plain(f"incident {answer['verdict_id']} is {word} by {answer['actor']}: {answer['note']}"))
    return 0
