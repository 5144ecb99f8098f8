"""``tocsin causes``: the words that a verdict's cause can be, with meaning and action."""

from __future__ import annotations

import argparse

from tocsin.schemas.causes import CAUSES
from tocsin.schemas.printable import json_text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--json", action="store_true", help="one JSON array instead of a table")


def run(args: argparse.Namespace) -> int:
    """Print the list."""
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
