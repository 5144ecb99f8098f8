"""``tocsin simulate OUT``: writes recordings of simulated jobs with random faults, and their truth."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from tocsin.schemas.errors import ConfigError
from tocsin.schemas.printable import counted

INDEX_NAME = "index.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to the parser."""
    parser.add_argument("out", metavar="OUT", type=Path, help="new or empty folder; gets case-0000, case-0001, …")
    parser.add_argument("--seed", metavar="S", type=int, default=0, help="the same seed gives the same bytes")
    parser.add_argument("--cases", metavar="N", type=int, default=20, help="how many recordings (%(default)s)")
    parser.add_argument("--hosts", metavar="H|LOW-HIGH", default="4-64", help="machines of each (%(default)s)")
    parser.add_argument("--kind", metavar="K", help="all of this kind: a fault, a disturbance, or healthy")
    parser.add_argument(
        "--healthy-ratio", metavar="R", type=float, default=0.5, help="share without a fault (%(default)s)"
    )
    parser.add_argument("--minutes", metavar="M", type=float, help="length of each (drawn, 10 to 25)")
    parser.add_argument(
        "--ranges",
        choices=("fit", "held"),
        default="fit",
        help="half of the parameter ranges: fit a detector on one, judge it on the other (%(default)s)",
    )


def run(args: argparse.Namespace) -> int:
    """Write the recordings and their index, and return the exit status 0."""
    from tocsin.pipeline.lab.simulation.case import (
        HEALTHY,
        KINDS,
        case_seed,
        draw_case,
    )
    from tocsin.pipeline.recording.writer import claim_folder, write_json, write_recording

    _check(args)
    if args.kind is not None and args.kind not in KINDS:
        raise ConfigError("--kind", args.kind, f"one of {', '.join(KINDS)}")
    hosts = host_range(args.hosts)
    seconds = None if args.minutes is None else 60.0 * args.minutes
    claim_folder(args.out)
    listed = []
    for index in range(args.cases):
        _progress(index, args.cases)
        healthy = args.kind is None and _is_healthy(index, args.healthy_ratio)
        kind = HEALTHY if healthy else args.kind
        case = draw_case(case_seed(args.seed, index), hosts, kind, args.ranges, duration_seconds=seconds)
        folder = f"case-{index:04d}"
        write_recording(args.out / folder, case.recording())
        listed.append(
            {
                "folder": folder,
                "kind": case.kind,
                "seed": case.seed,
                "host_count": case.shape.host_count,
                "innocents": list(case.plan.benign_disturbances),
            }
        )
    write_json(args.out / INDEX_NAME, {"seed": args.seed, "ranges": args.ranges, "cases": listed})
    _progress(args.cases, args.cases)
    faulty_count = sum(case["kind"] != HEALTHY for case in listed)
    print(f"{args.out}: {counted(len(listed), 'recording')}, {faulty_count} with a fault; {INDEX_NAME} lists them")
    return 0


def host_range(text: str) -> tuple[int, int]:
    """Parse "16" or "4-64" to the smallest and greatest number of hosts.

    Raises:
        ConfigError: it is neither.
    """
    found = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", text)
    low, high = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if low < 2 or high < low:
        raise ConfigError("--hosts", text, "a number of machines from 2 up, or a range such as 4-64")
    return low, high


def _check(args: argparse.Namespace) -> None:
    """Check the values of the flags; raise ConfigError if one is out of range."""
    if args.seed < 0:
        raise ConfigError("--seed", args.seed, "0 or more")
    if args.cases < 1:
        raise ConfigError("--cases", args.cases, "1 or more")
    if not 0.0 <= args.healthy_ratio <= 1.0:
        raise ConfigError("--healthy-ratio", args.healthy_ratio, "between 0 and 1")
    if args.minutes is not None and not 0.0 < args.minutes <= 14 * 24 * 60:
        raise ConfigError("--minutes", args.minutes, "above 0, and at most two weeks")


def _is_healthy(index: int, ratio: float) -> bool:
    """Return whether a case is healthy; healthy cases are spread so that every prefix has about the wanted ratio."""
    return int((index + 1) * ratio + 1e-9) > int(index * ratio + 1e-9)


def _progress(done: int, total: int) -> None:
    """Show the progress on a terminal."""
    if sys.stderr.isatty():
        end = "\n" if done == total else ""
        print(f"\r{done} of {total} recordings", end=end, file=sys.stderr, flush=True)
