"""``tocsin feedback``: says whether a verdict was right, and exports what was said."""

from __future__ import annotations

import argparse
import sys

from tocsin.cli.database import add_database_arguments, database, database_of
from tocsin.cli.engine_reader import CHANGING, add_engine_arguments
from tocsin.cli.feedback_export import STDOUT, export
from tocsin.cli.operator_channel import add_operator_arguments, operator_channel
from tocsin.schemas.errors import ConfigError
from tocsin.schemas.printable import counted, json_text, plain

TRUE, FALSE = "true", "false"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to the parser."""
    parser.add_argument("verdict", metavar="VERDICT", nargs="?", help="the incident's id, or its beginning")
    text = "true: who was named was at fault (or nobody was, where nobody was named); false: not so"
    parser.add_argument("judgement", choices=[TRUE, FALSE], nargs="?", help=text)
    parser.add_argument("--note", metavar="TEXT", help="what was found; kept with who says so")
    text = "write each judged verdict as a line of JSON there, '-': to the standard output (tocsin backtest --feedback)"
    parser.add_argument("--export", metavar="FILE", help=text)
    parser.add_argument("--json", action="store_true", help="print a JSON object")
    add_database_arguments(parser)
    add_engine_arguments(parser, CHANGING)
    add_operator_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Tell an engine, or the controller over Kafka, or export what was said; return the exit status.

    Raises:
        ConfigError: a word or flag is missing, or too many.
        EngineError: no engine or controller answers, or it refuses: it knows no such verdict, or several.
        StoreError: the database cannot be asked.
    """
    check_flags(args)
    if args.export is not None:
        with database(*database_of(args)) as ask:
            count = export(ask, args.export)
        if args.export != STDOUT:
            print(f"{counted(count, 'judged verdict')} in {plain(args.export)}", file=sys.stderr)
        return 0
    answer = operator_channel(args).call("feedback", id=args.verdict, is_true=args.judgement == TRUE, note=args.note)
    if args.json:
        print(json_text({name: value for name, value in answer.items() if name not in ("ok", "kind")}))
        return 0
    word = "upheld" if answer["is_true"] else "denied"
    print(plain(f"incident {answer['verdict_id']} is {word} by {answer['actor']}: {answer['note']}"))
    return 0


def check_flags(args: argparse.Namespace) -> None:
    """Check that a judgement is whole, and that an export has none of its words.

    Raises:
        ConfigError: one is missing, or too many.
    """
    words = (("VERDICT", args.verdict), ("true|false", args.judgement), ("--note", args.note))
    for name, value in words:
        if args.export is None and value is None:
            raise ConfigError(name, "", "given: tocsin feedback VERDICT true|false --note TEXT, or --export FILE")
        if args.export is not None and value is not None:
            raise ConfigError(name, value, "left out where --export is given")
    if args.export is not None and args.engine:
        raise ConfigError("--engine", args.engine, "left out: judgements are exported from a database")
    if args.export is None and args.clickhouse:
        raise ConfigError("--clickhouse", args.clickhouse, "left out: it is the engine that takes a judgement")
