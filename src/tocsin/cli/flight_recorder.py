"""``tocsin flight-recorder DIR``: finds the ranks that cause a hang, from PyTorch Flight Recorder dumps."""

import argparse
from pathlib import Path

from tocsin.models.hang import HangFinding
from tocsin.pipeline.rca.evidence.flight_recorder import analyse_folder, report
from tocsin.schemas.printable import json_text, plain


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's arguments to the parser."""
    parser.add_argument(
        "folder",
        metavar="DIR",
        type=Path,
        help="folder with one dump per rank (pickle or JSON); a file's name ends in its rank",
    )
    parser.add_argument(
        "--world-size",
        type=int,
        default=0,
        metavar="N",
        help="ranks in the job, where the dumps do not say it (gloo): a rank without a file is missing",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def run(args: argparse.Namespace) -> int:
    """Analyse the folder's dumps, print the finding, and return the exit status 0."""
    finding = analyse_folder(args.folder, args.world_size)
    if args.json:
        print(json_text(report(finding)))
    else:
        print(text_of(finding))
    return 0


def text_of(finding: HangFinding) -> str:
    """Return the finding as text: first the ranks that cause the hang, then the evidence."""
    if finding.culprits:
        several = len(finding.culprits) > 1
        ranks = ", ".join(map(str, finding.culprits))
        who = f"ranks {ranks} hold" if several else f"rank {ranks} holds"
        head = f"{who} up the job ({finding.reason})"
    else:
        head = f"the dumps do not show a culprit ({finding.reason})"
    lines = [head, *(f"  - {plain(line)}" for line in finding.evidence)]
    if finding.victims:
        lines.append(f"  {len(finding.victims)} ranks wait because of others")
    return "\n".join(lines)
