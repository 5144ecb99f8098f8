"""``tocsin score FOLDER …``: verdicts against truth."""

import argparse
import json
from pathlib import Path

from tocsin.pipeline.recording.score import Score, add_up, score_folder


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "folders",
        metavar="FOLDER",
        type=Path,
        nargs="+",
        help="recording with truth.json and verdicts.jsonl (see 'tocsin replay')",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of a table")


def run(args: argparse.Namespace) -> int:
    """Score the folders and print the table."""
    total, kinds = add_up([score_folder(folder) for folder in args.folders])
    if args.json:
        found = {"all": total.to_object(), "kinds": {name: score.to_object() for name, score in kinds.items()}}
        print(json.dumps(found))
        return 0
    print(table_of(total, kinds))
    return 0


def table_of(total: Score, kinds: dict[str, Score]) -> str:
    """Return the figures for a human: in all, then by cause."""
    width = max(len(name) for name in ("cause", *kinds))
    lines = [
        f"{total.hit_count + total.missed_count} faults, {total.machine_days:.2f} machine-days",
        f"precision {_share(total.precision)}  recall {_share(total.recall)}  F1 {_share(total.f1)}",
        f"false accusations {total.false_count} ({_number(total.false_per_machine_day)} per machine-day)",
        f"cause right {_share(total.cause_accuracy)} of the hits",
        f"onset to detection: median {_number(total.median_seconds)} s, 90 % {_number(total.p90_seconds)} s",
        "",
        f"{'cause':{width}}  faults  hits  recall  cause right  median s   90 % s",
    ]
    for name, score in kinds.items():
        count = score.hit_count + score.missed_count
        lines.append(
            f"{name:{width}}  {count:6}  {score.hit_count:4}  {_share(score.recall):>6}  "
            f"{_share(score.cause_accuracy):>11}  {_number(score.median_seconds):>8}  {_number(score.p90_seconds):>7}"
        )
    return "\n".join(lines)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"
