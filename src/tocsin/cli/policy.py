"""``tocsin policy``: the ladder of decisions as a file: where it is, whether it is right, what it says; and plans."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tocsin.cli.policy_plan import add_plan_arguments, plan_lines
from tocsin.schemas.printable import json_text, plain

if TYPE_CHECKING:
    from tocsin.pipeline.actions.policy.config import Policy
    from tocsin.pipeline.actions.policy.replay import Decision

_COUNTED_OUTCOMES = ("act", "wait_approval", "refused", "notify")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to the parser."""
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    verbs.add_parser("path", help="print where the policy file is that ships with this program")
    check = verbs.add_parser("check", help="read a policy file, and say what it asks for")
    check.add_argument("file", metavar="FILE", type=Path)
    verbs.add_parser("schema", help="print the JSON Schema of the policy file, for editors")
    explain = verbs.add_parser("explain", help="say what a cause, an event, an XID or a DCGM error leads to")
    explain.add_argument("words", metavar="CAUSE|EVENT", nargs="+", help="such as ecc_error, ib_port, xid 79")
    add_policy_argument(explain)
    replay = verbs.add_parser("replay", help="print every decision about verdicts (and events) from files")
    replay.add_argument("verdicts", metavar="VERDICTS.jsonl", type=Path, help="lines as 'tocsin replay' writes them")
    text = "a line an event, with the columns of a recording; or a table of them: .parquet, .csv"
    replay.add_argument("events", metavar="EVENTS.jsonl", type=Path, nargs="?", help=text)
    add_policy_argument(replay)
    replay.add_argument("--json", action="store_true", help="one JSON object a line")
    add_plan_arguments(verbs.add_parser("plan", help="plans for many machines: replay groups, standbys, evictions"))


def add_policy_argument(parser: argparse._ActionsContainer) -> None:
    """Add the flag ``--policy`` of the commands that decide about actions."""
    parser.add_argument(
        "--policy",
        type=Path,
        metavar="FILE",
        default=os.environ.get("TOCSIN_POLICY") or None,
        help="policy file (docs/policy.md) [env: TOCSIN_POLICY] (default: the one that ships)",
    )


def run(args: argparse.Namespace) -> int:
    """Run one verb and return the exit status 0.

    Raises:
        ConfigError: a policy file is wrong, the words to explain name nothing, or an argument of a plan does not fit.
        RecordingError: a line to replay is wrong.
    """
    of_verb = {
        "path": _path,
        "check": _check,
        "schema": _schema,
        "explain": _explain,
        "replay": _replay,
        "plan": plan_lines,
    }
    for line in of_verb[args.verb](args):
        print(plain(line) if args.verb != "schema" else line)
    return 0


def _path(_: argparse.Namespace) -> Iterator[str]:
    """Yield the path of the policy that ships."""
    from tocsin.pipeline.actions.policy.policy_file import DEFAULT_POLICY

    yield str(DEFAULT_POLICY)


def _check(args: argparse.Namespace) -> Iterator[str]:
    """Yield what a policy file asks for."""
    from tocsin.pipeline.actions.policy.explain import rule_words
    from tocsin.pipeline.actions.policy.limits import limit_words

    policy = _loaded(args.file)
    yield "the first rule that fits a verdict counts:"
    for rule in policy.rules:
        yield f"  {rule_words(rule)}"
    yield f"a job that did not fail for {policy.forget_seconds:g} s begins at the first step again"
    yield from limit_words(policy.limits)
    yield from (f"warning: {one}" for one in policy.warnings)
    yield f"{args.file}: right"


def _schema(_: argparse.Namespace) -> Iterator[str]:
    """Yield the JSON Schema of a policy file."""
    from tocsin.pipeline.actions.policy.policy_schema import policy_schema

    yield json_text(policy_schema(), indent=2)


def _explain(args: argparse.Namespace) -> Iterator[str]:
    """Yield what a cause, an event or a code leads to."""
    from tocsin.pipeline.actions.policy.explain import explained

    yield from explained(_loaded(args.policy), " ".join(args.words))


def _replay(args: argparse.Namespace) -> Iterator[str]:
    """Yield every decision about the verdicts and events of files."""
    from tocsin.pipeline.actions.policy.controller_judge import ControllerJudge, replay_config
    from tocsin.pipeline.actions.policy.ladder import PolicyLadder
    from tocsin.pipeline.actions.policy.replay import replay
    from tocsin.pipeline.actions.policy.verdict_lines import read_event_lines, read_verdict_lines

    verdicts = read_verdict_lines(args.verdicts)
    events = read_event_lines(args.events) if args.events is not None else []
    policy = _loaded(args.policy)
    judge = ControllerJudge(PolicyLadder(policy), replay_config(policy.limits))
    counts = dict.fromkeys(_COUNTED_OUTCOMES, 0)
    for decision in replay(verdicts, events, judge):
        counts[decision.outcome.value] += 1
        yield json_text(decision.to_line()) if args.json else _words(decision)
    if not args.json:
        yield ", ".join(f"{outcome} {count}" for outcome, count in counts.items())


def _words(decision: Decision) -> str:
    """Return a decision as a line for people."""
    line = decision.to_line()
    verdict = decision.verdict_id or "-"
    what = f"{decision.outcome.value:<13}  {decision.kind.value:<8}"
    return f"{decision.at_ns}  {what}  {line['target']}  {verdict}  {decision.by}"


def _loaded(path: Path | None) -> Policy:
    """Return the policy of a file, None: the one that ships."""
    from tocsin.pipeline.actions.policy.policy_file import DEFAULT_POLICY, load_policy

    return load_policy(DEFAULT_POLICY if path is None else path)
