"""``tocsin causes``: lists the causes that a verdict can have, with meaning and recommended action."""

from __future__ import annotations

import argparse

from tocsin.schemas.causes import CAUSES
from tocsin.schemas.printable import json_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to the parser."""
    parser.add_argument("--json", action="store_true", help="one JSON array instead of a table")


def run(args: argparse.Namespace) -> int:
    """Print the causes as a table, or as JSON, and return the exit status 0."""
    rows = [
        {"cause": c.name, "blames": c.blames, "action": c.action.value, "meaning": c.meaning} for c in CAUSES.values()
    ]
    if args.json:
        print(json_text(rows, indent=2))
        return 0
    header = {"cause": "CAUSE", "blames": "BLAMES", "action": "ACTION", "meaning": "MEANING"}
    widths = {key: max(len(row[key]) for row in [header, *rows]) for key in header}
    for row in [header, *rows]:
        print("  ".join(f"{row[key]:<{widths[key]}}" for key in header).rstrip())
    return 0
