"""``tocsin drill``: trains a small real job, injects a real fault into it, and checks the verdict.

Only the forkserver and its ranks import torch, so that this process stays small.
"""

from __future__ import annotations

import argparse
from pathlib import Path

EXIT_WRONG = 1


def at_least_one(text: str) -> int:
    """Parse an integer of at least 1; else an argparse error."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number}: must be at least 1")
    return number


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to the parser."""
    from tocsin.cli.drill.faults import KINDS

    parser.add_argument("--kind", choices=list(KINDS), help="the fault (default: kill; with --demo: freeze)")
    parser.add_argument("--all", action="store_true", help="every kind, with each of --seeds seeds")
    parser.add_argument("--ranks", type=_rank_count, default=8, metavar="N", help="ranks of the job (default: 8)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="decides who is struck, when, how hard")
    parser.add_argument(
        "--seeds", type=at_least_one, default=5, metavar="N", help="seeds a kind with --all (default: 5)"
    )
    parser.add_argument("--report", type=Path, metavar="FILE", help="write the table to this file (Markdown)")
    parser.add_argument(
        "--healthy-minutes",
        type=float,
        default=0.0,
        metavar="M",
        help="with --kind none: train so long, with checkpoints and evaluations; with another kind: before its fault",
    )
    text = "with a --kind that the job survives: its fault stays so long at least"
    parser.add_argument("--fault-minutes", type=float, default=0.0, metavar="M", help=text)
    text = "make a recording of each drill below this folder: FOLDER/JOB"
    parser.add_argument("--record", type=Path, metavar="FOLDER", help=text)
    parser.add_argument("--keep", action="store_true", help="keep the work folder: logs, stderr, spools, incidents")
    parser.add_argument("--demo", action="store_true", help="show it: step rates, the strike, the verdict, the rows")
    text = (
        "let the engine act: the job trains again by a signed action (docs/actions.md); with --kind freeze or host_down"
    )
    parser.add_argument("--act", action="store_true", help=text)
    text = "with --act: the distributed engine acts (Kafka, Flink, ClickHouse; Java 17), not an embedded one"
    parser.add_argument("--kafka", action="store_true", help=text)
    text = "with --act: one JSON object, after a comparison with an undisturbed run from the same checkpoint"
    parser.add_argument("--json", action="store_true", help=text)
    parser.add_argument("--plain", action="store_true", help="plain lines also on a terminal")


def run(args: argparse.Namespace) -> int:
    """Run the drills; return the exit status 0 if every verdict is right, else 1."""
    from tocsin.cli.drill import command

    return command.run(args)


def _rank_count(text: str) -> int:
    """Parse a number of ranks, at least 2; else an argparse error."""
    count = int(text)
    if count < 2:
        raise argparse.ArgumentTypeError("a distributed job has at least 2 ranks")
    return count
